"""From command-line words to a configuration."""

from __future__ import annotations

from dataclasses import replace
from enum import StrEnum
from typing import TYPE_CHECKING, TypeVar

from dse.errors import ConfigError

if TYPE_CHECKING:
    from dse.machine.platforms import Platform
    from dse.model import DlrmModel
    from dse.workload.dlrm import Configuration, Prediction

Word = TypeVar("Word", bound=StrEnum)


def configuration_of(
    model: DlrmModel,
    platform: Platform,
    world_size: int,
    *,
    global_batch_size: int,
    link: str,
    network: str,
    precision: str,
    launch: str,
    software_profile: str = "",
) -> Configuration:
    """Returns the configuration that a command's options describe, still without a plan.

    Without `launch` it is the profile's own, or eager.

    Raises:
        ConfigError: An option has a value that does not exist.
    """
    from dse.machine import Precision
    from dse.sharding import ShardingPlan
    from dse.workload.dlrm import Configuration, LaunchMode, Software
    from dse.workload.dlrm import software_profile as profile_of

    chosen = word_of(Precision, precision, "--precision") if precision else model.precision
    software = (
        profile_of(software_profile).software_for(chosen) if software_profile else Software()
    )
    if launch:
        # The option says more about this run than the profile.
        software = replace(software, launch=word_of(LaunchMode, launch, "--launch"))
    return Configuration(
        platform=platform.name,
        world_size=world_size,
        global_batch_size=global_batch_size,
        plan=ShardingPlan(world_size, ()),
        precision=chosen,
        link=link,
        network=network,
        software=software,
    )


def prediction_json(prediction: Prediction) -> dict[str, object]:
    """Returns a prediction with the names of the public contract."""
    return {
        "iteration_time_s": prediction.iteration_time_s,
        "iteration_time_p5_s": prediction.iteration_time_p5_s,
        "iteration_time_p95_s": prediction.iteration_time_p95_s,
        "throughput_samples_per_s": prediction.throughput_samples_per_s,
        "price_usd_per_hour": prediction.price_usd_per_hour,
        "cost_usd_per_million_samples": prediction.cost_usd_per_million_samples,
        "memory_bytes_per_rank": list(prediction.memory_bytes_per_rank),
        "usable_memory_bytes": prediction.usable_memory_bytes,
        "feasible": prediction.feasible,
        "infeasible_reason": prediction.infeasible_reason,
        "breakdown": [
            {
                "compute_s": rank.compute_s,
                "exposed_communication_s": rank.exposed_communication_s,
                "host_s": rank.host_s,
                "idle_s": rank.idle_s,
            }
            for rank in prediction.breakdown
        ],
    }


def word_of(kind: type[Word], value: str, option: str) -> Word:
    """Returns the member of a set of words that an option names.

    Raises:
        ConfigError: There is none of that name.
    """
    try:
        return kind(value)
    except ValueError:
        known = ", ".join(member.value for member in kind)
        raise ConfigError(f"{option}: expected one of {known}; found `{value}`") from None
