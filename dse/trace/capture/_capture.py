"""`with capture(…)` around a loop."""

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

    from dse.trace.capture._record import CaptureRecord

_Batch = TypeVar("_Batch")
_DEFAULT = CaptureSettings()


class CaptureWarning(UserWarning):
    """A capture that holds less than was asked for."""


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

    Iterations are counted by, in this order:

    1. `for batch in capture.steps(loader)`: each batch is an iteration;
    2. `capture.step()` at the end of an iteration. Steps of an optimizer ahead of the first such
       call belong to the first iteration;
    3. steps of the first optimizer object that steps inside the block, if neither is used. Other
       optimizers do not count, so what follows the first one in an iteration is recorded with the
       next.

    Files are written as soon as the last iteration is recorded, or when the block is left; then
    the loop goes on at full speed. A block that is left early, by an exception or not, keeps the
    iterations that were recorded, with a :class:`CaptureWarning`.

    Args:
        directory: Folder of the files; one may serve all ranks.
        steps: Recorded iterations.
        warm_up: Iterations ahead of them with the profiler on, whose events are thrown away.
        skip: Iterations ahead of these without the profiler.
        shapes: Whether shapes and types of operators' inputs are recorded.
        stacks: Whether Python stacks are recorded.
        memory: Whether allocations are recorded.
        execution_trace: Whether a PyTorch execution trace is recorded as well.
        rank: Rank of this process; that of `torch.distributed`, else `RANK`, else 0 by default.
        overwrite: Whether files of the rank may be replaced.

    Returns:
        A context manager.

    Raises:
        ConfigError: A number is out of its range.

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
    """A recording of the loop inside a `with` block; made by :func:`capture`."""

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
        """What was written; None until then."""
        return self._session.record

    def __enter__(self) -> Capture:
        """Begins the first iteration.

        Raises:
            ConfigError: This process is being captured already, the rank has files in the folder,
                or the capture was used before.
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
        """Writes what was recorded; an exception of the loop goes on.

        Raises:
            ConfigError: The loop ended by itself before an iteration was recorded.
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
        """Says that an iteration has ended.

        Raises:
            ConfigError: Called outside the block or beside :meth:`steps`, or after an optimizer
                stepped so often that the profiler is on.
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
            batches: What the loop goes over.

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
        """Counts by `what` from now on; says whether an optimizer's step was counted instead."""
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
