"""Host profile: measured overheads with their spread, per operator and per launch call."""

from __future__ import annotations

from dataclasses import dataclass, replace
import math
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from dse.machine import HostSpec

#: Figures of a host, as files name them: those of :class:`SharedFigures` that every platform has.
HOST_FIGURES = (
    "between_operators",
    "before_launch",
    "after_launch",
    "launch",
    "between_launches",
    "graph_launch",
)


@dataclass(frozen=True, slots=True)
class Figure:
    """One overhead.

    Attributes:
        mean_s: Mean without outliers, in seconds.
        spread: Standard deviation of the logarithm of one occurrence: that of the log-normal
            distribution with the same mean and variance.
        count: Occurrences behind it, outliers included.
    """

    mean_s: float
    spread: float
    count: int

    @property
    def variance_s2(self) -> float:
        """Variance of one occurrence in s²."""
        return self.mean_s**2 * math.expm1(min(self.spread, _MAX_SPREAD) ** 2)


#: Beyond this the variance of a log-normal distribution is meaningless and soon overflows.
_MAX_SPREAD = 10.0


def spread_of(mean: float, variance: float) -> float:
    """Returns the spread of the log-normal distribution with a mean and a variance."""
    return math.sqrt(math.log1p(variance / mean**2)) if mean > 0 else 0.0


@dataclass(frozen=True, slots=True)
class SharedFigures:
    """Overheads over all operators; None where the traces hold no sample.

    Attributes:
        between_operators: T1, between two consecutive top-level operators of a thread.
        before_launch: T2, from a top-level operator's start to its first launch.
        after_launch: T3, from its last launch to its end.
        launch: T4, one call that launches a kernel.
        between_launches: T5, between two launches inside one top-level operator.
        graph_launch: One launch of a captured graph.
        without_launches: Whole time of a top-level operator that launches nothing.
    """

    between_operators: Figure | None = None
    before_launch: Figure | None = None
    after_launch: Figure | None = None
    launch: Figure | None = None
    between_launches: Figure | None = None
    graph_launch: Figure | None = None
    without_launches: Figure | None = None


@dataclass(frozen=True, slots=True)
class OperatorFigures:
    """Overheads of the top-level operators of one name.

    Attributes:
        name: Name in the traces, without autograd's prefix.
        calls: Calls that launched something.
        launches: Mean launches of such a call.
        before_launch: T2.
        after_launch: T3.
        between_launches: T5.
        without_launches: Whole time of a call that launches nothing.
    """

    name: str
    calls: int
    launches: float
    before_launch: Figure | None = None
    after_launch: Figure | None = None
    between_launches: Figure | None = None
    without_launches: Figure | None = None


@dataclass(frozen=True, slots=True)
class LaunchFigures:
    """T4 of one function of the runtime, for example `cudaLaunchKernel`."""

    function: str
    duration: Figure


@dataclass(frozen=True, slots=True)
class ProfileSource:
    """Origin of a profile.

    Attributes:
        files: Traces as given by the user.
        devices: Names of their devices.
        as_of: Date of the last trace (ISO), or `unknown`.
    """

    files: tuple[str, ...]
    devices: tuple[str, ...]
    as_of: str = "unknown"


@dataclass(frozen=True, slots=True)
class HostProfile:
    """Host overheads of a machine and program.

    Attributes:
        name: Name in reports.
        source: Origin.
        shared: Figures over all operators.
        operators: Figures by operator, in order of name.
        launches: Figures by function of the runtime, in order of name.
    """

    name: str
    source: ProfileSource
    shared: SharedFigures
    operators: tuple[OperatorFigures, ...] = ()
    launches: tuple[LaunchFigures, ...] = ()

    def launch(self, function: str) -> Figure | None:
        """Returns T4 of a function of the runtime, or None."""
        return next(
            (known.duration for known in self.launches if known.function == function), None
        )

    def host_spec(self, base: HostSpec) -> HostSpec:
        """Returns the host of a machine with this profile.

        Args:
            base: Used where the profile has no figure.
        """
        found: dict[str, Any] = {
            f"{name}_s": figure.mean_s
            for name in HOST_FIGURES
            if (figure := getattr(self.shared, name)) is not None
        }
        return replace(base, profile=self, **found)
