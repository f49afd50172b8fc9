"""Hardware of a cluster as plain values in SI units."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
import math
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from dse.machine.fits import CollectiveCalibration, KernelCalibration, NetworkCalibration


class Precision(StrEnum):
    """Arithmetic of the dense part: the rate of matrix multiplications and the bytes of values.

    ``fp16`` and ``bf16`` mean mixed precision: activations and gradients in two bytes, master
    weights in four. ``tf32`` keeps four-byte values and uses tensor cores. The others are mixed
    precision with ``bf16`` in which operands of products are cast to fewer bits, each block of
    values with a scale factor: ``fp8`` has one factor a tensor (E4M3, and E5M2 for gradients),
    ``fp8_block`` one of four bytes for 128 values, ``mxfp8`` one of one byte for 32 values, and
    ``nvfp4`` one of one byte for 16 values of half a byte.
    """

    FP32 = "fp32"
    TF32 = "tf32"
    FP16 = "fp16"
    BF16 = "bf16"
    FP8 = "fp8"
    FP8_BLOCK = "fp8_block"
    MXFP8 = "mxfp8"
    NVFP4 = "nvfp4"

    @property
    def value_bytes(self) -> int:
        """Bytes of one activation or gradient value outside of products."""
        return 4 if self in (Precision.FP32, Precision.TF32) else 2

    @property
    def is_low(self) -> bool:
        """Whether operands of products have fewer bits than other values."""
        return self in _SCALED_BYTES

    @property
    def operand_bytes(self) -> float:
        """Bytes of one operand value of a product, with its share of a scale factor."""
        return _SCALED_BYTES.get(self, float(self.value_bytes))

    @property
    def outside_products(self) -> Precision:
        """Precision of everything but products: ``bf16`` if operands have fewer bits."""
        return Precision.BF16 if self.is_low else self


#: Bytes of an operand value of low precision and of its share of a scale factor.
_SCALED_BYTES = {
    Precision.FP8: 1.0,
    Precision.FP8_BLOCK: 1.0 + 4 / 128,
    Precision.MXFP8: 1.0 + 1 / 32,
    Precision.NVFP4: 0.5 + 1 / 16,
}


@dataclass(frozen=True, slots=True)
class PeakRates:
    """Dense peak arithmetic rate per precision, without structured sparsity, in FLOP/s.

    A precision that the device lacks falls back to the next wider one it has, as the libraries do
    (those below two bytes to ``bf16``, others to ``fp32``); :meth:`has` tells.
    """

    fp32_flops_per_s: float
    tf32_flops_per_s: float | None = None
    fp16_flops_per_s: float | None = None
    bf16_flops_per_s: float | None = None
    fp8_flops_per_s: float | None = None
    mxfp8_flops_per_s: float | None = None
    nvfp4_flops_per_s: float | None = None

    def of(self, precision: Precision) -> float:
        """Returns the peak rate in FLOP/s used for `precision` on this device."""
        own = self._own(precision)
        if own is None and precision.is_low:
            own = self.bf16_flops_per_s
        return own if own is not None else self.fp32_flops_per_s

    def has(self, precision: Precision) -> bool:
        """Returns whether the device has arithmetic of this precision."""
        return self._own(precision) is not None

    def _own(self, precision: Precision) -> float | None:
        return {
            Precision.FP32: self.fp32_flops_per_s,
            Precision.TF32: self.tf32_flops_per_s,
            Precision.FP16: self.fp16_flops_per_s,
            Precision.BF16: self.bf16_flops_per_s,
            Precision.FP8: self.fp8_flops_per_s,
            # The scales of large blocks are applied outside the tensor cores.
            Precision.FP8_BLOCK: self.fp8_flops_per_s,
            Precision.MXFP8: self.mxfp8_flops_per_s,
            Precision.NVFP4: self.nvfp4_flops_per_s,
        }[precision]


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
    """

    between_operators_s: float
    before_launch_s: float
    after_launch_s: float
    launch_s: float
    between_launches_s: float
    graph_launch_s: float


@dataclass(frozen=True, slots=True)
class Cluster:
    """`world_size` devices on as few nodes as hold them; what the performance model predicts for.

    Ranks are numbered node by node: rank ``r`` sits on node ``r // devices_per_node``. The ranks
    that the link joins are a *scale-up domain*: those of a node, or of a pod, whose link reaches
    over several nodes. Host memory, host link and network cards are those of a node; collectives
    and sharding plans see domains.

    Attributes:
        name: Platform name.
        device: The device, the same on every rank.
        link: Interconnect inside a domain.
        network: Interconnect between domains.
        host_link: Path between host memory and a device.
        host: Host overheads.
        devices_per_node: Devices that a full node holds.
        world_size: Number of ranks.
        host_memory_bytes: Host memory of one node, or None when it is not known; then nothing
            limits what is kept there.
        nodes_per_pod: Nodes that the link reaches over; one without pods.
        host_memory_bandwidth_bytes_per_s: Bandwidth of one node's host memory, which its devices
            share; None when it is not known, then nothing limits their sum.
        storage_bandwidth_bytes_per_s: Rate at which one node reads samples from its storage, for
            all of its ranks; None when it is not known, then nothing limits it.
        part_of: The whole cluster, if this is one of several equal groups of its ranks, see
            :func:`rank_group`; None for a whole one.
        rank_stride: Distance of the numbers that neighbouring ranks have in the whole cluster.
    """

    name: str
    device: DeviceSpec
    link: LinkSpec
    network: NetworkSpec
    host_link: HostLinkSpec
    host: HostSpec
    devices_per_node: int
    world_size: int
    host_memory_bytes: float | None = None
    nodes_per_pod: int = 1
    host_memory_bandwidth_bytes_per_s: float | None = None
    storage_bandwidth_bytes_per_s: float | None = None
    part_of: Cluster | None = None
    rank_stride: int = 1

    @property
    def whole(self) -> Cluster:
        """The cluster with the ranks of all groups; itself if it is not a group of another."""
        return self.part_of or self

    @property
    def replicas(self) -> int:
        """Groups like this one that the whole cluster consists of."""
        return self.whole.world_size // self.world_size

    @property
    def host_link_of_all(self) -> HostLinkSpec:
        """A device's path to host memory while all devices of the node use theirs alike."""
        link, memory = self.host_link, self.host_memory_bandwidth_bytes_per_s
        bandwidth = link.bandwidth_bytes_per_s / min(link.devices, self.local_size)
        if memory is not None:
            bandwidth = min(bandwidth, memory / self.local_size)
        return HostLinkSpec(bandwidth, link.latency_s)

    @property
    def local_size(self) -> int:
        """Ranks on one node (all nodes are equally full)."""
        return min(self.world_size, self.devices_per_node)

    @property
    def node_count(self) -> int:
        """Number of nodes that the ranks occupy."""
        return math.ceil(self.world_size / self.devices_per_node)

    def node_of(self, rank: int) -> int:
        """Returns the node that `rank` sits on."""
        return rank // self.devices_per_node

    @property
    def devices_per_domain(self) -> int:
        """Devices that a full scale-up domain holds; of several pods the ranks that each has."""
        return devices_per_domain(self.world_size, self.devices_per_node, self.nodes_per_pod)

    @property
    def domain_size(self) -> int:
        """Ranks of one scale-up domain (all are equally full)."""
        return min(self.world_size, self.devices_per_domain)

    @property
    def domain_count(self) -> int:
        """Number of scale-up domains that the ranks occupy."""
        return math.ceil(self.world_size / self.devices_per_domain)

    @property
    def evenly_filled(self) -> bool:
        """Whether all nodes and all domains are equally full."""
        return not (self.world_size % self.local_size or self.world_size % self.domain_size)

    @property
    def nodes_per_domain(self) -> int:
        """Nodes of one scale-up domain."""
        return math.ceil(self.domain_size / self.devices_per_node)


def devices_per_domain(world_size: int, devices_per_node: int, nodes_per_pod: int = 1) -> int:
    """Returns how many devices a full scale-up domain holds.

    Ranks that need several pods fill as few as hold them equally: 128 ranks on pods of 72 are two
    domains of 64.

    Args:
        world_size: Number of ranks.
        devices_per_node: Devices that a full node holds.
        nodes_per_pod: Nodes that the link reaches over; one without pods.
    """
    nodes = math.ceil(world_size / devices_per_node)
    pods = math.ceil(nodes / nodes_per_pod)
    return devices_per_node * (nodes_per_pod if pods <= 1 else math.ceil(nodes / pods))
