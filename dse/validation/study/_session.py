"""Measurement of planned runs; an interrupt keeps what has been measured."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
import time
from typing import TYPE_CHECKING, Any

from dse.calibration.microbench import default_threads
from dse.search import ValidationMode
from dse.validation._types import TrainerOptions
from dse.validation.measurement import BudgetError
from dse.validation.measurement._rounds import measure
from dse.validation.measurement._serial import measure_serially

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from dse.calibration.microbench import MachineInfo
    from dse.machine.platforms import Platform
    from dse.validation._protocol import Trainer
    from dse.validation._types import Measurement
    from dse.validation.study._options import ValidateOptions
    from dse.validation.study.runs import PlannedRun

#: Time for ranks to start, and for each set-up or sample, in seconds.
_TIMEOUT_S = 300.0

#: If an iteration takes more than this share of a sample, one is enough warm-up.
_LONG_SHARE = 0.5

#: Number of different batches.
_BATCHES = 4


class RunMeasurement:
    """Measures runs, grouped by number of ranks.

    Args:
        trainer: What trains candidates.
        machine: This machine.
        mode: How candidates are run.
        options: Budget, stopping rule and seed.
        platform: Platform of the predictions.
        on_progress: Called with what begins, and the fraction of the budget used.

    Attributes:
        interrupted: Whether the measurement was interrupted.
        needed_s: Budget that is expected to give every median an interval, in seconds.
    """

    def __init__(
        self,
        trainer: Trainer[Any],
        machine: MachineInfo,
        mode: ValidationMode,
        options: ValidateOptions,
        platform: Platform,
        on_progress: Callable[[str, float], None] | None,
    ) -> None:
        self._trainer = trainer
        self._machine, self._mode, self._options = machine, mode, options
        self._platform, self._on_progress = platform, on_progress
        self.interrupted = False
        self.needed_s = 0.0

    def threads(self, world_size: int) -> int:
        """Returns the threads of each rank, at most as many as the platform was measured with."""
        ranks = 1 if self._mode is ValidationMode.RANK_SERIAL else world_size
        share = default_threads(self._machine.cores, ranks)
        if self._machine.device == "cpu":
            return min(share, self._platform.device.compute_units)
        return share

    def measure(self, runs: Sequence[PlannedRun]) -> dict[int, Measurement]:
        """Returns the measurements by trial number; an interrupt omits the remaining ones.

        Raises:
            BudgetError: The budget does not allow a single round.
            KeyboardInterrupt: Nothing had been measured yet.
        """
        groups: dict[int, list[PlannedRun]] = {}
        for run in runs:
            groups.setdefault(run.candidate.world_size, []).append(run)
        found: dict[int, Measurement] = {}
        start_s, used = time.monotonic(), 0
        for ranks, group in sorted(groups.items()):
            if self._on_progress is not None:
                noun = "rank" if ranks == 1 else "ranks"
                spent = min(1.0, (time.monotonic() - start_s) / self._options.budget_s)
                self._on_progress(f"starting {ranks} {noun}, {len(group)} candidates", spent)
            left_s = self._options.budget_s - (time.monotonic() - start_s)
            budget_s = max(0.0, left_s) * len(group) / (len(runs) - used)
            share = len(group) / len(runs)
            used += len(group)
            latest: list[tuple[Measurement, ...]] = []
            try:
                latest.append(self._group(ranks, group, budget_s, start_s, latest.append))
            except BudgetError as error:
                whole_s = error.needed_s / share
                share_s = error.share_s if len(groups) > 1 else None
                raise BudgetError(error.cause, self._options.budget_s, whole_s, share_s) from None
            except KeyboardInterrupt:
                if not found and not latest:
                    raise
                self.interrupted = True
            if latest:
                found.update(_by_trial(group, latest[-1]))
                self.needed_s = max(self.needed_s, latest[-1][0].needed_s / share)
            if self.interrupted:
                break
        return found

    def _group(
        self,
        ranks: int,
        group: list[PlannedRun],
        budget_s: float,
        start_s: float,
        on_samples: Callable[[tuple[Measurement, ...]], None],
    ) -> tuple[Measurement, ...]:
        limits = replace(self._options.limits, budget_s=budget_s)
        quickest_s = min(run.prediction.iteration_time_s for run in group)
        if quickest_s > _LONG_SHARE * limits.sample_s:
            limits = replace(limits, warm_up=min(1, limits.warm_up))
        options = TrainerOptions(seed=self._options.seed, batches=_BATCHES)
        candidates = [run.candidate for run in group]

        def report(words: str) -> None:
            if self._on_progress is not None:
                spent = (time.monotonic() - start_s) / self._options.budget_s
                self._on_progress(f"{words}, {ranks} ranks", min(1.0, spent))

        take = measure
        if self._mode is ValidationMode.RANK_SERIAL:
            take = partial(measure_serially, communication_s=[_exposed_s(run) for run in group])
        return take(
            candidates,
            trainer=self._trainer.name,
            device=self._machine.device,
            threads=self.threads(ranks),
            limits=limits,
            options=options,
            timeout_s=_TIMEOUT_S,
            on_step=report,
            on_samples=on_samples,
        )


def _exposed_s(run: PlannedRun) -> tuple[float, ...]:
    """Returns the predicted exposed communication of each rank, in seconds."""
    return tuple(rank.exposed_communication_s for rank in run.prediction.breakdown)


def _by_trial(
    group: Sequence[PlannedRun], measured: Sequence[Measurement]
) -> dict[int, Measurement]:
    """Returns measurements by trial number; those of the last runs may be missing."""
    return {run.record.number: one for run, one in zip(group, measured, strict=False)}
