"""A faster or slower network: collectives re-timed by the platform's collective model."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, ClassVar, Literal

from pydantic import model_validator
from pydantic_core import PydanticCustomError

from dse.errors import ConfigError
from dse.trace import Role
from dse.trace.whatif._retime_collectives import retime_collectives
from dse.trace.whatif._select import Selector
from dse.trace.whatif._steps import Factor, Optimization

if TYPE_CHECKING:
    from dse.machine import Cluster, LinkSpec, NetworkSpec
    from dse.trace.whatif._job import Job


class Network(Optimization):
    """Other links and networks: `network=2x`, or by name (`link`, `network`) on the platform.

    Attributes:
        factor: Bandwidth inside nodes and between them, times this.
        latency: Latency, times this.
        link: Interconnect of the platform, inside a node.
        network: Network of the platform, between nodes.
    """

    main_option: ClassVar[str] = "factor"

    optimization: Literal["network"] = "network"
    factor: Factor = 1.0
    latency: Factor = 1.0
    link: str = ""
    network: str = ""

    @model_validator(mode="after")
    def _says_something(self) -> Network:
        if not self.model_fields_set - {"optimization"}:
            raise PydanticCustomError(
                "network", "expected `factor`, `latency`, `link` or `network`"
            )
        return self

    def apply(self, job: Job) -> None:
        """Re-times every collective."""
        collectives = job.select(Selector(role=(Role.COLLECTIVE,)))
        if not collectives:
            raise ConfigError("the captured step has no collective, so no network can change it")
        machine = job.machine
        before = machine.cluster("network")
        machine = replace(
            machine, link=self.link or machine.link, network=self.network or machine.network
        )
        named = machine.cluster("network")
        after = self._scaled(named)
        if after is named and (named.link.name, named.network.name) == (
            before.link.name,
            before.network.name,
        ):
            raise ConfigError(
                "bandwidth, latency, link and network stay as they are; give a factor other than "
                "1, such as 2x, or another link or network of the platform"
            )
        if after is not named:
            # Measured curves are of one link only: a scaled one is told from formulas, and so is
            # what it is compared with.
            before = _without_curves(before)
        retime_collectives(job, collectives, before, after)
        job.machine = machine

    def _scaled(self, cluster: Cluster) -> Cluster:
        if self.factor == 1.0 and self.latency == 1.0:
            return cluster
        plain = _without_curves(cluster)
        pair = plain.link.pair_bandwidth_bytes_per_s
        link: LinkSpec = replace(
            plain.link,
            bandwidth_bytes_per_s=plain.link.bandwidth_bytes_per_s * self.factor,
            latency_s=plain.link.latency_s * self.latency,
            pair_bandwidth_bytes_per_s=None if pair is None else pair * self.factor,
        )
        network: NetworkSpec = replace(
            plain.network,
            nic_bandwidth_bytes_per_s=plain.network.nic_bandwidth_bytes_per_s * self.factor,
            latency_s=plain.network.latency_s * self.latency,
        )
        return replace(plain, link=link, network=network)


def _without_curves(cluster: Cluster) -> Cluster:
    return replace(cluster, link=replace(cluster.link, calibrations=()))
