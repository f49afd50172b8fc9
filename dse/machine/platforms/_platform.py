"""Platform: device × node × interconnect × offers."""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import count
from operator import attrgetter
from typing import TYPE_CHECKING, TypeVar

import numpy as np

from dse._text.html import fields_html
from dse._text.suggest import hint
from dse.errors import ConfigError, UnknownNameError
from dse.machine import (
    PRICE_BASES,
    Cluster,
    DeviceSpec,
    HostLinkSpec,
    HostSpec,
    LinkSpec,
    NetworkSpec,
    Offer,
    Quote,
    devices_per_domain,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import ArrayLike, NDArray

    from dse.machine.kernels import Estimate
    from dse.machine.platforms._provenance import CalibrationSource, PlatformFact
    from dse.machine.platforms._schema import PlatformDocument

Named = TypeVar("Named", LinkSpec, NetworkSpec)


@dataclass(frozen=True, slots=True)
class Platform:
    """A device-and-node type that can be had in any number.

    Attributes:
        name: Name.
        description: One line.
        device: The device.
        devices_per_node: Devices of one node.
        host_link: Path between host memory and a device.
        links: Interconnects inside a node, or pod, the default first.
        networks: Networks between nodes, or pods, the default first.
        host: Host overheads, as its file states them or as a host profile has measured them.
        offers: Instances that can be rented, with their prices.
        facts: Where every figure comes from.
        calibrations: Files of fitted models, and of a host profile, that it uses.
        host_memory_bytes: Host memory of one node; None when it is not known.
        nodes_per_pod: Nodes that the links reach over; one without pods.
        host_memory_bandwidth_bytes_per_s: Of one node; None when it is not known.
        storage_bandwidth_bytes_per_s: Of one node; None when it is not known.
        document: What it was built from, for overrides.
    """

    name: str
    description: str
    device: DeviceSpec
    devices_per_node: int
    host_link: HostLinkSpec
    links: tuple[LinkSpec, ...]
    networks: tuple[NetworkSpec, ...]
    host: HostSpec
    offers: tuple[Offer, ...]
    facts: tuple[PlatformFact, ...]
    calibrations: tuple[CalibrationSource, ...] = ()
    host_memory_bytes: float | None = None
    nodes_per_pod: int = 1
    host_memory_bandwidth_bytes_per_s: float | None = None
    storage_bandwidth_bytes_per_s: float | None = None
    document: PlatformDocument = field(kw_only=True, repr=False, compare=False)

    def __repr__(self) -> str:
        """Returns the platform in one line."""
        pod = f"{self.nodes_per_pod} nodes per pod, " if self.nodes_per_pod > 1 else ""
        return (
            f"Platform({self.name!r}, {self.devices_per_node} × {self.device.name!r} per node, "
            f"{pod}links={[link.name for link in self.links]}, "
            f"networks={[network.name for network in self.networks]})"
        )

    def _repr_html_(self) -> str:
        """Shows every figure with its origin in a notebook."""
        shown = [
            (fact.quantity, f"{fact.value} ({fact.origin})")
            for fact in self.facts
            if not fact.quantity.startswith("calibration.")
        ]
        fitted = len(self.facts) - len(shown)
        models = f"{fitted}, with their errors in `dse doctor --platform`" if fitted else ""
        return fields_html(f"{self.name}: {self.description}", [*shown, ("fitted models", models)])

    def cluster(
        self,
        world_size: int,
        *,
        link: str = "",
        network: str = "",
        extra_links: Sequence[LinkSpec] = (),
        extra_networks: Sequence[NetworkSpec] = (),
    ) -> Cluster:
        """Returns `world_size` of these devices on as few nodes as hold them.

        Args:
            world_size: Number of ranks: at most one node's, or whole nodes. If they need several
                pods, these are filled equally.
            link: Name of the interconnect inside a node, or pod; empty for the default.
            network: Name of the network between nodes, or pods; empty for the default.
            extra_links: Interconnects that may be named in addition to the platform's.
            extra_networks: Networks that may be named in addition to the platform's.

        Raises:
            ConfigError: The ranks would leave a node partly empty, or fill pods unequally.
            UnknownNameError: An interconnect does not exist.
        """
        per_node = self.devices_per_node
        if world_size % 1:
            raise ConfigError(f"world size {world_size:g} is not a whole number")
        if world_size < 1 or (world_size > per_node and world_size % per_node):
            even = max((n for n in range(2, per_node) if not world_size % n), default=0)
            other = f", or nodes of {even} (`node.devices={even}`)" if world_size and even else ""
            raise ConfigError(
                f"world size {world_size} does not fill nodes of {per_node} devices "
                f"({self.name}); use at most {per_node} or a multiple of it{other}"
            )
        if not self._fills_pods(world_size):
            around = (range(world_size, 0, -per_node), count(world_size, per_node))
            below, above = (next(filter(self._fills_pods, sizes)) for sizes in around)
            raise ConfigError(
                f"world size {world_size} does not fill pods of {per_node * self.nodes_per_pod} "
                f"devices equally ({self.name}); use {below} or {above}"
            )
        return Cluster(
            name=self.name,
            device=self.device,
            link=_choose("link", link, (*self.links, *extra_links), self.name),
            network=_choose("network", network, (*self.networks, *extra_networks), self.name),
            host_link=self.host_link,
            host=self.host,
            devices_per_node=per_node,
            world_size=world_size,
            host_memory_bytes=self.host_memory_bytes,
            nodes_per_pod=self.nodes_per_pod,
            host_memory_bandwidth_bytes_per_s=self.host_memory_bandwidth_bytes_per_s,
            storage_bandwidth_bytes_per_s=self.storage_bandwidth_bytes_per_s,
        )

    def _fills_pods(self, world_size: int) -> bool:
        domain = self.devices_per_domain(world_size)
        return world_size <= domain or world_size % domain == 0

    def devices_per_domain(self, world_size: int) -> int:
        """Returns how many devices of so many ranks a full node, or pod, holds.

        Args:
            world_size: Number of ranks.
        """
        return devices_per_domain(world_size, self.devices_per_node, self.nodes_per_pod)

    def needs_network(self, world_size: int) -> bool:
        """Returns whether so many ranks need several nodes, or pods, and a network between them.

        Args:
            world_size: Number of ranks.
        """
        return world_size > self.devices_per_domain(world_size)

    def quote(
        self,
        world_size: int,
        *,
        network: str | None = "",
        basis: str = "on_demand",
        provider: str = "",
    ) -> Quote | None:
        """Returns the cheapest way to rent `world_size` devices.

        Args:
            world_size: Number of devices.
            network: Name of the network between nodes, which the instances must have; empty for
                the platform's default, None for whatever network. It makes no difference inside
                one node, or pod.
            basis: Basis of the list prices to choose from; given prices always count.
            provider: Provider to rent from; empty for the cheapest.

        Returns:
            None when no offer fits. Superseded prices are never chosen; the first of equally cheap
            offers is.

        Raises:
            UnknownNameError: There is no such basis.
        """
        wanted = self.networks[0].name if network == "" else network
        if not self.needs_network(world_size):
            wanted = None
        quotes = []
        for offer in self._counting(basis, provider):
            instances = self._instances(offer, world_size)
            if instances is None or (wanted is not None and not offer.has_network(wanted)):
                continue
            quotes.append(Quote(instances * offer.usd_per_hour, instances, offer))
        return min(quotes, key=attrgetter("usd_per_hour"), default=None)

    def rented_networks(
        self, world_size: int, *, basis: str = "on_demand", provider: str = ""
    ) -> tuple[str, ...]:
        """Returns the networks over which `world_size` devices can be rented.

        A price that is not bound to a network counts for the default one.

        Args:
            world_size: Number of devices.
            basis: Basis of the list prices.
            provider: Provider to rent from; empty for any.

        Returns:
            The default first, if it is among them; empty without a price.
        """
        default = self.networks[0].name
        found = {
            name
            for offer in self._counting(basis, provider)
            if self._instances(offer, world_size) is not None
            for name in offer.networks or (default,)
        }
        return tuple(network.name for network in self.networks if network.name in found)

    def rented_network(
        self, world_size: int, *, basis: str = "on_demand", provider: str = ""
    ) -> str:
        """Returns the network between nodes to assume where none is named.

        It is the default one, unless offers have others only; then it is that of the cheapest.

        Args:
            world_size: Number of devices.
            basis: Basis of the list prices.
            provider: Provider to rent from; empty for any.
        """
        default = self.networks[0].name
        rented = self.rented_networks(world_size, basis=basis, provider=provider)
        if not rented or default in rented:
            return default
        quote = self.quote(world_size, network=None, basis=basis, provider=provider)
        cheapest = () if quote is None or quote.offer is None else quote.offer.networks
        return next((name for name in rented if name in cheapest), rented[0])

    def no_price_reason(
        self,
        world_size: int,
        *,
        network: str | None = "",
        basis: str = "on_demand",
        provider: str = "",
    ) -> str:
        """Returns why :meth:`quote` with the same arguments has no price; empty if it has one."""
        if self.quote(world_size, network=network, basis=basis, provider=provider) is not None:
            return ""
        wanted = f"no {basis} price" + (f" of {provider}" if provider else "")
        offers = self._counting(basis, provider)
        if not offers:
            return wanted
        whole = [offer for offer in offers if self._instances(offer, world_size) is not None]
        if not whole:
            sizes = sorted({offer.devices for offer in offers})
            most, own = sizes[-1], self.devices_per_node
            if min(world_size, own) > most:
                return f"{wanted} of instances with more than {most} device{'s' * (most > 1)}"
            counts = ", ".join(map(str, sizes))
            return f"{wanted} of instances with nodes of {own}; those with a price have {counts}"
        have = {f"{offer.provider} {offer.instance}": offer.networks for offer in whole}
        others = ", ".join(f"{name} has {' and '.join(names)}" for name, names in have.items())
        return f"{wanted} over {network or self.networks[0].name}; {others}"

    def _instances(self, offer: Offer, world_size: int) -> int | None:
        domain = self.devices_per_domain(world_size)
        return offer.instances_for(world_size, self.devices_per_node, domain)

    def _counting(self, basis: str, provider: str) -> list[Offer]:
        if basis not in PRICE_BASES:
            raise UnknownNameError(f"unknown price basis `{basis}`; {hint(basis, PRICE_BASES)}")
        return [offer for offer in self.offers if offer.counts_for(basis, provider)]

    def kernel_time(self, op: str, **shape: ArrayLike) -> NDArray[np.float64]:
        """Returns the duration of one operator on this platform's device.

        Args:
            op: `gemm` (`m`, `n`, `k`, optional `batch`, `precision`, `implementation`);
                `embedding_forward` or
                `embedding_backward` (`rows`, `dim`, `batch`, `pooling`, optional `value_bytes`
                and `alpha`, the Zipf exponent of the indices, 0 for uniform ones);
                `elementwise` (`traffic_bytes`); `concat`, `layer_norm` or `softmax` (`rows`,
                `columns`, `value_bytes`); `index_permute` (`values`); `interaction_dot` (`batch`,
                `vectors`, `dim`, `value_bytes`, optional `precision`); `cross_layer` (`batch`,
                `width`, `rank`, optional `precision`); `attention` (`batch`, `heads`, `queries`,
                `keys`, `dim`, optional `kv_heads`, `value_dim`, `window`, `causal`, `backward`,
                `precision`, `implementation`); `optimizer_step` (`parameters`,
                `state_values`: 0 for SGD, 1 for Adagrad, 2 for Adam); `memcpy_h2d`, `memcpy_d2h`
                or `memcpy_d2d` (`size_bytes`).
            **shape: Sizes of the operator; arrays broadcast. A precision is one name; products
                are in half precision by default. An implementation is a library whose kernels
                were measured, by the name in the calibration; the platform's first by default.

        Returns:
            Seconds, in the broadcast shape.

        Raises:
            UnknownNameError: The operator is not known.
            ConfigError: A size is missing, not one of the operator's, or negative.
        """
        return self.kernel_estimate(op, **shape).time_s

    def kernel_estimate(self, op: str, **shape: ArrayLike) -> Estimate:
        """Returns the duration of one operator with its uncertainty.

        Args:
            op: As for :meth:`kernel_time`.
            **shape: As for :meth:`kernel_time`.

        Returns:
            Seconds, and the standard deviation of the logarithm of actual over expected time, in
            the broadcast shape.

        Raises:
            UnknownNameError: The operator is not known.
            ConfigError: A size is missing, not one of the operator's, or negative.
        """
        from dse.machine.platforms._kernel_times import kernel_estimate

        return kernel_estimate(self.device, self.host_link, op, shape)

    def collective_time(
        self,
        op: str,
        nbytes: ArrayLike,
        world_size: int,
        *,
        link: str = "",
        network: str = "",
    ) -> NDArray[np.float64]:
        """Returns the duration of one collective over `world_size` ranks.

        Args:
            op: `all_reduce`, `all_gather`, `reduce_scatter`, `all_to_all`, `broadcast` or
                `send_recv`.
            nbytes: Message size as nccl-tests counts it: for all-gather and reduce-scatter the
                total over ranks, otherwise the buffer of one rank. Any shape.
            world_size: Number of ranks.
            link: Interconnect inside a node, or pod; empty for the default.
            network: Network between nodes, or pods; empty for the default.

        Returns:
            Seconds, in the shape of `nbytes`.

        Raises:
            UnknownNameError: The operation or an interconnect does not exist.
            ConfigError: A size or the number of ranks is impossible.
        """
        from dse.machine.collectives import CollectiveOp, collective_time_s

        known = [operation.value for operation in CollectiveOp]
        if op not in known:
            raise UnknownNameError(
                f"unknown collective `{op}`; expected one of {', '.join(known)}"
            )
        sizes = np.asarray(nbytes, dtype=np.float64)
        if not np.all((sizes >= 0) & (sizes < np.inf)):
            raise ConfigError(f"sizes {sizes}: messages have 0 bytes or more")
        cluster = self.cluster(world_size, link=link, network=network)
        return collective_time_s(cluster, op, sizes)


def _choose(kind: str, name: str, offered: Sequence[Named], platform: str) -> Named:
    if not name:
        return offered[0]
    for candidate in offered:
        if candidate.name == name:
            return candidate
    names = [candidate.name for candidate in offered]
    raise UnknownNameError(
        f"platform {platform} has no {kind} called `{name}`; {hint(name, names)}"
    )
