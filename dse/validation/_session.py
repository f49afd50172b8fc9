"""Measuring the planned runs of a study, and keeping what there is at an interrupt."""

from __future__ import annotations

from dataclasses import replace
import time
from typing import TYPE_CHECKING

from dse.calibration.microbench import default_threads
from dse.search import ValidationMode
from dse.validation._measure import measure
from dse.validation._measure_serial import measure_serially
from dse.validation._types import TrainerOptions

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from dse.calibration.microbench import MachineInfo
    from dse.machine.platforms import Platform
    from dse.validation._options import ValidateOptions
    from dse.validation._plan_runs import PlannedRun
    from dse.validation._types import Measurement

#: Seconds for ranks to start, and for one set-up or sample.
_TIMEOUT_S = 300.0

#: From this share of a sample on, one iteration is warm-up enough.
_LONG_SHARE = 0.5

#: Different batches that take turns.
_BATCHES = 4


class Session:
    """Measures runs, those of one number of ranks together.

    Args:
        machine: Where.
        mode: How.
        options: For how long.
        platform: Platform of the predictions.
        on_progress: Called after each round with a word for it and the share of time used.

    Attributes:
        interrupted: Whether an interrupt came before the end.
    """

    def __init__(
        self,
        machine: MachineInfo,
        mode: ValidationMode,
        options: ValidateOptions,
        platform: Platform,
        on_progress: Callable[[str, float], None] | None,
    ) -> None:
        self._machine, self._mode, self._options = machine, mode, options
        self._platform, self._on_progress = platform, on_progress
        self.interrupted = False

    def threads(self, world_size: int) -> int:
        """Returns the threads of a rank: as many as the platform was measured with, if there."""
        ranks = 1 if self._mode is ValidationMode.RANK_SERIAL else world_size
        share = default_threads(self._machine.cores, ranks)
        if self._machine.device == "cpu":
            return min(share, self._platform.device.compute_units)
        return share

    def measure(self, runs: Sequence[PlannedRun]) -> dict[int, Measurement]:
        """Returns what was measured by trial; without those that an interrupt left out.

        Raises:
            KeyboardInterrupt: It came before the first round.
        """
        groups: dict[int, list[PlannedRun]] = {}
        for run in runs:
            groups.setdefault(run.candidate.configuration.world_size, []).append(run)
        found: dict[int, Measurement] = {}
        start_s, used = time.monotonic(), 0
        for ranks, group in sorted(groups.items()):
            if self._on_progress is not None:
                word = "rank" if ranks == 1 else "ranks"
                share = min(1.0, (time.monotonic() - start_s) / self._options.budget_s)
                self._on_progress(f"starting {ranks} {word}, {len(group)} candidates", share)
            left_s = self._options.budget_s - (time.monotonic() - start_s)
            budget_s = max(0.0, left_s) * len(group) / (len(runs) - used)
            used += len(group)
            latest: list[tuple[Measurement, ...]] = []
            try:
                found.update(self._group(ranks, group, budget_s, start_s, latest))
            except KeyboardInterrupt:
                if latest:
                    found.update(_by_trial(group, latest[-1]))
                if not found:
                    raise
                self.interrupted = True
                break
        return found

    def _group(
        self,
        ranks: int,
        group: list[PlannedRun],
        budget_s: float,
        start_s: float,
        latest: list[tuple[Measurement, ...]],
    ) -> dict[int, Measurement]:
        limits = replace(self._options.limits, budget_s=budget_s)
        quickest_s = min(run.prediction.iteration_time_s for run in group)
        if quickest_s > _LONG_SHARE * limits.sample_s:
            limits = replace(limits, warm_up=min(1, limits.warm_up))
        options = TrainerOptions(seed=self._options.seed, batches=_BATCHES)
        candidates = [run.candidate for run in group]

        def tell(done: int, _: float) -> None:
            if self._on_progress is not None:
                share = (time.monotonic() - start_s) / self._options.budget_s
                self._on_progress(f"round {done}, {ranks} ranks", min(1.0, share))

        if self._mode is ValidationMode.RANK_SERIAL:
            answer = measure_serially(
                candidates,
                [_exposed_s(run) for run in group],
                device=self._machine.device,
                threads=self.threads(ranks),
                limits=limits,
                options=options,
                timeout_s=_TIMEOUT_S,
                on_round=tell,
                on_samples=latest.append,
            )
        else:
            answer = measure(
                candidates,
                device=self._machine.device,
                threads=self.threads(ranks),
                limits=limits,
                options=options,
                timeout_s=_TIMEOUT_S,
                on_round=tell,
                on_samples=latest.append,
            )
        return _by_trial(group, answer)


def _exposed_s(run: PlannedRun) -> tuple[float, ...]:
    """Predicted time of each rank with nothing but a collective running, in seconds."""
    return tuple(one.exposed_communication_s for one in run.prediction.breakdown)


def _by_trial(
    group: Sequence[PlannedRun], measured: Sequence[Measurement]
) -> dict[int, Measurement]:
    """Measurements by their trials; those of the last runs may be missing."""
    return {run.record.number: one for run, one in zip(group, measured, strict=False)}
