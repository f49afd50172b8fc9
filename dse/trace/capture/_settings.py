"""Settings of a capture: what to record, of which iterations."""

from __future__ import annotations

from dataclasses import dataclass

from dse.errors import ConfigError

#: Iterations after the recording whose time is measured.
STEPS_AFTER = 5


@dataclass(frozen=True, slots=True)
class CaptureSettings:
    """What to record, of which iterations: `skip`, then `warm_up`, then `steps`.

    Attributes:
        steps: Recorded iterations.
        warm_up: Iterations before them with the profiler on, whose events are discarded.
        skip: Iterations before these without the profiler. All but the first are timed, to compare
            with recorded ones.
        shapes: Whether to record shapes and types of operators' inputs.
        stacks: Whether to record Python stacks; slow, and they name files of this machine.
        memory: Whether to record allocations.
        execution_trace: Whether to record a PyTorch execution trace as well.

    Raises:
        ConfigError: A number is out of range.
    """

    steps: int = 3
    warm_up: int = 2
    skip: int = 3
    shapes: bool = True
    stacks: bool = False
    memory: bool = False
    execution_trace: bool = True

    def __post_init__(self) -> None:
        for name, least in (("steps", 1), ("warm_up", 0), ("skip", 0)):
            value = getattr(self, name)
            if not isinstance(value, int) or isinstance(value, bool) or value < least:
                raise ConfigError(f"{name}={value!r}: expected a whole number from {least}")

    @property
    def first(self) -> int:
        """Number of the first recorded iteration, from 0."""
        return self.skip + self.warm_up

    @property
    def end(self) -> int:
        """Number of iterations after which everything is recorded."""
        return self.first + self.steps

    @property
    def last_timed(self) -> int:
        """Number of iterations after which nothing more is measured."""
        return self.end + 1 + STEPS_AFTER
