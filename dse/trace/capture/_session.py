"""One recording in one process, from iteration to iteration, whoever counts them."""

from __future__ import annotations

from dataclasses import replace
import os
import platform
from typing import TYPE_CHECKING, Any

from dse import __version__
from dse.errors import ConfigError
from dse.trace.capture._pack import pack
from dse.trace.capture._profiler import Profiler
from dse.trace.capture._record import (
    CaptureRecord,
    execution_trace_name,
    kineto_name,
    record_name,
    write_record,
)
from dse.trace.capture._times import StepTimes
from dse.trace.capture._torch import RankInfo, device_name, drain, load_torch, rank_info

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from dse.trace.capture._settings import CaptureSettings

#: PyTorch has one profiler a process.
_recording: list[Session] = []


class Session:
    """Records some iterations of this process and writes the files of its rank.

    Args:
        directory: Folder of the files.
        settings: What is recorded.
        rank: Rank that the user gave.
        overwrite: Whether files of the rank may be replaced.
        warn: What is told that less was recorded than asked for.
        ahead: Iterations that ended before the first one here began.
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
        self._of = RankInfo(0, 0)
        self._times = StepTimes(settings)
        self._profiler: Profiler | None = None
        self._process = os.getpid()

    @property
    def finished(self) -> bool:
        """Whether everything is recorded and measured."""
        return self.record is not None and self.ended >= self._settings.last_timed

    def open(self) -> None:
        """Iteration 0 begins.

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
        """An iteration has ended.

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
        """So many iterations have ended, whatever was counted before.

        Raises:
            ConfigError: The profiler is on already; what it recorded is thrown away.
        """
        if self.ended <= ended:
            return
        if self.ended >= self._settings.skip or self._profiler is None:
            self._leave(keep=False)
            raise ConfigError(
                f"an optimizer stepped {self.ended} times before iterations were counted, and "
                f"skip={self._settings.skip} of these were waited for; go over the batches with "
                f"`capture.steps(…)`, or raise `skip` over {self.ended}"
            )
        self.ended = ended
        self._times.forget()
        self._profiler.rewind(ended)

    def close(self, *, failed: bool) -> None:
        """The loop is over; what was recorded by then is written.

        Args:
            failed: Whether an exception ended the loop.

        Raises:
            ConfigError: The loop ended by itself, and no iteration was recorded to its end.
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
            # Later on, the process group may be gone.
            self._of = rank_info(self._torch, self._rank)
        except ConfigError:
            self._leave(keep=False)
            raise
        profiler.name_rank(self._of)

    def _needs(self) -> str:
        of = self._settings
        ahead = f"the first {self._ahead}, " if self._ahead else ""
        return f"{ahead}skip {of.skip}, warm-up {of.warm_up}, {of.steps} steps"

    def _refuse_files(self, rank: int) -> None:
        found = self._directory / kineto_name(rank)
        if not self._overwrite and found.exists():
            raise ConfigError(
                f"{found} exists; choose another folder or allow to overwrite it. If another "
                "process of this run wrote it, tell ranks apart by RANK or `rank`"
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
            of = self._of
            self._refuse_files(of.rank)
            cut = None if self.ended >= settings.end else self.ended
            kineto = self._directory / kineto_name(of.rank)
            # A record stands for files that are all there.
            (self._directory / record_name(of.rank)).unlink(missing_ok=True)
            files = [pack(profiler.kineto, kineto, cut)]
            if profiler.execution_trace is not None:
                trace = self._directory / execution_trace_name(of.rank)
                files.append(pack(profiler.execution_trace, trace, cut))
            elif settings.execution_trace:
                self._warn("no execution trace: another observer runs in this process")
        finally:
            profiler.discard()
            self._profiler = None
        torch = self._torch
        record = CaptureRecord(
            rank=of.rank,
            world_size=of.world_size,
            backend=of.backend,
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
