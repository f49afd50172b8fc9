"""YAML of a platform."""

from __future__ import annotations

import re
from typing import Annotated, ClassVar, Literal

from pydantic import (
    AliasChoices,
    Field,
    ValidationError,
    ValidationInfo,
    field_validator,
    model_validator,
)
from pydantic_core import InitErrorDetails, PydanticCustomError

from dse._text.suggest import hint
from dse.config import (
    AsOf,
    Bytes,
    Count,
    Document,
    Fraction,
    OneOrMany,
    RankCount,
    RentalPrice,
    StrictModel,
    UnitKind,
    UsdPerHour,
    exact_quantity,
    parse_rental_price,
)
from dse.machine import Precision
from dse.machine.platforms._hardware_schema import (
    DeviceBlock,
    HostBlock,
    LinkBlock,
    Name,
    NetworkBlock,
    NodeBlock,
    PodBlock,
)

#: In the place of a network's name: the price is not bound to a network.
ANY_NETWORK = "any"


class OfferBlock(StrictModel):
    """One instance type at one price, of the instance or (`USD/GPU/h`) of each of its devices.

    Attributes:
        provider: Who rents it out.
        instance: Name of the instance type.
        by_device: Any number of devices can be rented, each at this price.
        devices: Devices of one instance.
        price: Of the instance (USD/h) or of each of its devices (USD/GPU/h).
        network: Networks of the platform that connect such instances; `any` for a price of one's
            own. Instances that hold no whole node need none.
        host_memory: Host memory of the instance.
        cores: Processor cores of the instance.
        region: Where it is offered.
        as_of: Date of the price.
        basis: For how long it is rented.
        source: Where the price was read.
        superseded: Whether a newer price counts instead; kept for old studies.
    """

    provider: Name
    instance: Name
    by_device: bool = False
    devices: RankCount
    price: UsdPerHour
    network: Annotated[list[Name], OneOrMany()] = []
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

    @field_validator("price", mode="before", json_schema_input_type=RentalPrice)
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


#: A name of a file, or of a platform in its file, that commands and paths take as it is.
PLAIN_NAME = "[A-Za-z0-9_][A-Za-z0-9_.-]*"

#: A relative path that stays below its folder.
FILE_BELOW = f"^{PLAIN_NAME}(/{PLAIN_NAME})*$"


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

    file: Annotated[str, Field(pattern=FILE_BELOW, max_length=200)]
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

    Attributes:
        name: Name of the platform.
        description: One line for listings.
        device: The accelerator.
        node: One node.
        pod: Nodes that the links reach over; without it they end at the node.
        links: Interconnects between the devices of a node or pod, by name.
        default_link: The link of those who do not choose.
        networks: Networks between nodes or pods, by name.
        default_network: The network of those who do not choose.
        host: Host time per operator.
        offers: Instances that can be rented.
        calibrations: Fitted models of kernels, collectives and networks.
    """

    called: ClassVar = "a platform"

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

    @field_validator("name")
    @classmethod
    def _plain_name(cls, value: str, info: ValidationInfo) -> str:
        # Derived platforms are named by what differs, and a study keeps what it was given.
        own_file = "folder" in (info.context or {})
        if own_file and not re.fullmatch(PLAIN_NAME, value):
            raise PydanticCustomError(
                "name",
                "expected letters, digits, `_`, `-` and `.`, such as `my_h100`, found `{name}`",
                {"name": value[:60]},
            )
        return value

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
