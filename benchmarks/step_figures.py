"""Figures of published steps of transformers: one family a training program.

The steps of NeMo are two families, by precision. Every row of a file is counted: with its error,
as a run that failed, or as one that could not be predicted.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
import math
import sys
import time
from typing import TYPE_CHECKING, NamedTuple

from end_to_end_cases import TIME, EndToEndCase
from end_to_end_figures import OURS, ROOFLINE, figures_of
from end_to_end_roofline import transformer_roofline_s
import numpy as np
from transformer_cases import transformer_cases

from dse.errors import DseError
from dse.ranking import kendall_tau, relative_errors

if TYPE_CHECKING:
    from collections.abc import Hashable, Iterable, Sequence
    from pathlib import Path

    from published_steps import PublishedStep

#: Plans of a group that are compared, at least.
_LEAST_PLANS = 3

#: A chosen plan may be slower than the best by this share.
_CLOSE = 0.10


@dataclass(frozen=True, slots=True)
class StepFigures:
    """The model on the published steps of one family.

    Attributes:
        family: Name of the training program, with the precision for some.
        files: Where the rows are from.
        rows: All rows.
        failed: Rows of runs that failed, most of them out of memory; they have no time.
        refused: Rows that could not be predicted.
        not_predicted: Those of them that ran.
        cases: Rows with a published and a predicted time; the next eight figures are of these.
        median: Median of the relative errors' absolute values.
        mean: Their mean.
        largest: Their largest.
        bias: Median of log(predicted / measured): above 0 the model is slower.
        coverage: Share inside the 90 % interval.
        roofline: Median of the roofline's errors.
        tau: Mean of Kendall's τ over groups with the same model, machine, GPUs and batch.
        groups: How many groups that is: with three plans at least.
        chosen: Share of the groups in which the fastest plan by the model takes at most a tenth
            longer than the best one; of the plans that ran and are predicted to fit.
        regret: How much longer it takes on average.
        memory: Median of the relative errors of memory on the rows that state it; NaN without.
        fits: Share of the runs that succeeded that are predicted to fit.
        failed_fits: Share of failed runs that are predicted to fit; NaN if none failed.
    """

    family: str
    files: str
    rows: int
    failed: int
    refused: int
    not_predicted: int
    cases: int
    median: float
    mean: float
    largest: float
    bias: float
    coverage: float
    roofline: float
    tau: float
    groups: int
    chosen: float
    regret: float
    memory: float
    fits: float
    failed_fits: float

    @property
    def model(self) -> str:
        """Whose predictions they are of."""
        return OURS


class SourcedStep(NamedTuple):
    """A published step and the name of its file."""

    file: str
    step: PublishedStep


def step_files(path: Path) -> list[Path]:
    """Returns the tables of published steps that a path means.

    Args:
        path: One file; a folder with such files; or one with a folder `steps` of them, whose own
            tables of GPT and MPT then count as well.

    Raises:
        DseError: There is nothing.
    """
    if path.is_file():
        return [path]
    own = ("transformer_training_cases.csv", "mpt_fsdp_training_cases.csv")
    nested = path / "steps"
    folder, beside = (nested, path) if nested.is_dir() else (path, path.parent)
    found = sorted(folder.glob("*.csv"))
    found += [beside / name for name in own if (beside / name).is_file()]
    if not found:
        raise DseError(f"no published steps in {path}; give a table, or the folder that has them")
    return found


def read_all(paths: Iterable[Path]) -> list[SourcedStep]:
    """Predicts every row of some tables; shows what is being done on standard error.

    Raises:
        DseError: A file cannot be read.
    """
    found = []
    for path in paths:
        begun_s, before = time.monotonic(), len(found)
        for step in transformer_cases(path):
            found.append(SourcedStep(path.name, step))
            if sys.stderr.isatty():
                print(f"\r{path.name}: {len(found) - before} rows", end="", file=sys.stderr)
        end = "\r" if sys.stderr.isatty() else ""
        took_s = time.monotonic() - begun_s
        print(f"{end}{path.name}: {len(found) - before} rows in {took_s:.0f} s", file=sys.stderr)
    return found


def family_of(step: PublishedStep) -> str:
    """Returns the family of a step."""
    if step.program != "nemo":
        return step.program
    return "nemo bf16" if step.row["precision"] == "bf16" else "nemo fp8"


def by_family(steps: Sequence[SourcedStep]) -> dict[str, list[SourcedStep]]:
    """Returns the steps of each family, in the order of the files."""
    families: dict[str, list[SourcedStep]] = {}
    for sourced in steps:
        families.setdefault(family_of(sourced.step), []).append(sourced)
    return families


def case_of(sourced: SourcedStep) -> EndToEndCase:
    """Returns a step that ran as tables and pictures compare them."""
    step = sourced.step
    return EndToEndCase(
        case=step.case,
        family=family_of(step),
        source=sourced.file,
        unit=TIME,
        measured=step.measured_s,
        predicted=step.predicted_s,
        low=step.low_s,
        high=step.high_s,
        roofline=math.nan if step.job is None else transformer_roofline_s(step.job),
        problem=step.problem,
    )


def step_figures(family: str, sourced: Sequence[SourcedStep]) -> StepFigures:
    """Returns the figures of one family.

    Args:
        family: Its name.
        sourced: Its rows.
    """
    steps = [one.step for one in sourced]
    ran = [step for step in steps if step.ran]
    known = [step for step in ran if step.prediction is not None]
    cases = [case_of(one) for one in sourced if one.step.ran]
    times = figures_of(family, OURS, cases)
    plans = [_compared(group) for group in _groups(known)]
    return StepFigures(
        family=family,
        files=", ".join(dict.fromkeys(one.file for one in sourced)),
        rows=len(steps),
        failed=sum(step.failed for step in steps),
        refused=sum(bool(step.problem) for step in steps),
        not_predicted=times.not_predicted,
        cases=times.cases,
        **{name: getattr(times, name) for name in ("median", "mean", "largest", "bias")},
        coverage=times.coverage,
        roofline=figures_of(family, ROOFLINE, cases).median,
        groups=len(plans),
        tau=_mean([tau for tau, _ in plans if not math.isnan(tau)]),
        chosen=_mean([regret <= _CLOSE for _, regret in plans]),
        regret=_mean([regret for _, regret in plans]),
        memory=_memory_error(known),
        fits=_mean([step.fits for step in ran]),
        failed_fits=_mean([step.fits for step in steps if step.failed]),
    )


def all_figures(steps: Sequence[SourcedStep]) -> list[StepFigures]:
    """Returns the figures of each family."""
    return [step_figures(family, mine) for family, mine in by_family(steps).items()]


def _groups(steps: Sequence[PublishedStep]) -> list[list[PublishedStep]]:
    """Returns steps that differ only in how they are spread, where there are enough of them."""
    groups: dict[Hashable, list[PublishedStep]] = {}
    for step in steps:
        job = step.job
        assert job is not None
        model = replace(job.model, name="")
        machine = (job.cluster.name, job.cluster.world_size)
        key = (model, machine, job.global_batch_size, job.precision, step.row.get("source", ""))
        groups.setdefault(key, []).append(step)
    return [group for group in groups.values() if len(group) >= _LEAST_PLANS]


def _compared(group: Sequence[PublishedStep]) -> tuple[float, float]:
    """Returns τ of a group, and how much longer the chosen plan takes than the best."""
    measured_s = [step.measured_s for step in group]
    tau = kendall_tau(measured_s, [step.predicted_s for step in group])
    fitting = [step for step in group if step.fits] or group
    chosen = min(fitting, key=lambda step: step.predicted_s)
    return tau, chosen.measured_s / min(measured_s) - 1


def _memory_error(steps: Sequence[PublishedStep]) -> float:
    stated = [step for step in steps if not math.isnan(step.measured_memory_bytes)]
    if not stated:
        return math.nan
    measured = [step.measured_memory_bytes for step in stated]
    predicted = [step.predicted_memory_bytes for step in stated]
    return float(np.median(np.abs(relative_errors(measured, predicted))))


def _mean(values: Sequence[float]) -> float:
    return float(np.mean(values)) if values else math.nan
