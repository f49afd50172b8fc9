"""Building platforms from their documents."""

from __future__ import annotations

from dataclasses import fields, replace
import math
from typing import TYPE_CHECKING, Any

from dse.config import UnitKind, format_quantity
from dse.machine import (
    DeviceSpec,
    HostLinkSpec,
    LinkSpec,
    NetworkSpec,
    Offer,
    PeakRates,
    PowerSpec,
)
from dse.machine.platforms._calibrations import collective_facts, kernel_facts, network_facts
from dse.machine.platforms._host_profiles import plain_host
from dse.machine.platforms._platform import Platform
from dse.machine.platforms._provenance import PlatformFact
from dse.machine.platforms._schema import ANY_NETWORK

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from dse.machine.platforms._calibrations import UsedCalibration
    from dse.machine.platforms._hardware_schema import (
        DeviceBlock,
        LinkBlock,
        NetworkBlock,
        PeakBlock,
        PowerBlock,
        SourcedBlock,
    )
    from dse.machine.platforms._schema import OfferBlock, PlatformDocument


#: Figures of a link that its measured collectives are of.
_MEASURED_FIGURES = ("kind", "bandwidth_bytes_per_s", "latency_s", "pair_bandwidth_bytes_per_s")


def built_platform(document: PlatformDocument, used: Sequence[UsedCalibration] = ()) -> Platform:
    """Returns the platform that a document describes.

    Args:
        document: The document.
        used: The fitted models that it names.
    """
    host_link, host_memory = document.node.host_link, document.node.host_memory
    storage = document.node.storage
    measured: dict[str, list[UsedCalibration]] = {name: [] for name in document.links}
    for calibration in used:
        measured[calibration.block.link or document.default_link].append(calibration)
    links = [
        _measured(_link(name, block), measured[name]) for name, block in document.links.items()
    ]
    networks = [
        replace(
            _network(name, block),
            calibrations=tuple(
                network
                for calibration in used
                if (calibration.block.network or document.default_network) == name
                for network in calibration.networks()
            ),
        )
        for name, block in document.networks.items()
    ]
    return Platform(
        name=document.name,
        description=document.description,
        device=_device(document.device, used),
        devices_per_node=document.node.devices,
        host_link=HostLinkSpec(host_link.bandwidth, host_link.latency, host_link.devices or 1),
        links=tuple(sorted(links, key=lambda link: link.name != document.default_link)),
        networks=tuple(
            sorted(networks, key=lambda network: network.name != document.default_network)
        ),
        host=plain_host(document.host),
        offers=tuple(_offer(block) for block in document.offers),
        facts=(
            *_facts(document),
            *kernel_facts(used),
            *collective_facts(links),
            *network_facts(used),
        ),
        calibrations=tuple(dict.fromkeys(calibration.source for calibration in used)),
        host_memory_bytes=host_memory.capacity if host_memory else None,
        nodes_per_pod=document.pod.nodes if document.pod else 1,
        host_memory_bandwidth_bytes_per_s=host_memory.bandwidth if host_memory else None,
        storage_bandwidth_bytes_per_s=storage.bandwidth if storage else None,
        document=document,
    )


def _device(block: DeviceBlock, used: Sequence[UsedCalibration]) -> DeviceSpec:
    return DeviceSpec(
        name=block.name,
        kind=block.kind,
        compute_units=block.compute_units,
        peak=_peak(block.peak),
        memory_bytes=block.memory.capacity,
        memory_bandwidth_bytes_per_s=block.memory.bandwidth,
        l2_bytes=block.l2.size,
        l2_bandwidth_bytes_per_s=block.l2.bandwidth,
        reserved_memory_bytes=block.memory.reserved,
        kernel_floor_s=block.kernel_floor,
        resident_warps_per_unit=block.resident_warps_per_unit,
        fp32_products_share=block.fp32_products.share if block.fp32_products else None,
        power=_power(block.power) if block.power else None,
        calibrations=tuple(kernel for calibration in used for kernel in calibration.kernels()),
    )


def _power(block: PowerBlock) -> PowerSpec:
    return PowerSpec(block.limit, block.operation_energy, block.spread)


def _peak(block: PeakBlock) -> PeakRates:
    rates = (field.name for field in fields(PeakRates))
    return PeakRates(**{rate: getattr(block, rate.removesuffix("_flops_per_s")) for rate in rates})


def _measured(link: LinkSpec, used: Sequence[UsedCalibration]) -> LinkSpec:
    """Returns a link with its measured collectives.

    Where the file gives it other figures than it was measured with, it keeps those as well. What
    was measured on another device has moved to the link's figures.
    """
    curves = tuple(one for calibration in used for one in calibration.collectives(link))
    of = [one.content.link for one in used if one.content.link and not one.block.transferred]
    changed = {
        name: getattr(of[0], name)
        for name in _MEASURED_FIGURES
        if of and not _same(getattr(of[0], name), getattr(link, name))
    }
    measured_on = replace(link, **changed) if changed else None
    return replace(link, calibrations=curves, measured_on=measured_on)


def _same(one: object, other: object) -> bool:
    """Returns whether two figures are the same, but for rounding."""
    if isinstance(one, float) and isinstance(other, float):
        return math.isclose(one, other)
    return one == other


def _link(name: str, block: LinkBlock) -> LinkSpec:
    return LinkSpec(
        name,
        block.kind,
        block.bandwidth,
        block.latency,
        block.pair_bandwidth,
        nccl=block.nccl,
        in_switch_share=block.in_switch_reduction,
        devices_per_switch=block.devices_per_switch or 1,
    )


def _network(name: str, block: NetworkBlock) -> NetworkSpec:
    return NetworkSpec(
        name,
        block.kind,
        block.nics,
        block.bandwidth,
        block.latency,
        nodes_per_leaf=block.nodes_per_leaf,
        oversubscription=block.oversubscription or 1.0,
        spine_latency_s=block.spine_latency or 0.0,
        rails=bool(block.rails),
        in_network_reduction=bool(block.in_network_reduction),
    )


def _offer(block: OfferBlock) -> Offer:
    return Offer(
        provider=block.provider,
        instance=block.instance,
        devices=block.devices,
        usd_per_hour=block.price,
        region=block.region,
        as_of=block.as_of,
        basis=block.basis,
        source=block.source,
        networks=() if ANY_NETWORK in block.network else tuple(block.network),
        host_memory_bytes=block.host_memory,
        cores=block.cores,
        by_device=block.by_device,
        superseded=block.superseded,
    )


def _facts(document: PlatformDocument) -> Iterator[PlatformFact]:
    """Yields every figure with its origin, in the order of the file."""
    device, node = document.device, document.node
    blocks: list[tuple[str, SourcedBlock]] = [
        ("device.peak", device.peak),
        ("device.memory", device.memory),
        ("device.l2", device.l2),
        *((("device.fp32_products", device.fp32_products),) if device.fp32_products else ()),
        *((("device.power", device.power),) if device.power else ()),
        ("node.host_link", node.host_link),
        *((("node.host_memory", node.host_memory),) if node.host_memory else ()),
        *((("node.storage", node.storage),) if node.storage else ()),
        *((("pod", document.pod),) if document.pod else ()),
        *((f"links.{name}", block) for name, block in document.links.items()),
        *((f"networks.{name}", block) for name, block in document.networks.items()),
        ("host", document.host),
    ]
    for prefix, block in blocks:
        for name in type(block).model_fields:
            value = getattr(block, name)
            # Neither the version of the library nor a profile is a figure: other facts name it.
            if name in ("origin", "source", "as_of", "nccl", "profile") or value is None:
                continue
            yield PlatformFact(
                f"{prefix}.{name}",
                _readable(prefix, name, value),
                block.origin,
                block.source,
                block.as_of or "",
            )
    for offer in document.offers:
        yield PlatformFact(
            offer_fact(offer.model_dump(mode="json"))
            + (" (superseded)" if offer.superseded else ""),
            format_quantity(offer.price, UnitKind.PRICE),
            "list price",
            offer.source,
            offer.as_of,
        )


def offer_fact(offer: Mapping[str, Any]) -> str:
    """Returns the name of an offer among a platform's facts.

    Args:
        offer: As a platform's file has it.
    """
    networks = [name for name in offer.get("network") or () if name != ANY_NETWORK]
    basis = "" if offer["basis"] in ("on_demand", "given") else offer["basis"].replace("_", " ")
    details = ", ".join(filter(None, (offer.get("region", ""), basis, *networks)))
    return f"price {offer['provider']} {offer['instance']}" + (f" ({details})" if details else "")


_UNITS = {
    "capacity": UnitKind.SIZE,
    "reserved": UnitKind.SIZE,
    "size": UnitKind.SIZE,
    "bandwidth": UnitKind.BANDWIDTH,
    "pair_bandwidth": UnitKind.BANDWIDTH,
    "limit": UnitKind.POWER,
    "operation_energy": UnitKind.ENERGY,
}


def _readable(prefix: str, name: str, value: object) -> str:
    if not isinstance(value, float):
        return str(value)
    if name in ("in_switch_reduction", "oversubscription", "share", "spread"):
        return f"{value:g}"
    if prefix == "device.peak":
        return format_quantity(value, UnitKind.COMPUTE_RATE)
    return format_quantity(value, _UNITS.get(name, UnitKind.TIME))
