"""Points that are measured, and what measuring them yields."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class Purpose(StrEnum):
    """What a measurement may be used for: fitting, or checking a fit that has not seen it."""

    FIT = "fit"
    FRESH = "fresh"


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


@dataclass(frozen=True, slots=True)
class Sample:
    """The time of one point.

    Attributes:
        time_s: Median over the repeats, in seconds.
        half_width_s: Half the width of the median's 95 % interval, in seconds.
        repeats: Number of samples.
    """

    time_s: float
    half_width_s: float
    repeats: int


@dataclass(frozen=True, slots=True)
class KernelMeasurement:
    """Measured time of one operator.

    Attributes:
        op: Name of the operator.
        sizes: Names and values, in the operator's own order.
        precision: A :class:`dse.machine.Precision` by its value.
        time_s: Median time of one call, in seconds.
        half_width_s: Half the width of the median's 95 % interval, in seconds.
        repeats: Number of samples.
        purpose: Fitting or checking.
    """

    op: str
    sizes: Sizes
    precision: str
    time_s: float
    half_width_s: float
    repeats: int
    purpose: Purpose


@dataclass(frozen=True, slots=True)
class CollectiveMeasurement:
    """Measured time of one collective, from the arrival of its last rank to the end of its last.

    Attributes:
        op: Name of the operation.
        ranks: Ranks that took part, all on this machine.
        size_bytes: Message size as nccl-tests counts it.
        time_s: Median time of one call, in seconds.
        half_width_s: Half the width of the median's 95 % interval, in seconds.
        repeats: Number of samples.
        purpose: Fitting or checking.
    """

    op: str
    ranks: int
    size_bytes: int
    time_s: float
    half_width_s: float
    repeats: int
    purpose: Purpose


@dataclass(frozen=True, slots=True)
class HostMeasurement:
    """Host time per operator and launch, by the fields of :class:`dse.machine.HostSpec`.

    :func:`dse.calibration.microbench.measure_host` says what each figure is taken from.

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
