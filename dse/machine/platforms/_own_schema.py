"""YAML of the figures in which one platform differs from another."""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal

from pydantic import Field

from dse.config import (
    Bytes,
    BytesPerSecond,
    Count,
    FlopsPerSecond,
    Fraction,
    Number,
    RankCount,
    Seconds,
    StrictModel,
)
from dse.machine import LinkKind
from dse.machine.platforms._hardware_schema import (
    CacheBlock,
    DeviceBlock,
    HostBlock,
    HostLinkBlock,
    HostMemoryBlock,
    LinkBlock,
    MemoryBlock,
    Name,
    NcclVersion,
    NetworkBlock,
    NodeBlock,
    PeakBlock,
    PodBlock,
)


class OwnPeakBlock(StrictModel):
    """Peak rates that differ."""

    described_by: ClassVar = PeakBlock

    fp32: FlopsPerSecond | None = None
    tf32: FlopsPerSecond | None = None
    fp16: FlopsPerSecond | None = None
    bf16: FlopsPerSecond | None = None
    fp8: FlopsPerSecond | None = None
    mxfp8: FlopsPerSecond | None = None
    nvfp4: FlopsPerSecond | None = None


class OwnMemoryBlock(StrictModel):
    """Figures of the device memory that differ."""

    described_by: ClassVar = MemoryBlock

    capacity: Bytes | None = None
    bandwidth: BytesPerSecond | None = None
    reserved: Bytes | None = None


class OwnCacheBlock(StrictModel):
    """Figures of the last-level cache that differ."""

    described_by: ClassVar = CacheBlock

    size: Bytes | None = None
    bandwidth: BytesPerSecond | None = None


class OwnDeviceBlock(StrictModel):
    """Figures of the device that differ."""

    described_by: ClassVar = DeviceBlock

    name: Name | None = None
    kind: Literal["gpu", "cpu"] | None = None
    compute_units: Count | None = None
    resident_warps_per_unit: Count | None = None
    kernel_floor: Seconds | None = None
    peak: OwnPeakBlock | None = None
    memory: OwnMemoryBlock | None = None
    l2: OwnCacheBlock | None = None


class OwnHostLinkBlock(StrictModel):
    """Figures of the path between host memory and a device that differ."""

    described_by: ClassVar = HostLinkBlock

    kind: Name | None = None
    bandwidth: BytesPerSecond | None = None
    latency: Seconds | None = None
    devices: RankCount | None = None


class OwnHostMemoryBlock(StrictModel):
    """Memory of the node's processors."""

    described_by: ClassVar = HostMemoryBlock

    capacity: Bytes | None = None
    bandwidth: BytesPerSecond | None = None


class OwnNodeBlock(StrictModel):
    """Figures of the node that differ."""

    described_by: ClassVar = NodeBlock

    devices: RankCount | None = None
    host_link: OwnHostLinkBlock | None = None
    host_memory: OwnHostMemoryBlock | None = None


class OwnPodBlock(StrictModel):
    """Nodes that the links reach over."""

    described_by: ClassVar = PodBlock

    nodes: RankCount | None = None


class OwnLinkBlock(StrictModel):
    """Figures of interconnects that differ; bandwidth per device and direction."""

    described_by: ClassVar = LinkBlock

    kind: LinkKind | None = None
    bandwidth: BytesPerSecond | None = None
    latency: Seconds | None = None
    pair_bandwidth: BytesPerSecond | None = None
    in_switch_reduction: Fraction | None = None
    devices_per_switch: RankCount | None = None
    nccl: NcclVersion | None = None


class OwnNetworkBlock(StrictModel):
    """Figures of networks that differ; bandwidth per card and direction."""

    described_by: ClassVar = NetworkBlock

    kind: Name | None = None
    nics: Count | None = None
    bandwidth: BytesPerSecond | None = None
    latency: Seconds | None = None
    nodes_per_leaf: Count | None = None
    oversubscription: Annotated[Number, Field(ge=1)] | None = None
    spine_latency: Seconds | None = None
    rails: bool | None = None
    in_network_reduction: bool | None = None


class OwnHostBlock(StrictModel):
    """Host overheads that differ."""

    described_by: ClassVar = HostBlock

    between_operators: Seconds | None = None
    before_launch: Seconds | None = None
    after_launch: Seconds | None = None
    launch: Seconds | None = None
    between_launches: Seconds | None = None
    graph_launch: Seconds | None = None
