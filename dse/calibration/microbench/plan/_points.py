"""Points of a plan and their measurements."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from enum import StrEnum


class Purpose(StrEnum):
    """Use of a measurement: for fitting, or for checking the fit."""

    FIT = "fit"
    #: The value is the one in logs.
    HELD_OUT = "fresh"


#: Names and values of an operator's sizes, in the operator's own order.
Sizes = tuple[tuple[str, float], ...]


@dataclass(frozen=True, slots=True)
class KernelPoint:
    """One operator at one size.

    Attributes:
        op: Name of the operator, see :data:`dse.calibration.microbench.OPERATORS`.
        sizes: Names and values, in the operator's own order; integers except for ``alpha``.
        precision: A :class:`dse.machine.Precision` by its value.
        purpose: Fitting or checking.
    """

    op: str
    sizes: Sizes
    precision: str
    purpose: Purpose


@dataclass(frozen=True, slots=True)
class CollectivePoint:
    """One collective of one message size.

    Attributes:
        op: Name of the operation, see :data:`dse.calibration.microbench.COLLECTIVES`.
        ranks: Ranks that take part.
        size_bytes: Message size as nccl-tests counts it: for all-gather and reduce-scatter the
            total over ranks, otherwise the buffer of one rank.
        purpose: Fitting or checking.
    """

    op: str
    ranks: int
    size_bytes: int
    purpose: Purpose


# Without slots, so that measurements can inherit from a point as well.
@dataclass(frozen=True)
class Sample:
    """The time of one point.

    Attributes:
        time_s: Median time of one call over the repeats, in seconds.
        half_width_s: Half the width of the median's 95 % interval, in seconds.
        repeats: Number of samples.
    """

    time_s: float
    half_width_s: float
    repeats: int


@dataclass(frozen=True)
class KernelMeasurement(Sample, KernelPoint):
    """Measured time of one operator."""

    @property
    def point(self) -> KernelPoint:
        """The point that was measured."""
        return KernelPoint(self.op, self.sizes, self.precision, self.purpose)


@dataclass(frozen=True)
class CollectiveMeasurement(Sample, CollectivePoint):
    """Measured time of one collective, from its last rank's arrival to its last rank's end."""

    @property
    def point(self) -> CollectivePoint:
        """The point that was measured."""
        return CollectivePoint(self.op, self.ranks, self.size_bytes, self.purpose)


def measured(
    point: KernelPoint | CollectivePoint, sample: Sample
) -> KernelMeasurement | CollectiveMeasurement:
    """Returns a point with its time."""
    kind = KernelMeasurement if isinstance(point, KernelPoint) else CollectiveMeasurement
    return kind(**asdict(point), **asdict(sample))


@dataclass(frozen=True, slots=True)
class HostMeasurement:
    """Host time per operator and launch, by the fields of :class:`dse.machine.HostSpec`.

    :func:`dse.calibration.microbench.measure_host` defines each figure.

    Attributes:
        between_operators_s: T1, in seconds.
        before_launch_s: T2, in seconds.
        after_launch_s: T3, in seconds.
        launch_s: T4, in seconds.
        between_launches_s: T5, in seconds.
        graph_launch_s: One launch of a captured graph, in seconds; ``None`` where the device has
            no graphs.
        half_width_s: Largest half width of the medians that the figures are taken from, in
            seconds.
    """

    between_operators_s: float
    before_launch_s: float
    after_launch_s: float
    launch_s: float
    between_launches_s: float
    graph_launch_s: float | None
    half_width_s: float


@dataclass(frozen=True, slots=True)
class SkippedPoint:
    """A point that could not be measured.

    Attributes:
        point: The point, or ``None`` for the host overheads.
        reason: Why, in one line.
    """

    point: KernelPoint | CollectivePoint | None
    reason: str


@dataclass(frozen=True, slots=True)
class MachineInfo:
    """The machine that was measured.

    Attributes:
        device: ``cpu`` or ``cuda``.
        device_name: Marketing name of the processor or the GPU.
        device_count: GPUs of the machine; 1 for a CPU.
        compute_units: Streaming multiprocessors, or cores that this process may use.
        driver: Version of the GPU driver; empty for a CPU.
        cores: Cores that this process may use.
        memory_bytes: Memory of the device; of the machine for a CPU.
        last_level_cache_bytes: Last cache before the device's memory; 0 when unknown.
        operating_system: Kernel and architecture.
        libraries: Names and versions of what was measured with.
    """

    device: str
    device_name: str
    device_count: int
    compute_units: int
    driver: str
    cores: int
    memory_bytes: int
    last_level_cache_bytes: int
    operating_system: str
    libraries: tuple[tuple[str, str], ...]
