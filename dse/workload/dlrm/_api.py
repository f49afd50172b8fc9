"""From a model, a platform and a configuration to a prediction."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from dse.sharding import check_plan
from dse.workload.dlrm._job import predict_plan
from dse.workload.dlrm._problem import DlrmProblem
from dse.workload.dlrm._scorer import PlanScorer

if TYPE_CHECKING:
    from collections.abc import Sequence

    from dse.machine import LinkSpec, NetworkSpec
    from dse.machine.host import HostProfile
    from dse.machine.platforms import Platform
    from dse.model import DlrmModel
    from dse.workload._prediction import Prediction
    from dse.workload.dlrm._types import Configuration


def problem_of(
    model: DlrmModel,
    platform: Platform,
    configuration: Configuration,
    *,
    extra_links: Sequence[LinkSpec] = (),
    extra_networks: Sequence[NetworkSpec] = (),
    host_profile: HostProfile | None = None,
) -> DlrmProblem:
    """Returns the problem that a configuration poses, its plan left out.

    Args:
        model: What is trained.
        platform: Device, node, networks and prices.
        configuration: World size, batch, precision, interconnect, software.
        extra_links: Interconnects that may be named in addition to the platform's.
        extra_networks: Networks that may be named in addition to the platform's.
        host_profile: Host overheads from traces; they replace the platform's as far as they go.

    Raises:
        ConfigError: The batch does not divide over the ranks, the platform cannot have that many
            ranks, or an interconnect is unknown.
    """
    cluster = platform.cluster(
        configuration.world_size,
        link=configuration.link,
        network=configuration.network,
        extra_links=tuple(extra_links),
        extra_networks=tuple(extra_networks),
    )
    if host_profile is not None:
        cluster = replace(cluster, host=host_profile.host_spec(cluster.host))
    return DlrmProblem(
        model,
        cluster,
        configuration.global_batch_size,
        configuration.precision,
        configuration.software,
        host_profile,
    )


def predict(
    model: DlrmModel,
    platform: Platform,
    configuration: Configuration,
    *,
    host_profile: HostProfile | None = None,
) -> Prediction:
    """Predicts one configuration without running it.

    Args:
        model: What is trained.
        platform: Where.
        configuration: How, the sharding plan included.
        host_profile: Host overheads from traces (see :func:`problem_of`).

    Returns:
        Iteration time with its 90 % interval, throughput, cost at the cheapest on-demand list
        price, breakdown and memory of every rank, and feasibility with its reason.

    Raises:
        ConfigError: A value does not fit the platform (see :func:`problem_of`).
        PlanError: The plan is for another model or another number of ranks.
    """
    problem = problem_of(model, platform, configuration, host_profile=host_profile)
    plan = check_plan(
        configuration.plan,
        model.tables,
        problem.cluster.world_size,
        problem.cluster.devices_per_node,
    )
    quote = platform.quote(configuration.world_size)
    return predict_plan(PlanScorer(problem), plan, quote)
