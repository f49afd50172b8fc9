"""Errors, order and intervals of whole training steps, family by family, beside their marks."""

from __future__ import annotations

from dataclasses import asdict, dataclass
import math
from typing import TYPE_CHECKING

from end_to_end_cases import RATE
import numpy as np

from dse.ranking import coverage, kendall_tau, pairwise_accuracy, relative_errors

if TYPE_CHECKING:
    from collections.abc import Sequence

    from end_to_end_cases import EndToEndCase

OURS = "dse"
ROOFLINE = "roofline"

#: Pairs of a family count when their measurements differ by more than this.
CLEAR_DIFFERENCE = 0.05

#: A hit to the last digit would make the geometric mean zero.
_EXACT = 1e-4


@dataclass(frozen=True, slots=True)
class Figures:
    """One model on the cases of one family.

    Attributes:
        family: The family.
        model: `OURS` or `ROOFLINE`.
        cases: Cases that the model could predict; the figures are of these.
        not_predicted: Cases that it could not.
        median: Median of the relative errors' absolute values.
        mean: Their mean.
        largest: Their largest.
        gmae: Their geometric mean.
        bias: Median of log(predicted / measured) of the step time: above 0 the model is slower.
        tau: Kendall's τ of predicted and measured.
        pairwise: Share of pairs, more than 5 % apart, in the right order.
        coverage: Share of measurements inside the 90 % interval; NaN for a model without one.
    """

    family: str
    model: str
    cases: int
    not_predicted: int
    median: float
    mean: float
    largest: float
    gmae: float
    bias: float
    tau: float
    pairwise: float
    coverage: float


@dataclass(frozen=True, slots=True)
class Limit:
    """One aim: a figure of a family and what it must not pass.

    Attributes:
        family: The family.
        figure: Name of the attribute of :class:`Figures`.
        limit: The value.
        at_most: Whether the figure must not lie above it (errors) or not below (order).
    """

    family: str
    figure: str
    limit: float
    at_most: bool = True


@dataclass(frozen=True, slots=True)
class Mark:
    """One aim with what was reached.

    Attributes:
        aim: The aim.
        reached: The figure; NaN where there is none.
        met: Whether all cases of the family were predicted and the figure keeps the limit.
    """

    aim: Limit
    reached: float
    met: bool

    def __str__(self) -> str:
        share = self.aim.figure not in ("tau", "bias")
        sign = "≤" if self.aim.at_most else "≥"
        figure = {"tau": "τ", "largest": "max"}.get(self.aim.figure, self.aim.figure)
        reached, limit = (
            "–" if math.isnan(value) else f"{100 * value:.1f} %" if share else f"{value:.2f}"
            for value in (self.reached, self.aim.limit)
        )
        return f"{self.aim.family}: {figure} {reached} ({sign} {limit})"


AIMS = (
    Limit("dlrm cuda graphs", "median", 0.12),
    Limit("dlrm cuda graphs", "tau", 0.85, at_most=False),
    Limit("dlrm synthetic", "median", 0.15),
    Limit("dlrm synthetic", "tau", 0.85, at_most=False),
    Limit("dlrm eager", "median", 0.15),
    Limit("gpt", "mean", 0.04),
    Limit("gpt", "largest", 0.09),
    Limit("mpt fsdp", "median", 0.08),
    Limit("mpt fsdp", "tau", 0.9, at_most=False),
)


def figures_of(family: str, model: str, cases: Sequence[EndToEndCase]) -> Figures:
    """Returns the figures of one model on some cases of one unit.

    Args:
        family: Name for the row.
        model: `OURS` or `ROOFLINE`.
        cases: The cases; the model's are those that it could predict.
    """
    done = [case for case in cases if math.isfinite(_prediction(case, model))]
    missing = len(cases) - len(done)
    if not done:
        return Figures(family, model, 0, missing, *[math.nan] * 8)
    measured = np.array([case.measured for case in done])
    predicted = np.array([_prediction(case, model) for case in done])
    errors = np.maximum(np.abs(relative_errors(measured, predicted)), _EXACT)
    slower = np.array([-1.0 if case.unit == RATE else 1.0 for case in done])
    covered = math.nan
    if model == OURS:
        covered = coverage(measured, [case.low for case in done], [case.high for case in done])
    return Figures(
        family,
        model,
        len(done),
        missing,
        median=float(np.median(errors)),
        mean=float(errors.mean()),
        largest=float(errors.max()),
        gmae=float(np.exp(np.log(errors).mean())),
        bias=float(np.median(slower * np.log(predicted / measured))),
        tau=kendall_tau(measured, predicted),
        pairwise=pairwise_accuracy(measured, predicted, CLEAR_DIFFERENCE),
        coverage=covered,
    )


def family_figures(cases: Sequence[EndToEndCase]) -> list[Figures]:
    """Returns the figures of both models, family by family in the order of the cases."""
    return [
        figures_of(family, model, [case for case in cases if case.family == family])
        for family in dict.fromkeys(case.family for case in cases)
        for model in (OURS, ROOFLINE)
    ]


def file_figures(cases: Sequence[EndToEndCase]) -> list[Figures]:
    """Returns the figures of both models over all cases of each published file."""
    return [
        figures_of(f"all of {source}", model, [case for case in cases if case.source == source])
        for source in dict.fromkeys(case.source for case in cases)
        for model in (OURS, ROOFLINE)
    ]


def judged(figures: Sequence[Figures], aims: Sequence[Limit] = AIMS) -> list[Mark]:
    """Returns every aim with what the model reached; one without cases is missed."""
    ours = {row.family: row for row in figures if row.model == OURS}
    marks = []
    for aim in aims:
        row = ours.get(aim.family)
        reached = math.nan if row is None else float(getattr(row, aim.figure))
        kept = reached <= aim.limit if aim.at_most else reached >= aim.limit
        marks.append(Mark(aim, reached, kept and row is not None and not row.not_predicted))
    return marks


def end_to_end_document(cases: Sequence[EndToEndCase]) -> dict[str, object]:
    """Returns cases, figures and marks for machines; what is not known is null."""
    families = family_figures(cases)
    rows = [*families, *file_figures(cases)]
    return {
        "cases": [_plain(asdict(case)) for case in cases],
        "figures": [_plain(asdict(row)) for row in rows],
        "marks": [
            _plain({**asdict(mark.aim), "reached": mark.reached, "met": mark.met})
            for mark in judged(families)
        ],
    }


def _plain(fields: dict[str, object]) -> dict[str, object]:
    return {
        name: None if isinstance(value, float) and math.isnan(value) else value
        for name, value in fields.items()
    }


def worst(cases: Sequence[EndToEndCase], count: int = 10) -> list[EndToEndCase]:
    """Returns the cases with the largest errors, the largest first."""
    done = [case for case in cases if math.isfinite(case.predicted)]
    return sorted(done, key=lambda case: -abs(math.log(case.predicted / case.measured)))[:count]


def _prediction(case: EndToEndCase, model: str) -> float:
    return case.predicted if model == OURS else case.roofline
