"""Capture of a training loop: `with capture(…)`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, TypeVar
import warnings

from dse.errors import ConfigError, DseError
from dse.trace.capture._optimizers import OptimizerSteps
from dse.trace.capture._session import Session
from dse.trace.capture._settings import CaptureSettings

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from types import TracebackType

    from dse.trace.capture._files import CaptureRecord

_Batch = TypeVar("_Batch")
_DEFAULT = CaptureSettings()


class CaptureWarning(UserWarning):
    """A capture recorded less than requested."""


def capture(
    directory: str | Path,
    *,
    steps: int = _DEFAULT.steps,
    warm_up: int = _DEFAULT.warm_up,
    skip: int = _DEFAULT.skip,
    shapes: bool = _DEFAULT.shapes,
    stacks: bool = _DEFAULT.stacks,
    memory: bool = _DEFAULT.memory,
    execution_trace: bool = _DEFAULT.execution_trace,
    rank: int | None = None,
    overwrite: bool = False,
) -> Capture:
    """Records some iterations of the loop inside a `with` block, on every rank that enters it.

    Iterations are counted by the first of these that is used:

    1. `for batch in capture.steps(loader)`: each batch is an iteration;
    2. `capture.step()` at the end of an iteration. Steps of an optimizer before the first such
       call belong to the first iteration;
    3. steps of the first optimizer object that steps inside the block. Other optimizers do not
       count, so what follows the first one in an iteration is recorded with the next.

    Files are written as soon as the last iteration is recorded, or when the block ends; the loop
    then continues at full speed. A block that ends early, by an exception or not, keeps the
    recorded iterations, with a :class:`CaptureWarning`.

    Args:
        directory: Folder of the files; all ranks may share one.
        steps: Recorded iterations.
        warm_up: Iterations before them with the profiler on, whose events are discarded.
        skip: Iterations before these without the profiler.
        shapes: Whether to record shapes and types of operators' inputs.
        stacks: Whether to record Python stacks.
        memory: Whether to record allocations.
        execution_trace: Whether to record a PyTorch execution trace as well.
        rank: Rank of this process; by default that of `torch.distributed`, else `RANK`, else 0.
        overwrite: Whether files of the rank may be replaced.

    Returns:
        A context manager.

    Raises:
        ConfigError: A number is out of range.

    Example:
        >>> with dse.capture("traces") as capture:  # doctest: +SKIP
        ...     for batch in capture.steps(loader):
        ...         train(batch)
    """
    settings = CaptureSettings(
        steps=steps,
        warm_up=warm_up,
        skip=skip,
        shapes=shapes,
        stacks=stacks,
        memory=memory,
        execution_trace=execution_trace,
    )
    return Capture(Path(directory), settings, rank=rank, overwrite=overwrite)


class Capture:
    """Recording of the loop inside a `with` block; created by :func:`capture`."""

    def __init__(
        self, directory: Path, settings: CaptureSettings, *, rank: int | None, overwrite: bool
    ) -> None:
        self._session = Session(
            directory, settings, rank=rank, overwrite=overwrite, warn=_warn_user
        )
        self._optimizers: OptimizerSteps | None = None
        self._entered = False
        self._iterating = False

    @property
    def record(self) -> CaptureRecord | None:
        """Record of the written files; None before."""
        return self._session.record

    def __enter__(self) -> Capture:
        """Begins the first iteration.

        Raises:
            ConfigError: This process is being captured already, the folder holds files of the
                rank, or the capture was used before.
            OptionalDependencyError: torch is not installed.
        """
        if self._entered:
            raise ConfigError("a capture records once; call `dse.capture` again")
        self._session.open()
        self._entered = True
        self._optimizers = OptimizerSteps(self._session.end_step)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Writes what was recorded; an exception of the loop propagates.

        Raises:
            ConfigError: The loop ended without an exception before an iteration was recorded.
            StudyError: The folder cannot be written.
        """
        self._stop_counting_optimizers()
        try:
            self._session.close(failed=error is not None)
        except DseError as problem:
            if error is None:
                raise
            # The loop's own exception matters more.
            _warn_user(str(problem))

    def step(self) -> None:
        """Ends an iteration.

        Raises:
            ConfigError: Called outside the block or together with :meth:`steps`, or after an
                optimizer stepped so often that the profiler is on.
            StudyError: The folder cannot be written.
        """
        self._refuse_outside("step()")
        if self._iterating:
            raise ConfigError("`capture.steps(…)` counts iterations already; leave `step()` out")
        if self._count_by("step", ended=1):
            # The optimizer's step inside this first iteration has been counted.
            return
        self._session.end_step()

    def steps(self, batches: Iterable[_Batch]) -> Iterator[_Batch]:
        """Yields the batches and counts an iteration for each.

        An iteration that a `break` leaves does not count.

        Args:
            batches: The batches of the loop.

        Raises:
            ConfigError: Used outside the block, or after an optimizer stepped so often that the
                profiler is on.
            StudyError: The folder cannot be written.
        """
        self._refuse_outside("steps()")
        self._count_by("steps", ended=0)
        self._iterating = True
        try:
            for batch in batches:
                yield batch
                self._session.end_step()
        finally:
            self._iterating = False

    def _refuse_outside(self, what: str) -> None:
        if not self._entered:
            raise ConfigError(f"`{what}` outside of `with dse.capture(…) as capture`")

    def _count_by(self, what: str, ended: int) -> bool:
        """Counts by `what` from now on; returns whether an optimizer's step was counted."""
        if self._session.counted_by != "optimizer":
            return False
        self._stop_counting_optimizers()
        counted = self._session.ended > 0
        self._session.rewind(ended)
        self._session.counted_by = what
        return counted

    def _stop_counting_optimizers(self) -> None:
        if self._optimizers is not None:
            self._optimizers.stop()
            self._optimizers = None


def _warn_user(message: str) -> None:
    warnings.warn(message, CaptureWarning, stacklevel=4)
