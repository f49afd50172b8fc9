"""Recording of one process, from iteration to iteration, and the iterations' times."""

from __future__ import annotations

from dataclasses import replace
import os
import platform
import time
from typing import TYPE_CHECKING, Any

from dse import __version__
from dse._torch import load_torch
from dse.errors import ConfigError
from dse.trace.capture._files import (
    CaptureRecord,
    execution_trace_name,
    kineto_name,
    record_name,
    write_record,
)
from dse.trace.capture._profiler import Profiler, RankInfo, device_name, drain, pack, rank_info

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from pathlib import Path

    from dse.trace.capture._settings import CaptureSettings


class StepTimes:
    """Times of iterations, without the capture's work between them.

    Args:
        settings: Which iterations are recorded.
        clock: Returns the time in seconds.
    """

    def __init__(
        self, settings: CaptureSettings, clock: Callable[[], float] = time.perf_counter
    ) -> None:
        self._settings = settings
        self._clock = clock
        self._began: dict[int, float] = {}
        self._took_s: dict[int, float] = {}

    def begin(self, step: int) -> None:
        """Begins iteration `step`, after all work between iterations."""
        self._began[step] = self._clock()

    def end(self, step: int) -> None:
        """Ends iteration `step`."""
        if step in self._began:
            self._took_s[step] = self._clock() - self._began[step]

    def forget(self) -> None:
        """Forgets all iterations."""
        self._began.clear()
        self._took_s.clear()

    @property
    def profiled_s(self) -> float | None:
        """Mean time of recorded iterations in seconds."""
        return self._mean_s(range(self._settings.first, self._settings.end))

    @property
    def unprofiled_s(self) -> float | None:
        """Mean time of iterations without the profiler in seconds, or None without any.

        The very first iteration and the first after the recording do not count: they do extra
        work, or wait for ranks that still write.
        """
        return self._mean_s(
            (
                *range(1, self._settings.skip),
                *range(self._settings.end + 1, self._settings.last_timed),
            )
        )

    def drains(self, step: int) -> bool:
        """Returns whether devices must be idle between iteration `step - 1` and `step`.

        True at the borders of measured stretches; in between, devices run behind their hosts as
        they do without a capture.
        """
        plan = self._settings
        return step in (1, plan.skip, plan.first, plan.end, plan.end + 1, plan.last_timed)

    def _mean_s(self, steps: Iterable[int]) -> float | None:
        took_s = [self._took_s[step] for step in steps if step in self._took_s]
        return sum(took_s) / len(took_s) if took_s else None


#: PyTorch has one profiler per process.
_recording: list[Session] = []


class Session:
    """Records some iterations of this process and writes the files of its rank.

    Args:
        directory: Folder of the files.
        settings: What to record.
        rank: Rank given by the user.
        overwrite: Whether files of the rank may be replaced.
        warn: Called with a message if less was recorded than requested.
        ahead: Iterations that ended before the session's first one.
    """

    def __init__(
        self,
        directory: Path,
        settings: CaptureSettings,
        *,
        rank: int | None,
        overwrite: bool,
        warn: Callable[[str], None],
        ahead: int = 0,
    ) -> None:
        self.counted_by = "optimizer"
        self.ended = 0
        self.record: CaptureRecord | None = None
        self._directory = directory
        self._settings = settings
        self._rank = rank
        self._overwrite = overwrite
        self._warn = warn
        self._ahead = ahead
        self._torch: Any = None
        self._info = RankInfo(0, 0)
        self._times = StepTimes(settings)
        self._profiler: Profiler | None = None
        self._process = os.getpid()

    @property
    def finished(self) -> bool:
        """Whether everything is recorded and measured."""
        return self.record is not None and self.ended >= self._settings.last_timed

    def open(self) -> None:
        """Begins iteration 0.

        Raises:
            ConfigError: This process is being recorded already, or the rank has files.
            OptionalDependencyError: torch is not installed.
        """
        self._torch = load_torch()
        if any(other._process == os.getpid() for other in _recording):
            raise ConfigError(
                "this process is being captured already; use either `dse trace capture` or one "
                "`dse.capture` at a time"
            )
        self._refuse_files(rank_info(self._torch, self._rank).rank)
        self._process = os.getpid()
        self._profiler = Profiler(self._torch, self._settings)
        _recording[:] = [self]
        self._profiler.start()
        self._name_rank(self._profiler)
        self._times.begin(0)

    def end_step(self) -> None:
        """Ends an iteration.

        Raises:
            ConfigError: The given rank is wrong, or another process has written its files.
            StudyError: The folder cannot be written.
        """
        if self.finished or os.getpid() != self._process:
            return
        self.ended += 1
        if self._times.drains(self.ended):
            drain(self._torch)
        self._times.end(self.ended - 1)
        if self._profiler is not None:
            self._profiler.advance(self.ended)
            self._name_rank(self._profiler)
            if self.ended == self._settings.end:
                self._write()
        elif self.record is not None and self.ended == self._settings.last_timed:
            self._add_times(self.record)
        self._times.begin(self.ended)

    def rewind(self, ended: int) -> None:
        """Sets the number of ended iterations back to `ended`.

        Raises:
            ConfigError: The profiler is on already; its recording is discarded.
        """
        if self.ended <= ended:
            return
        if self.ended >= self._settings.skip or self._profiler is None:
            self._leave(keep=False)
            raise ConfigError(
                f"an optimizer stepped {self.ended} times before iterations were counted, but "
                f"skip={self._settings.skip}; loop over `capture.steps(…)`, or raise `skip` "
                f"above {self.ended}"
            )
        self.ended = ended
        self._times.forget()
        self._profiler.rewind(ended)

    def close(self, *, failed: bool) -> None:
        """Writes what was recorded when the loop ends.

        Args:
            failed: Whether an exception ended the loop.

        Raises:
            ConfigError: The loop ended without an exception before an iteration was recorded.
            StudyError: The folder cannot be written.
        """
        if self._torch is None or os.getpid() != self._process:
            return
        if self._profiler is None:
            if self.record is not None and not self.finished:
                self._add_times(self.record)
            return
        on = self.ended >= self._settings.first
        whole = max(0, self.ended - self._settings.first)
        if whole or (failed and on):
            self._write()
            self._warn(
                f"{whole} of {self._settings.steps} steps were recorded before the loop ended; "
                "the traces hold these"
            )
            return
        self._leave(keep=False)
        if not failed:
            raise ConfigError(
                f"no step was recorded: the loop ended after {self.ended + self._ahead} of the "
                f"{self._settings.end + self._ahead} iterations needed ({self._needs()}); run "
                "more iterations or lower these"
            )

    def _name_rank(self, profiler: Profiler) -> None:
        if self.ended != self._settings.first:
            return
        try:
            # The process group may be gone later.
            self._info = rank_info(self._torch, self._rank)
        except ConfigError:
            self._leave(keep=False)
            raise
        profiler.name_rank(self._info)

    def _needs(self) -> str:
        plan = self._settings
        ahead = f"the first {self._ahead}, " if self._ahead else ""
        return f"{ahead}skip {plan.skip}, warm-up {plan.warm_up}, {plan.steps} steps"

    def _refuse_files(self, rank: int) -> None:
        found = self._directory / kineto_name(rank)
        if not self._overwrite and found.exists():
            raise ConfigError(
                f"{found} exists; choose another folder, or allow overwriting. If another process "
                "of this run wrote it, set RANK or `rank` per process"
            )

    def _leave(self, *, keep: bool) -> None:
        try:
            if self._profiler is not None:
                self._profiler.stop(keep=keep)
        finally:
            if self._profiler is not None and not keep:
                self._profiler.discard()
                self._profiler = None
            _recording.clear()

    def _write(self) -> None:
        settings, profiler = self._settings, self._profiler
        assert profiler is not None
        self._leave(keep=True)
        try:
            info = self._info
            self._refuse_files(info.rank)
            cut = None if self.ended >= settings.end else self.ended
            kineto = self._directory / kineto_name(info.rank)
            # A record must only exist with all its files.
            (self._directory / record_name(info.rank)).unlink(missing_ok=True)
            files = [pack(profiler.kineto, kineto, cut)]
            if profiler.execution_trace is not None:
                trace = self._directory / execution_trace_name(info.rank)
                files.append(pack(profiler.execution_trace, trace, cut))
            elif settings.execution_trace:
                self._warn("no execution trace: another observer runs in this process")
        finally:
            profiler.discard()
            self._profiler = None
        torch = self._torch
        record = CaptureRecord(
            rank=info.rank,
            world_size=info.world_size,
            backend=info.backend,
            host=platform.node(),
            device=device_name(torch),
            dse=__version__,
            python=platform.python_version(),
            torch=str(torch.__version__),
            cuda=str(torch.version.cuda or ""),
            settings=settings,
            counted_by=self.counted_by,
            steps=tuple(range(settings.first, min(self.ended, settings.end))),
            complete=cut is None,
            step_s_profiled=None,
            step_s_unprofiled=None,
            files=tuple(files),
        )
        self._add_times(record)

    def _add_times(self, record: CaptureRecord) -> None:
        self.record = replace(
            record,
            step_s_profiled=self._times.profiled_s,
            step_s_unprofiled=self._times.unprofiled_s,
        )
        write_record(self._directory, self.record)
