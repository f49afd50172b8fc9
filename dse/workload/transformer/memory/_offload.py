"""Activations and optimizer state in host memory: what is copied, and what that takes.

Activations leave behind the layers that made them and come back ahead of the backward pass on the
copy engines, next to the kernels, as Megatron-Core's `cpu_offloading` and FSDP's offload of saved
tensors do. The state of an offloaded optimizer stays in host memory; the gradients of a rank's
shard go there, the cores of the host update it, and new weights return, one after the other
(ZeRO-Offload: Ren et al., arXiv 2101.06840). All devices of a node copy at the same time, and
their updates share its memory.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from dse.errors import ConfigError
from dse.machine.kernels import host_copy_time_s
from dse.workload.transformer.memory._account import kept_layer_bytes
from dse.workload.transformer.memory._parameters import optimizer_parameters
from dse.workload.transformer.memory._recompute import chosen_share
from dse.workload.transformer.step._cost import Cost

if TYPE_CHECKING:
    from dse.model import TransformerModel
    from dse.workload.transformer._job import TransformerJob
    from dse.workload.transformer._types import Parallelism

#: Share of the host memory's bandwidth that the cores reach in an update; assumed.
_HOST_UPDATE_EFFICIENCY = 0.8


def offloaded_layer(problem: TransformerJob, kernels_s: float) -> Cost:
    """Returns what a layer's copies add to its kernels in either direction, for an average layer.

    Args:
        problem: What is trained, where and how.
        kernels_s: Time of the layer's kernels and exposed transfers, which the copies overlap.
    """
    parallelism = problem.parallelism
    if not parallelism.offload.activations:
        return Cost()
    link = problem.cluster.host_link_of_all
    copy_s = float(host_copy_time_s(link, kept_layer_bytes(problem)))
    copy_s *= chosen_share(problem, parallelism.offload_layers)
    return Cost(host_link_s=max(0.0, copy_s - kernels_s))


def host_update(problem: TransformerJob, stage: int) -> Cost:
    """Returns an update of a stage's optimizer state in host memory, with its copies."""
    cluster, parameters = problem.cluster, optimizer_parameters(problem, stage)
    value = problem.precision.value_bytes
    link = cluster.host_link_of_all
    copies_s = sum(
        float(host_copy_time_s(link, parameters * size))
        for size in (problem.gradient_bytes, value)
    )
    memory = cluster.host_memory_bandwidth_bytes_per_s
    if memory is None:
        return Cost(host_link_s=copies_s)
    # Gradient, master weight and state are read, the latter two and the weight are written.
    state = 4 * (1 + problem.model.optimizer.state_values_per_parameter)
    traffic = parameters * (problem.gradient_bytes + 2 * state + value)
    share = memory / cluster.local_size * _HOST_UPDATE_EFFICIENCY
    return Cost(host_link_s=copies_s + traffic / share)


def check_offload(model: TransformerModel, spread: Parallelism) -> None:
    """Checks that something is offloaded where a number of layers says how much.

    Raises:
        ConfigError: It is not, or the number is negative or beyond the layers of the model.
    """
    if not 0 <= spread.offload_layers <= model.layers:
        raise ConfigError(
            f"offload_layers {spread.offload_layers}: expected from 0, for all, to the "
            f"{model.layers} layers of {model.name}"
        )
    if spread.offload_layers and not spread.offload.activations:
        raise ConfigError(
            f"offload_layers {spread.offload_layers} with offload {spread.offload}: no "
            "activations are offloaded; use activations or all, or 0 layers"
        )
