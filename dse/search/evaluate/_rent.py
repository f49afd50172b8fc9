"""What machines cost at the prices of a space, and the network that comes with them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dse.workload import PRICE_FIGURES, named

if TYPE_CHECKING:
    from collections.abc import Mapping

    from dse.machine import Quote
    from dse.machine.platforms import Platform
    from dse.search.space import SearchSpace
    from dse.workload import Job, ParameterValue, Workload


class Rent:
    """Prices of the machines of configurations.

    Args:
        space: Says which prices count.
        workload: What is trained.
    """

    def __init__(self, space: SearchSpace, workload: Workload) -> None:
        self._space = space
        self._workload = workload
        metrics = (workload.metric(axis.metric) for axis in space.objectives)
        #: Whether a configuration without a price is of no use.
        self.required = any(metric.needs(*PRICE_FIGURES) for metric in metrics)

    def connected(
        self, platform: Platform | None, parameters: Mapping[str, ParameterValue]
    ) -> Mapping[str, ParameterValue]:
        """Returns parameters with the network between nodes; see :meth:`Workload.connected`."""
        space = self._space
        return self._workload.connected(
            platform, parameters, basis=space.price_basis, provider=space.price_provider
        )

    def quote(
        self, job: Job, platform: Platform, parameters: Mapping[str, ParameterValue]
    ) -> Quote | None:
        """Returns what the machines of a job cost; None without a price.

        Args:
            job: The job.
            platform: Where they are offered.
            parameters: Value of every parameter.
        """
        return quote_for(platform, job.world_size, self._space, self._network(job, parameters))

    def no_price_reason(
        self, job: Job, platform: Platform, parameters: Mapping[str, ParameterValue]
    ) -> str:
        """Returns why :meth:`quote` with the same arguments has no price, and what to do."""
        space = self._space
        reason = platform.no_price_reason(
            job.world_size,
            network=self._network(job, parameters),
            basis=space.price_basis,
            provider=space.price_provider,
        )
        return (
            f"platform {platform.name} has {reason}; add an offer to its file or drop the cost "
            "objective"
        )

    def _network(self, job: Job, parameters: Mapping[str, ParameterValue]) -> str:
        """Returns the name of a job's network; empty for the platform's own."""
        if self._workload.brings_machine or job.cluster is None:
            return named(parameters, "network")
        return job.cluster.network.name


def quote_for(
    platform: Platform, world_size: int, space: SearchSpace, network: str = ""
) -> Quote | None:
    """Returns what machines cost at a space's prices; None without a price.

    Args:
        platform: Where they are offered.
        world_size: Number of devices.
        space: Says which prices count.
        network: Network between nodes, empty for the platform's own. One that the space adds is
            what the space says that all machines have, so every offer counts.
    """
    own = [known.name for known in platform.networks]
    added = network not in own and network in [known.name for known in space.networks]
    return platform.quote(
        world_size,
        network=None if added else network,
        basis=space.price_basis,
        provider=space.price_provider,
    )
