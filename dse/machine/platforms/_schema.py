"""YAML of a platform."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import (
    AliasChoices,
    BeforeValidator,
    Field,
    ValidationError,
    ValidationInfo,
    field_validator,
    model_validator,
)
from pydantic_core import InitErrorDetails, PydanticCustomError

from dse._suggest import hint
from dse.config import (
    Bytes,
    BytesPerSecond,
    Count,
    Document,
    FlopsPerSecond,
    Fraction,
    RankCount,
    Seconds,
    StrictModel,
    UnitKind,
    UsdPerHour,
    exact_quantity,
    parse_rental_price,
)
from dse.machine import LinkKind, Precision
from dse.machine.fits import NCCL_VERSION, NEWEST

Name = Annotated[str, Field(min_length=1, max_length=200)]

#: Where a figure comes from.
Origin = Literal["datasheet", "measured", "fitted", "assumed"]

AsOf = Annotated[str, Field(pattern=r"^(\d{4}(-\d{2}(-\d{2})?)?|unknown)$")]


class SourcedBlock(StrictModel):
    """A block of figures that says where they come from."""

    origin: Origin
    source: Name
    as_of: AsOf | None = None


class PeakBlock(SourcedBlock):
    """Dense peak arithmetic rates, without structured sparsity."""

    fp32: FlopsPerSecond
    tf32: FlopsPerSecond | None = None
    fp16: FlopsPerSecond | None = None
    bf16: FlopsPerSecond | None = None
    fp8: FlopsPerSecond | None = None
    mxfp8: FlopsPerSecond | None = None
    nvfp4: FlopsPerSecond | None = None


class MemoryBlock(SourcedBlock):
    """Device memory."""

    capacity: Bytes
    bandwidth: BytesPerSecond
    reserved: Bytes

    @model_validator(mode="after")
    def _check(self) -> MemoryBlock:
        if self.reserved >= self.capacity:
            raise PydanticCustomError("memory", "expected `reserved` to be less than `capacity`")
        return self


class CacheBlock(SourcedBlock):
    """Last-level cache."""

    size: Bytes
    bandwidth: BytesPerSecond


class DeviceBlock(StrictModel):
    """One accelerator."""

    name: Name
    kind: Literal["gpu", "cpu"]
    compute_units: Count
    resident_warps_per_unit: Count
    kernel_floor: Seconds
    peak: PeakBlock
    memory: MemoryBlock
    l2: CacheBlock


class HostLinkBlock(SourcedBlock):
    """Path between host memory and a device, or several that share it."""

    kind: Name
    bandwidth: BytesPerSecond
    latency: Seconds
    devices: Annotated[
        RankCount | None, Field(description="Devices that share the path; one by default.")
    ] = None


class HostMemoryBlock(SourcedBlock):
    """Memory of the node's processors; tables in host memory share it, and its bandwidth."""

    capacity: Bytes
    bandwidth: BytesPerSecond | None = None


class NodeBlock(StrictModel):
    """One node; without `host_memory` nothing limits what is kept in host memory."""

    devices: RankCount
    host_link: HostLinkBlock
    host_memory: HostMemoryBlock | None = None


class PodBlock(SourcedBlock):
    """Nodes that the links reach over: an NVLink domain of several trays."""

    nodes: RankCount


#: Version of NCCL or a library like it: `2.27.3`, or `2.27` for the newest of them.
NcclVersion = Annotated[str, Field(pattern=f"^({NCCL_VERSION}|{NEWEST})$")]


class LinkBlock(SourcedBlock):
    """Interconnect between the devices of a node, or pod; bandwidth per device and direction.

    Attributes:
        nccl: Version of the communication library whose measured curves count.
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
    """Network between nodes, or pods; bandwidth per card and direction."""

    kind: Name
    nics: Count
    bandwidth: BytesPerSecond
    latency: Seconds
    nodes_per_leaf: Annotated[
        Count | None,
        Field(
            description="Nodes under the same leaf switches; without it nothing is a bottleneck."
        ),
    ] = None
    oversubscription: Annotated[
        float | None,
        Field(ge=1, description="Bandwidth of the nodes under a leaf over what leaves it."),
    ] = None
    spine_latency: Annotated[
        Seconds | None, Field(description="Added to messages that leave the leaf.")
    ] = None
    rails: Annotated[
        bool | None, Field(description="Card i of all nodes under a leaf has a switch of its own.")
    ] = None
    in_network_reduction: Annotated[
        bool | None, Field(description="Switches that add (SHARP).")
    ] = None

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
    """Host time per operator: the five overheads of the TPDS'24 model, and a graph launch."""

    between_operators: Seconds
    before_launch: Seconds
    after_launch: Seconds
    launch: Seconds
    between_launches: Seconds
    graph_launch: Seconds


#: In the place of a network's name: the price is not bound to a network.
ANY_NETWORK = "any"


def _as_list(value: object) -> object:
    return [value] if isinstance(value, str) else value


class OfferBlock(StrictModel):
    """One instance type at one price, of the instance or (`USD/GPU/h`) of each of its devices.

    Attributes:
        network: Networks of the platform that connect such instances; `any` for a price of one's
            own. Instances that hold no whole node need none.
        by_device: Any number of devices can be rented, each at this price.
    """

    provider: Name
    instance: Name
    by_device: bool = False
    devices: RankCount
    price: UsdPerHour
    network: Annotated[
        list[Name], BeforeValidator(_as_list, json_schema_input_type=Name | list[Name])
    ] = []
    host_memory: Bytes | None = None
    cores: Count | None = None
    region: str = ""
    as_of: AsOf
    basis: Literal["on_demand", "capacity_block", "reserved", "spot", "given"]
    source: Name
    superseded: bool = False

    @field_validator("devices")
    @classmethod
    def _one_device(cls, value: int, info: ValidationInfo) -> int:
        if info.data.get("by_device") and value != 1:
            raise PydanticCustomError(
                "devices", "expected 1 of an offer `by_device`, whose price is that of a device"
            )
        return value

    @field_validator("price", mode="before")
    @classmethod
    def _of_the_instance(cls, value: object, info: ValidationInfo) -> object:
        devices = info.data.get("devices")
        if not isinstance(value, str) or devices is None:
            return value
        try:
            price, each = parse_rental_price(value)
        except ValueError:
            return value  # the type of the field says what is wrong
        return exact_quantity(price * devices, UnitKind.PRICE) if each else value


#: A relative path that stays below its folder.
_FILE_BELOW = r"^[A-Za-z0-9_][A-Za-z0-9_.-]*(/[A-Za-z0-9_][A-Za-z0-9_.-]*)*$"


class CalibrationBlock(StrictModel):
    """Use of a file of fitted models.

    Attributes:
        file: Name of a built-in one, or of a `.json` file in the platform's folder or below.
        transferred: Why models of another device may serve here; they get a wider spread, and
            collectives move by the ratio of this link's figures to those of the measured one.
        added_spread: Relative spread that is added for it (in quadrature).
        precisions: Use its kernels for these precisions instead of the measured ones.
        link: Interconnect that its collectives are for; the default one when left out.
        network: Network that its network models are for; the default one when left out.
    """

    file: Annotated[str, Field(pattern=_FILE_BELOW, max_length=200)]
    transferred: str = ""
    added_spread: Fraction = 0.0
    precisions: list[Precision] | None = None
    link: Name | None = None
    network: Name | None = None

    @model_validator(mode="after")
    def _check(self) -> CalibrationBlock:
        if self.added_spread and not self.transferred:
            raise PydanticCustomError(
                "calibration",
                "`added_spread` is for models of another device; say why they "
                "may serve in `transferred`",
            )
        return self


class PlatformDocument(Document):
    """A device-and-node type with its networks, and the offers to rent it.

    Files of earlier versions have `prices`, without networks; such a price counts over all of
    them, as it did when the file was written.
    """

    name: Name
    description: str = ""
    device: DeviceBlock
    node: NodeBlock
    pod: PodBlock | None = None
    links: Annotated[dict[Name, LinkBlock], Field(min_length=1)]
    default_link: Name
    networks: Annotated[dict[Name, NetworkBlock], Field(min_length=1)]
    default_network: Name
    host: HostBlock
    offers: Annotated[
        list[OfferBlock], Field(validation_alias=AliasChoices("offers", "prices"))
    ] = []
    calibrations: list[CalibrationBlock] = []

    @model_validator(mode="before")
    @classmethod
    def _former_prices(cls, data: object) -> object:
        if not isinstance(data, dict) or not isinstance(data.get("prices"), list):
            return data
        prices = [
            {"network": ANY_NETWORK, **price} if isinstance(price, dict) else price
            for price in data["prices"]
        ]
        return {**data, "prices": prices}

    @field_validator("offers")
    @classmethod
    def _known_networks(cls, value: list[OfferBlock], info: ValidationInfo) -> list[OfferBlock]:
        networks, node = info.data.get("networks"), info.data.get("node")
        if networks is None or node is None:
            return value
        for place, offer in enumerate(value):
            unknown = [name for name in offer.network if name not in (*networks, ANY_NETWORK)]
            problem = ""
            if unknown:
                problem = f"there is no network `{unknown[0]}`; {hint(unknown[0], list(networks))}"
            elif not offer.network and (offer.by_device or offer.devices >= node.devices):
                problem = (
                    f"say which network connects `{offer.instance}`: {hint('', list(networks))}; "
                    f"`{ANY_NETWORK}` for a price of your own"
                )
            if problem:
                error = PydanticCustomError("network", "{problem}", {"problem": problem})
                raise ValidationError.from_exception_data(
                    "offers",
                    [InitErrorDetails(type=error, loc=(place, "network"), input=offer.network)],
                )
        return value

    @model_validator(mode="after")
    def _check(self) -> PlatformDocument:
        for calibration in self.calibrations:
            for wire, named, offered in (
                ("link", calibration.link, self.links),
                ("network", calibration.network, self.networks),
            ):
                if named is not None and named not in offered:
                    names = ", ".join(f"`{name}`" for name in offered)
                    raise PydanticCustomError(
                        "calibration",
                        f"`{calibration.file}` is for {wire} `{named}`; expected one of {names}",
                    )
        for kind, default, offered in (
            ("default_link", self.default_link, self.links),
            ("default_network", self.default_network, self.networks),
        ):
            if default not in offered:
                names = ", ".join(f"`{name}`" for name in offered)
                raise PydanticCustomError(
                    "default", f"`{kind}` is `{default}`; expected one of {names}"
                )
        return self
