"""Devices, links, networks and hosts as plain values in SI units."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from dse.machine._precision import PeakRates, Precision
    from dse.machine.fits import CollectiveCalibration, KernelCalibration, NetworkCalibration
    from dse.machine.host import HostProfile


@dataclass(frozen=True, slots=True)
class PowerSpec:
    """What bounds the arithmetic that a device sustains.

    Attributes:
        limit_w: Power that the device may take.
        operation_energy_j: Energy of one floating-point operation of a product in BF16 at the
            clock of the peak rate, with its share of everything else that takes power.
        rate_spread: Standard deviation of the logarithm of the rate that is sustained, common to
            all products of the device.
    """

    limit_w: float
    operation_energy_j: float
    rate_spread: float = 0.0


@dataclass(frozen=True, slots=True)
class DeviceSpec:
    """One accelerator (or one CPU socket used as one).

    Attributes:
        name: Marketing name, for example ``NVIDIA H100 SXM5 80 GB``.
        kind: ``gpu`` or ``cpu``.
        compute_units: Streaming multiprocessors, or cores on a CPU.
        peak: Arithmetic rates.
        memory_bytes: Capacity of the device memory.
        memory_bandwidth_bytes_per_s: Peak bandwidth of the device memory.
        l2_bytes: Size of the last-level cache.
        l2_bandwidth_bytes_per_s: Read bandwidth of the last-level cache.
        reserved_memory_bytes: Memory that a job cannot have: driver context, communicator
            buffers, allocator slack.
        kernel_floor_s: Duration of the smallest kernel.
        resident_warps_per_unit: Warps (or threads on a CPU) in flight on one compute unit.
        fp32_products_share: Share of the peak that large FP32 products reach, where it was
            measured.
        power: What bounds sustained arithmetic; None where nothing is known to.
        calibrations: What was learned from measured kernels.
    """

    name: str
    kind: str
    compute_units: int
    peak: PeakRates
    memory_bytes: float
    memory_bandwidth_bytes_per_s: float
    l2_bytes: float
    l2_bandwidth_bytes_per_s: float
    reserved_memory_bytes: float
    kernel_floor_s: float = 2.5e-6
    resident_warps_per_unit: int = 64
    fp32_products_share: float | None = None
    power: PowerSpec | None = None
    calibrations: tuple[KernelCalibration, ...] = field(default=(), repr=False)

    def calibration(
        self, op: str, precision: Precision | None = None, implementation: str = ""
    ) -> KernelCalibration | None:
        """Returns the calibration of an operator in a precision, or None.

        Args:
            op: Operator, by the names of `Platform.kernel_time`.
            precision: Arithmetic; None for any.
            implementation: Library whose kernels were measured; empty for the platform's first.
        """
        for calibration in self.calibrations:
            if (
                calibration.op == op
                and implementation in ("", calibration.implementation)
                and (
                    precision is None
                    or not calibration.precisions
                    or precision in calibration.precisions
                )
            ):
                return calibration
        return None

    @property
    def usable_memory_bytes(self) -> float:
        """Capacity less the reserved share."""
        return self.memory_bytes - self.reserved_memory_bytes


class LinkKind(StrEnum):
    """How the devices of one node, or pod, are wired."""

    NVSWITCH = "nvswitch"
    NVLINK_MESH = "nvlink_mesh"
    NVLINK_PAIRS = "nvlink_pairs"
    FULL_MESH = "full_mesh"
    PCIE = "pcie"
    SHARED_MEMORY = "shared_memory"

    @property
    def joins_all(self) -> bool:
        """Whether it joins devices to all others faster than through their host."""
        return self in (LinkKind.NVSWITCH, LinkKind.NVLINK_MESH, LinkKind.FULL_MESH)


@dataclass(frozen=True, slots=True)
class LinkSpec:
    """The interconnect between the devices of one node, or of one pod.

    Attributes:
        name: Name by which a search space or the command line chooses it.
        kind: Wiring.
        bandwidth_bytes_per_s: What one device can send (and at the same time receive).
        latency_s: Time of one hop, software included.
        pair_bandwidth_bytes_per_s: For ``nvlink_pairs``: bandwidth inside a pair; traffic that
            leaves the pair uses `bandwidth_bytes_per_s`. For ``full_mesh``: bandwidth to each of
            the other devices; `bandwidth_bytes_per_s` is that to all of them together.
        calibrations: What was learned from measured collectives, of all versions of the library.
        in_switch_share: For switches that add and multicast (NVLS): bytes a second of a large
            all-reduce's message, as a share of the bandwidth; None for those that do not.
        devices_per_switch: For ``pcie``: devices that share the way from their switch to the host
            bridge, which is as fast as that of one device.
        nccl: Version of the communication library whose measurements count; `newest` for the
            newest measured one.
        measured_on: The same link with the figures that its calibrations are of; None if these are
            they.
    """

    name: str
    kind: LinkKind
    bandwidth_bytes_per_s: float
    latency_s: float
    pair_bandwidth_bytes_per_s: float | None = None
    calibrations: tuple[CollectiveCalibration, ...] = field(default=(), repr=False)
    in_switch_share: float | None = None
    devices_per_switch: int = 1
    nccl: str = "newest"
    measured_on: LinkSpec | None = field(default=None, repr=False)


@dataclass(frozen=True, slots=True)
class NetworkSpec:
    """The network between nodes.

    Attributes:
        name: Name by which a search space or the command line chooses it.
        kind: ``infiniband``, ``ethernet``, ``efa`` or another label.
        nics_per_node: Network cards of one node.
        nic_bandwidth_bytes_per_s: Line rate of one card in one direction.
        latency_s: End-to-end latency of a small message between two nodes.
        calibrations: What was learned from collectives measured over several nodes, in order of
            preference.
        nodes_per_leaf: Nodes under the same leaf switches, which have the full bandwidth among one
            another; None for a network without bottlenecks between switches.
        oversubscription: Bandwidth of the nodes under a leaf over what leaves it, at least 1.
        spine_latency_s: Added to the latency of a message that leaves the leaf.
        rails: Whether card `i` of each of those nodes has a leaf switch of its own.
        in_network_reduction: Whether the switches add (SHARP).
    """

    name: str
    kind: str
    nics_per_node: int
    nic_bandwidth_bytes_per_s: float
    latency_s: float
    calibrations: tuple[NetworkCalibration, ...] = field(default=(), repr=False)
    nodes_per_leaf: int | None = None
    oversubscription: float = 1.0
    spine_latency_s: float = 0.0
    rails: bool = False
    in_network_reduction: bool = False

    @property
    def node_bandwidth_bytes_per_s(self) -> float:
        """What one node can send (and at the same time receive)."""
        return self.nics_per_node * self.nic_bandwidth_bytes_per_s


@dataclass(frozen=True, slots=True)
class HostLinkSpec:
    """The path between host memory and a device (PCIe, or NVLink-C2C).

    Attributes:
        bandwidth_bytes_per_s: In one direction.
        latency_s: Time before the first byte.
        devices: Devices of a node that share the path: those behind one PCIe switch, or of one
            superchip.
    """

    bandwidth_bytes_per_s: float
    latency_s: float
    devices: int = 1


@dataclass(frozen=True, slots=True)
class HostSpec:
    """Time the host spends to keep one device busy, by the five kinds of the TPDS'24 model.

    Attributes:
        between_operators_s: T1, from the end of one top-level operator to the next.
        before_launch_s: T2, from an operator's start to its first kernel launch.
        after_launch_s: T3, from an operator's last launch to its end.
        launch_s: T4, one launch call.
        between_launches_s: T5, between two launches inside one operator.
        graph_launch_s: One launch of a captured CUDA graph, which replaces all of the above.
        profile: What was measured from traces, if anything; its figures over all operators are
            those above.
    """

    between_operators_s: float
    before_launch_s: float
    after_launch_s: float
    launch_s: float
    between_launches_s: float
    graph_launch_s: float
    profile: HostProfile | None = field(default=None, repr=False)
