"""Errors of groups of published steps that are left out of the fits.

A program's fitted values (`dse list programs`) that were found on its own published steps are
found again without the rows of a group, which are then predicted with them. How long a step takes
with other values is interpolated between predictions at the shipped value and on either side of
it, so that one refit costs no further predictions. A program without such values has nothing to be
left out of: its errors are those of the shipped model.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
import math
from typing import TYPE_CHECKING

import numpy as np

from dse.workload.transformer import TRANSFORMER_PROGRAMS, TransformerRuntime

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from numpy.typing import NDArray
    from published_steps import PublishedStep

    from dse.workload.transformer import TransformerJob

#: A fitted value is predicted at these multiples; refits stay between them.
_FACTORS = (0.5, 1.0, 2.0)

#: Steps of the search for a value, of all values together, and how often it goes around.
_GRID = 41
_ROUNDS = 4


@dataclass(frozen=True, slots=True)
class LeftOut:
    """A group of steps, predicted without having been seen.

    Attributes:
        name: What they have in common.
        rows: Steps with a time.
        median: Median of the relative errors' absolute values.
        bias: Median of log(predicted / measured).
        low: Its 5 % quantile over the rows.
        high: Its 95 % quantile.
        coverage: Share inside the 90 % interval.
    """

    name: str
    rows: int
    median: float
    bias: float
    low: float
    high: float
    coverage: float


@dataclass(frozen=True, slots=True)
class GroupErrors:
    """Every group of one kind left out in turn.

    Attributes:
        family: Whose steps.
        by: What the groups differ in.
        refitted: Names of the values that are found again without each group.
        median: Median of the relative errors' absolute values of all rows, each left out.
        coverage: Share of all rows inside their 90 % interval.
        groups: The groups.
    """

    family: str
    by: str
    refitted: tuple[str, ...]
    median: float
    coverage: float
    groups: tuple[LeftOut, ...]

    @property
    def worst(self) -> LeftOut:
        """The group with the largest median error."""
        return max(self.groups, key=lambda group: group.median)


def _size(step: PublishedStep, job: TransformerJob) -> str:
    return step.row["model"] or f"{job.model.parameter_count / 1e9:.3g}B"


#: What groups differ in.
KINDS: dict[str, Callable[[PublishedStep, TransformerJob], object]] = {
    "model": _size,
    "sequence": lambda _, job: job.model.sequence_length,
    "machine": lambda _, job: job.cluster.name,
    "precision": lambda _, job: job.precision.value,
    "release": lambda step, _: step.row.get("source", "").split(" (")[0].rpartition("/")[2],
    "ranks": lambda _, job: job.world_size,
    "tensor": lambda _, job: job.parallelism.tensor,
    "pipeline": lambda _, job: job.parallelism.pipeline,
    "replicas": lambda _, job: job.parallelism.replicas,
    "expert": lambda _, job: job.parallelism.expert,
}


def group_errors(family: str, steps: Sequence[PublishedStep]) -> list[GroupErrors]:
    """Returns the errors of left-out groups, one entry for each way to group the steps.

    Args:
        family: Name of the steps.
        steps: Steps of one program; those without published or predicted time do not count.
    """
    known = [step for step in steps if step.ran and step.job is not None]
    if not known:
        return []
    program = TRANSFORMER_PROGRAMS[known[0].program]
    log_ratio = np.log([step.predicted_s / step.measured_s for step in known])
    changes = {name: _log_changes(known, name) for name in fitted_here(program.name)}
    # Some values decide on memory only.
    names = tuple(name for name, change in changes.items() if change.any())
    bends = np.array([changes[name] for name in names])
    found = []
    for kind, value_of in KINDS.items():
        values = [value_of(step, step.job) for step in known if step.job is not None]
        order = sorted(set(values), key=lambda value: (str(type(value)), value))
        if len(order) < 2:
            continue
        left_out = np.array(log_ratio)
        for value in order if names else ():
            mine = np.array([one == value for one in values])
            left_out[mine] = _refitted(log_ratio, bends, ~mine)[mine]
        moved = np.exp(left_out - log_ratio)
        inside = np.array(
            [
                step.low_s * ratio <= step.measured_s <= step.high_s * ratio
                for step, ratio in zip(known, moved, strict=True)
            ]
        )
        error = np.abs(np.expm1(left_out))
        groups = []
        for value in order:
            mine = np.array([one == value for one in values])
            groups.append(
                LeftOut(
                    str(value),
                    int(mine.sum()),
                    float(np.median(error[mine])),
                    *(float(end) for end in np.quantile(left_out[mine], (0.5, 0.05, 0.95))),
                    float(inside[mine].mean()),
                )
            )
        median, covered = float(np.median(error)), float(inside.mean())
        found.append(GroupErrors(family, kind, names, median, covered, tuple(groups)))
    return found


def fitted_here(program: str) -> tuple[str, ...]:
    """Returns the program's values that were fitted on published steps of this very program."""
    own = []
    for fitted in TRANSFORMER_PROGRAMS[program].fitted:
        on = fitted.on.lower().replace("-", " ")
        named = [name for name in TRANSFORMER_PROGRAMS if name.replace("_", " ") in on]
        # The name of one program may be part of another's.
        if program == max(named, key=len, default="") and hasattr(TransformerRuntime, fitted.name):
            own.append(fitted.name)
    return tuple(own)


def _log_changes(steps: Sequence[PublishedStep], name: str) -> NDArray[np.float64]:
    """Returns how the logarithm of each time changes with a value's multiples; shape `(n, 3)`."""
    changes = []
    for step in steps:
        job = step.job
        assert job is not None
        row = []
        for factor in _FACTORS:
            if factor == 1.0:
                row.append(0.0)
                continue
            value = factor * getattr(job.software, name)
            moved = replace(job, software=replace(job.software, **{name: value}))
            row.append(math.log(moved.simulated().time_s / step.predicted_s))
        changes.append(row)
    return np.array(changes)


def _refitted(
    log_ratio: NDArray[np.float64], bends: NDArray[np.float64], seen: NDArray[np.bool_]
) -> NDArray[np.float64]:
    """Returns log(predicted / measured) of all rows with values that suit the seen ones best.

    The best have the least mean absolute error; values are searched one after the other.
    """
    log_factors = np.log(_FACTORS)
    grid = np.linspace(log_factors[0], log_factors[-1], _GRID)
    # Of every value: its effect on each row at each point of the grid; shape `(values, grid, n)`.
    effects = np.array(
        [[np.interp(grid, log_factors, row) for row in changes] for changes in bends]
    ).transpose(0, 2, 1)
    chosen = np.full(len(bends), _GRID // 2)
    for _ in range(_ROUNDS):
        for index in range(len(bends)):
            others = log_ratio + sum(
                effects[other, chosen[other]] for other in range(len(bends)) if other != index
            )
            errors = np.abs(np.expm1((others + effects[index])[:, seen])).mean(axis=1)
            chosen[index] = int(errors.argmin())
    return log_ratio + sum(effects[index, chosen[index]] for index in range(len(bends)))
