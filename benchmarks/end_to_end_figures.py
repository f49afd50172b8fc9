"""Errors, order and intervals of whole training steps, family by family, beside their marks."""

from __future__ import annotations

from dataclasses import asdict, dataclass
import math
from typing import TYPE_CHECKING, Protocol

from end_to_end_cases import RATE
from marks import Mark
import numpy as np
from pages import without_nan

from dse.ranking import coverage, kendall_tau, pairwise_accuracy, relative_errors

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from _typeshed import DataclassInstance
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


class FamilyFigures(Protocol):
    """Figures of a family that aims may name."""

    @property
    def family(self) -> str:
        """The family."""

    @property
    def model(self) -> str:
        """Whose predictions they are of."""

    @property
    def not_predicted(self) -> int:
        """Cases that could not be predicted."""


@dataclass(frozen=True, slots=True)
class Limit:
    """One aim: a figure of a family and what it must not pass.

    Attributes:
        family: The family.
        figure: Name of the attribute of the family's figures.
        most: What it must not exceed, if anything.
        least: What it must not fall below, if anything.
    """

    family: str
    figure: str
    most: float | None = None
    least: float | None = None

    def __str__(self) -> str:
        if self.most is not None and self.least is not None:
            return f"{self.text(self.least)} to {self.text(self.most)}"
        sign, value = ("≥", self.least) if self.most is None else ("≤", self.most)
        return f"{sign} {self.text(value)}"

    def text(self, value: float | None) -> str:
        """Returns a value of the figure as tables show it."""
        if value is None or math.isnan(value):
            return "–"
        if self.figure in ("tau", "bias"):
            return f"{value:.2f}"
        return f"{value:.0f}" if self.figure == "refused" else f"{100 * value:.1f} %"


AIMS = (
    Limit("dlrm cuda graphs", "median", 0.12),
    Limit("dlrm cuda graphs", "tau", least=0.85),
    Limit("dlrm synthetic", "median", 0.15),
    Limit("dlrm synthetic", "tau", least=0.85),
    Limit("dlrm eager", "median", 0.15),
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


def judged(figures: Iterable[FamilyFigures], aims: Sequence[Limit] = AIMS) -> list[Mark]:
    """Returns every aim with what the model reached; one without cases is missed."""
    ours = {row.family: row for row in figures if row.model == OURS}
    marks = []
    for aim in aims:
        row = ours.get(aim.family)
        reached = math.nan if row is None else float(getattr(row, aim.figure))
        kept = row is not None and not row.not_predicted and not math.isnan(reached)
        kept &= (aim.most is None or reached <= aim.most) and (
            aim.least is None or reached >= aim.least
        )
        figure = {"tau": "τ", "largest": "max"}.get(aim.figure, aim.figure)
        words = f"{figure} {aim.text(reached)}"
        marks.append(Mark(aim.family, words, str(aim), kept, reached))
    return marks


def end_to_end_document(cases: Sequence[EndToEndCase]) -> dict[str, object]:
    """Returns cases, figures and marks for machines; what is not known is null."""
    families = family_figures(cases)
    rows = [*families, *file_figures(cases)]
    return {
        "cases": [plain(case) for case in cases],
        "figures": [plain(row) for row in rows],
        "marks": mark_documents(AIMS, judged(families)),
    }


def mark_documents(aims: Sequence[Limit], marks: Sequence[Mark]) -> list[dict[str, object]]:
    """Returns the marks of aims for machines."""
    return [
        {**plain(aim), "reached": without_nan(mark.value), "met": mark.met}
        for aim, mark in zip(aims, marks, strict=True)
    ]


def plain(row: DataclassInstance) -> dict[str, object]:
    """Returns the fields of a row for machines; what is not known is null."""
    return {name: without_nan(value) for name, value in asdict(row).items()}


def worst(cases: Sequence[EndToEndCase], count: int = 10) -> list[EndToEndCase]:
    """Returns the cases with the largest errors, the largest first."""
    done = [case for case in cases if math.isfinite(case.predicted)]
    return sorted(done, key=lambda case: -abs(math.log(case.predicted / case.measured)))[:count]


def _prediction(case: EndToEndCase, model: str) -> float:
    return case.predicted if model == OURS else case.roofline
