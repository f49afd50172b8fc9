"""One way to train a transformer, by names: what search spaces and the command line choose."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from dse.machine import Precision
from dse.workload._programs import find_program
from dse.workload.transformer._job import TransformerJob
from dse.workload.transformer._programs import TRANSFORMER_PROGRAMS
from dse.workload.transformer._types import Parallelism

if TYPE_CHECKING:
    from collections.abc import Sequence

    from dse.machine import LinkSpec, NetworkSpec
    from dse.machine.platforms import Platform
    from dse.model import TransformerModel


@dataclass(frozen=True, slots=True)
class StepConfiguration:
    """One way to train a transformer, complete enough to be predicted or run.

    Attributes:
        platform: Platform name.
        world_size: Number of ranks.
        global_batch_size: Samples of one iteration over all ranks.
        precision: Arithmetic.
        parallelism: How the step is spread over the ranks.
        link: Name of the interconnect inside a node; empty for the platform's default.
        network: Name of the network between nodes; empty for the platform's default.
        software: Name of the training program.
    """

    platform: str
    world_size: int
    global_batch_size: int
    precision: Precision
    parallelism: Parallelism
    link: str = ""
    network: str = ""
    software: str = "default"


def step_problem(
    model: TransformerModel,
    platform: Platform,
    configuration: StepConfiguration,
    *,
    extra_links: Sequence[LinkSpec] = (),
    extra_networks: Sequence[NetworkSpec] = (),
) -> TransformerJob:
    """Returns the problem that a configuration poses.

    Args:
        model: What is trained.
        platform: Device, node, networks and prices.
        configuration: Ranks, batch, precision, parallelism, interconnect, software.
        extra_links: Interconnects that may be named in addition to the platform's.
        extra_networks: Networks that may be named in addition to the platform's.

    Raises:
        ConfigError: The platform cannot have that many ranks, or a name is unknown.
    """
    return TransformerJob(
        model=model,
        cluster=platform.cluster(
            configuration.world_size,
            link=configuration.link,
            network=configuration.network,
            extra_links=tuple(extra_links),
            extra_networks=tuple(extra_networks),
        ),
        global_batch_size=configuration.global_batch_size,
        precision=configuration.precision,
        parallelism=configuration.parallelism,
        software=find_program(TRANSFORMER_PROGRAMS, configuration.software).software,
    )


def parallelism_words(parallelism: Parallelism) -> str:
    """Names the degrees above one, the micro-batch, and what differs from the plain step."""
    degrees = (
        ("tensor", parallelism.tensor),
        ("pipeline", parallelism.pipeline),
        ("context", parallelism.context),
        ("data", parallelism.data),
    )
    product = " × ".join(f"{name} {degree}" for name, degree in degrees if degree > 1)
    parts = [product] if product else []
    if parallelism.interleave > 1:
        parts.append(f"{parallelism.interleave} chunks a stage")
    parts.append(f"micro batch {parallelism.micro_batch_size}")
    if parallelism.sequence_parallel:
        parts.append("sequence parallel")
    if parallelism.recompute.value != "none":
        parts.append(f"{parallelism.recompute.value} recomputation")
    if parallelism.data_sharding.value != "none":
        parts.append(parallelism.data_sharding.value)
    return ", ".join(parts)
