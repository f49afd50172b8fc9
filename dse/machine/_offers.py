"""Offers: instances that can be rented, with their price and their network."""

from __future__ import annotations

from dataclasses import dataclass
import math

_SECONDS_PER_HOUR = 3600

#: What list prices are for.
PRICE_BASES = ("on_demand", "capacity_block", "reserved", "spot")


@dataclass(frozen=True, slots=True)
class Offer:
    """One instance type at one price.

    Attributes:
        provider: Cloud or vendor.
        instance: Instance type.
        devices: Devices in one instance.
        usd_per_hour: Price of one instance.
        region: Region, or an empty string where the source names none.
        as_of: When the price was valid, as written by the source (ISO date or year-month).
        basis: ``on_demand``, ``capacity_block``, ``reserved`` or ``spot``; ``given`` for a price
            of one's own, which counts whatever basis and provider are asked for.
        source: Where the figure comes from.
        networks: Names of the platform's networks that connect these instances; empty for a price
            that is not bound to a network, and for instances that hold no whole node.
        host_memory_bytes: Host memory of one instance; None when it is not known.
        cores: Processor cores of one instance as the provider counts them, which in most clouds
            are hardware threads; None when they are not known.
        by_device: Whether any number of devices can be rented, each at this price.
        superseded: True for a former price that is kept for old studies and never chosen.
    """

    provider: str
    instance: str
    devices: int
    usd_per_hour: float
    region: str
    as_of: str
    basis: str
    source: str
    networks: tuple[str, ...] = ()
    host_memory_bytes: float | None = None
    cores: int | None = None
    by_device: bool = False
    superseded: bool = False

    def counts_for(self, basis: str, provider: str) -> bool:
        """Returns whether machines can be rented at this price.

        Args:
            basis: Basis that is asked for.
            provider: Provider that is asked for, in any case; empty for any.
        """
        if self.superseded:
            return False
        named = provider.casefold() in ("", self.provider.casefold())
        return self.basis == "given" or (self.basis == basis and named)

    def has_network(self, name: str) -> bool:
        """Returns whether a network connects these instances, or may for all that is known."""
        return not self.networks or name in self.networks

    def instances_for(
        self, world_size: int, devices_per_node: int, devices_per_domain: int
    ) -> int | None:
        """Returns how many instances hold a job.

        The ranks of a node sit in one instance: two instances of one device are not a node of two.
        An instance larger than a scale-up domain, such as a whole pod, is rented as a whole.

        Args:
            world_size: Devices of the job.
            devices_per_node: Devices of a node.
            devices_per_domain: Devices that a full scale-up domain of the job holds.

        Returns:
            None where the job needs several nodes and an instance holds no whole one.
        """
        if self.by_device:
            return world_size
        if world_size <= self.devices:
            return 1
        if self.devices % devices_per_node:
            return None
        domain = min(world_size, devices_per_domain)
        domains = math.ceil(world_size / domain)
        if self.devices < domain:
            return domains * math.ceil(domain / self.devices)
        return math.ceil(domains / (self.devices // domain))


@dataclass(frozen=True, slots=True)
class Quote:
    """What renting a cluster costs.

    Attributes:
        usd_per_hour: Price of the whole cluster.
        instances: Whole instances that are rented, or devices of an offer by the device; None
            when only the price is known.
        offer: What is rented; None when only the price is known.
    """

    usd_per_hour: float
    instances: int | None = None
    offer: Offer | None = None

    @property
    def text(self) -> str:
        """What is rented, such as ``2 × AWS p5.48xlarge``; empty when only the price is known."""
        if self.offer is None or self.instances is None:
            return ""
        name = f"{self.offer.provider} {self.offer.instance}"
        if self.offer.basis == "given":
            return name
        if self.offer.by_device:
            return f"{self.instances} devices of {name}"
        return f"{self.instances} × {name}"

    def cost_usd_per_million(self, throughput_per_s: float) -> float:
        """Returns USD per million samples (or tokens) at a throughput per second."""
        return self.usd_per_hour / _SECONDS_PER_HOUR / throughput_per_s * 1e6
