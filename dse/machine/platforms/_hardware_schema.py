"""YAML of a platform's hardware: device, node, pod, links, networks and host."""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal

from pydantic import Field, model_validator
from pydantic_core import PydanticCustomError

from dse.config import (
    AsOf,
    Bytes,
    BytesPerSecond,
    Count,
    FlopsPerSecond,
    Fraction,
    Joules,
    Number,
    RankCount,
    Seconds,
    StrictModel,
    Watts,
)
from dse.machine import DeviceSpec, LinkKind
from dse.machine.fits import NCCL_VERSION, NEWEST

Name = Annotated[str, Field(min_length=1, max_length=200)]

#: Where a figure comes from.
Origin = Literal["datasheet", "measured", "fitted", "assumed"]


class SourcedBlock(StrictModel):
    """A block of figures that says where they come from.

    Attributes:
        origin: Where the figures come from.
        source: The document, or who measured with what.
        as_of: Date of the source: YYYY, YYYY-MM, YYYY-MM-DD or unknown.
    """

    origin: Origin
    source: Name
    as_of: AsOf | None = None


class PeakBlock(SourcedBlock):
    """Dense peak arithmetic rates, without structured sparsity.

    Attributes:
        fp32: Of single precision, without tensor cores.
        tf32: Of TF32; as FP32 by default.
        fp16: Of half precision; as TF32 by default.
        bf16: Of bfloat16; as TF32 by default.
        fp8: Of FP8 with one factor for a tensor or a block; as BF16 by default.
        mxfp8: Of FP8 with a factor for 32 values; as BF16 by default.
        nvfp4: Of FP4 with a factor for 16 values; as BF16 by default.
    """

    fp32: FlopsPerSecond
    tf32: FlopsPerSecond | None = None
    fp16: FlopsPerSecond | None = None
    bf16: FlopsPerSecond | None = None
    fp8: FlopsPerSecond | None = None
    mxfp8: FlopsPerSecond | None = None
    nvfp4: FlopsPerSecond | None = None


class ProductsBlock(SourcedBlock):
    """Matrix products without tensor cores.

    Attributes:
        share: Share of the peak rate that large ones reach.
    """

    share: Fraction


class PowerBlock(SourcedBlock):
    """Power, which bounds the arithmetic that a device sustains.

    Attributes:
        limit: Power that the device may take.
        operation_energy: Energy of one operation of a product in BF16 at the clock of the peak
            rate, with its share of everything else that takes power.
        spread: Standard deviation of the logarithm of the rate that is sustained.
    """

    limit: Watts
    operation_energy: Joules
    spread: Fraction


class MemoryBlock(SourcedBlock):
    """Device memory.

    Attributes:
        capacity: Size of the memory.
        bandwidth: Peak bandwidth.
        reserved: What a job cannot have: driver context, communicator buffers, allocator slack.
    """

    capacity: Bytes
    bandwidth: BytesPerSecond
    reserved: Bytes

    @model_validator(mode="after")
    def _check(self) -> MemoryBlock:
        if self.reserved >= self.capacity:
            raise PydanticCustomError("memory", "expected `reserved` to be less than `capacity`")
        return self


class CacheBlock(SourcedBlock):
    """Last-level cache.

    Attributes:
        size: Size of the cache.
        bandwidth: Read bandwidth.
    """

    size: Bytes
    bandwidth: BytesPerSecond


class DeviceBlock(StrictModel):
    """One accelerator.

    Attributes:
        peak: Peak arithmetic rates.
        memory: Device memory.
        l2: Last-level cache.
        kernel_floor: Duration of the smallest kernel.
        fp32_products: How fast products in FP32 are; without it as fast as on a V100.
        power: What bounds sustained arithmetic; without it nothing does.
    """

    described_by: ClassVar = DeviceSpec

    name: Name
    kind: Literal["gpu", "cpu"]
    compute_units: Count
    resident_warps_per_unit: Count
    kernel_floor: Seconds
    peak: PeakBlock
    memory: MemoryBlock
    l2: CacheBlock
    fp32_products: ProductsBlock | None = None
    power: PowerBlock | None = None


class HostLinkBlock(SourcedBlock):
    """Path between host memory and a device, or several that share it.

    Attributes:
        kind: `pcie5`, `nvlink-c2c` or another label.
        bandwidth: In one direction.
        latency: Time before the first byte.
        devices: Devices that share the path; one by default.
    """

    kind: Name
    bandwidth: BytesPerSecond
    latency: Seconds
    devices: RankCount | None = None


class HostMemoryBlock(SourcedBlock):
    """Memory of the node's processors; tables in host memory share it, and its bandwidth.

    Attributes:
        capacity: Size of the memory.
        bandwidth: Bandwidth that all devices share; without it nothing limits their sum.
    """

    capacity: Bytes
    bandwidth: BytesPerSecond | None = None


class StorageBlock(SourcedBlock):
    """Storage from which a node reads samples: its own drives, or a file system.

    Attributes:
        bandwidth: Rate of sequential reads, for all devices of the node.
    """

    bandwidth: BytesPerSecond


class NodeBlock(StrictModel):
    """One node.

    Attributes:
        devices: Devices of a full node.
        host_link: Path between host memory and a device.
        host_memory: Memory of the processors; without it nothing limits what is kept there.
        storage: Where samples are read from; without it nothing limits how fast.
    """

    devices: RankCount
    host_link: HostLinkBlock
    host_memory: HostMemoryBlock | None = None
    storage: StorageBlock | None = None


class PodBlock(SourcedBlock):
    """Nodes that the links reach over: an NVLink domain of several trays.

    Attributes:
        nodes: Number of nodes.
    """

    nodes: RankCount


#: Version of NCCL or a library like it: `2.27.3`, or `2.27` for the newest of them.
NcclVersion = Annotated[str, Field(pattern=f"^({NCCL_VERSION}|{NEWEST})$")]


class LinkBlock(SourcedBlock):
    """Interconnect between the devices of a node, or pod.

    Attributes:
        kind: How the devices are wired.
        bandwidth: Of each device in one direction.
        latency: Time of one hop, software included.
        pair_bandwidth: Of `nvlink_pairs` inside a pair, of `full_mesh` to each other device.
        in_switch_reduction: Bytes a second of a large all-reduce, as a share of the bandwidth, if
            switches add and multicast (NVLS).
        devices_per_switch: Of `pcie`, devices that share the way to the host bridge.
        nccl: Version of the communication library whose measured curves count: `2.27.3`, `2.27`
            for the newest of them, or `newest`.
    """

    kind: LinkKind
    bandwidth: BytesPerSecond
    latency: Seconds
    pair_bandwidth: BytesPerSecond | None = None
    in_switch_reduction: Fraction | None = None
    devices_per_switch: RankCount | None = None
    nccl: NcclVersion = NEWEST

    @model_validator(mode="after")
    def _check(self) -> LinkBlock:
        if self.devices_per_switch is not None and self.kind is not LinkKind.PCIE:
            raise PydanticCustomError(
                "link", "`devices_per_switch` is for pcie, whose switches devices share"
            )
        if self.in_switch_reduction is not None and self.kind is not LinkKind.NVSWITCH:
            raise PydanticCustomError(
                "link", "`in_switch_reduction` is for nvswitch; other links have no switch"
            )
        paired = self.kind in (LinkKind.NVLINK_PAIRS, LinkKind.FULL_MESH)
        if (self.pair_bandwidth is not None) != paired:
            raise PydanticCustomError(
                "link",
                "`pair_bandwidth` is given for nvlink_pairs and full_mesh, and only for them",
            )
        return self


class NetworkBlock(SourcedBlock):
    """Network between nodes, or pods.

    Attributes:
        kind: `infiniband`, `ethernet`, `efa` or another label.
        nics: Network cards of a node.
        bandwidth: Of each card in one direction.
        latency: Of a small message between two nodes.
        nodes_per_leaf: Nodes under the same leaf switches; without it nothing is a bottleneck.
        oversubscription: Bandwidth of the nodes under a leaf over what leaves it.
        spine_latency: Added to messages that leave the leaf.
        rails: Whether card i of all nodes under a leaf has a switch of its own.
        in_network_reduction: Whether the switches add (SHARP).
    """

    kind: Name
    nics: Count
    bandwidth: BytesPerSecond
    latency: Seconds
    nodes_per_leaf: Count | None = None
    oversubscription: Annotated[Number, Field(ge=1)] | None = None
    spine_latency: Seconds | None = None
    rails: bool | None = None
    in_network_reduction: bool | None = None

    @model_validator(mode="after")
    def _check(self) -> NetworkBlock:
        of_leaves = (self.oversubscription, self.spine_latency, self.rails)
        if self.nodes_per_leaf is None and any(one is not None for one in of_leaves):
            raise PydanticCustomError(
                "network",
                "`oversubscription`, `spine_latency` and `rails` say what leaves a leaf switch; "
                "give `nodes_per_leaf` as well",
            )
        return self


class HostBlock(SourcedBlock):
    """Host time per operator: the five overheads of the TPDS'24 model, and a graph launch.

    Attributes:
        between_operators: T1, from the end of one top-level operator to the next.
        before_launch: T2, from an operator's start to its first kernel launch.
        after_launch: T3, from an operator's last launch to its end.
        launch: T4, one launch call.
        between_launches: T5, between two launches inside one operator.
        graph_launch: One launch of a captured CUDA graph, which replaces all of the above.
        profile: File of a host profile, whose figures count before these; of a platform's file in
            its folder or below.
    """

    between_operators: Seconds
    before_launch: Seconds
    after_launch: Seconds
    launch: Seconds
    between_launches: Seconds
    graph_launch: Seconds
    profile: Annotated[str, Field(min_length=1, max_length=4000)] | None = None
