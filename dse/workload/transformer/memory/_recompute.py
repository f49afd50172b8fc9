"""What the backward pass computes again: kernels of a layer, and how many layers do so."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dse.errors import ConfigError
from dse.workload.transformer._types import Recompute, RecomputeModule
from dse.workload.transformer.kernels._layer import LayerWork

if TYPE_CHECKING:
    from dse.model import TransformerModel
    from dse.workload.transformer._job import TransformerJob
    from dse.workload.transformer._types import Parallelism
    from dse.workload.transformer.kernels._operators import Kernel


def recomputed_kernels(problem: TransformerJob, work: LayerWork) -> list[Kernel]:
    """Returns the kernels that run a second time in each layer that is computed again.

    Args:
        problem: What is trained, where and how.
        work: Its kernels.
    """
    parallelism = problem.parallelism
    if parallelism.recompute is Recompute.FULL:
        return work.layer_recomputed()
    return [kernel for module in recomputed_modules(parallelism) for kernel in work.module(module)]


def recomputed_flops(problem: TransformerJob) -> float:
    """Returns the arithmetic that all ranks repeat in one iteration; no causal mask counts."""
    parallelism = problem.parallelism
    if parallelism.recompute is Recompute.NONE:
        return 0.0
    kinds = problem.model.layer_kinds
    of_rank = sum(
        kinds.count(kind) * kernel.flops
        for kind, alike in enumerate(problem.layer_jobs)
        for kernel in recomputed_kernels(alike, LayerWork(alike))
    )
    passes = problem.micro_batches * parallelism.data
    ranks = parallelism.tensor * parallelism.context
    return chosen_share(problem, parallelism.recompute_layers) * passes * ranks * of_rank


def recomputed_modules(parallelism: Parallelism) -> tuple[RecomputeModule, ...]:
    """Returns the parts of a layer that selective recomputation repeats; none with others."""
    if parallelism.recompute is not Recompute.SELECTIVE:
        return ()
    return parallelism.recompute_modules or (RecomputeModule.CORE_ATTENTION,)


def repeats(parallelism: Parallelism, module: RecomputeModule) -> bool:
    """Returns whether a part of a layer is computed again, alone or with all of the layer."""
    whole = parallelism.recompute is Recompute.FULL
    return whole or module in recomputed_modules(parallelism)


def chosen_layers(layers: int, limit: int) -> int:
    """Returns to how many layers of a chunk a choice applies.

    Args:
        layers: Layers of the chunk.
        limit: Most of them; 0 for all.
    """
    return min(layers, limit) if limit else layers


def chosen_share(problem: TransformerJob, limit: int) -> float:
    """Returns the share of all layers to which a choice applies.

    Args:
        problem: What is trained, where and how.
        limit: Most layers of each chunk; 0 for all.
    """
    if not limit:
        return 1.0
    spread = problem.parallelism
    chunks = [
        problem.chunk_layers(stage, chunk)
        for stage in range(spread.pipeline)
        for chunk in range(spread.interleave)
    ]
    return sum(chosen_layers(layers, limit) for layers in chunks) / sum(chunks)


def check_recomputation(model: TransformerModel, parallelism: Parallelism) -> None:
    """Checks that the model has what is computed again.

    Raises:
        ConfigError: It does not, or the choice says what to repeat where nothing is repeated.
    """
    modules, recompute = parallelism.recompute_modules, parallelism.recompute
    if modules and recompute is not Recompute.SELECTIVE:
        raise ConfigError(
            f"recompute_modules {RecomputeModule.text(modules)} with recompute {recompute}: they "
            "are what selective recomputation repeats; use selective, or leave the modules out"
        )
    if not 0 <= parallelism.recompute_layers <= model.layers:
        raise ConfigError(
            f"recompute_layers {parallelism.recompute_layers}: expected from 0, for all, to the "
            f"{model.layers} layers of {model.name}"
        )
    if parallelism.recompute_layers and recompute is Recompute.NONE:
        raise ConfigError(
            f"recompute_layers {parallelism.recompute_layers} with recompute none: nothing is "
            "repeated; use full or selective, or 0 layers"
        )
    if RecomputeModule.OPERATORS in modules:
        alone = f"recompute_modules {RecomputeModule.OPERATORS}"
        if len(modules) > 1:
            raise ConfigError(f"{alone} with other modules: it selects among all operators")
        if model.experts is not None or model.latent is not None:
            raise ConfigError(
                f"{alone}: {model.name} has products that it does not count, of experts or latent "
                "columns; use recompute full, or other modules"
            )
    missing = {
        RecomputeModule.OPERATORS: model.experts is not None or model.latent is not None,
        RecomputeModule.LATENT_UP: model.latent is None,
        RecomputeModule.FEED_FORWARD: all(one.experts for one in model.layer_models),
        RecomputeModule.EXPERTS: model.experts is None,
        RecomputeModule.EXPERT_ACTIVATION: model.experts is None,
    }
    for module in modules:
        if missing.get(module, False):
            there = [one.value for one in RecomputeModule if not missing.get(one, False)]
            raise ConfigError(
                f"recompute_modules {module}: {model.name} has no such part; it has "
                f"{', '.join(there)}"
            )
