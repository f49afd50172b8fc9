"""What is recorded, of which steps."""

from __future__ import annotations

from dataclasses import dataclass

from dse.errors import ConfigError

#: Steps after the recording whose time is measured.
STEPS_AFTER = 5


@dataclass(frozen=True, slots=True)
class CaptureSettings:
    """What is recorded, of which steps; `skip`, then `warm_up`, then `steps` iterations.

    Attributes:
        steps: Recorded iterations.
        warm_up: Iterations ahead of them with the profiler on, whose events are thrown away.
        skip: Iterations ahead of these without the profiler. The first is left out, the time of
            the others is compared with that of recorded ones.
        shapes: Whether shapes and types of operators' inputs are recorded.
        stacks: Whether Python stacks are recorded; slow, and they name files of this machine.
        memory: Whether allocations are recorded.
        execution_trace: Whether a PyTorch execution trace is recorded beside the Kineto trace.

    Raises:
        ConfigError: A number is out of its range.
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
        """Number of iterations after which nothing is measured any more."""
        return self.end + 1 + STEPS_AFTER
