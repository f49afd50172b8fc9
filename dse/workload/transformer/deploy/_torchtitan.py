"""Configuration file of torchtitan 0.2, the last releases that read TOML.

Its own words for what a job has: `torchtitan/config/job_config.py` of 0.2.2; its models are
chosen by flavour. Where it does a little else than what was predicted, the file's head says so.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, NamedTuple

from dse.machine import Precision
from dse.model import SlidingWindow
from dse.workload.transformer._deploy_format import DeployFormat
from dse.workload.transformer._types import (
    ContextExchange,
    DataSharding,
    LossKernels,
    Recompute,
    RecomputeModule,
    Schedule,
)

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from dse.model import TransformerModel
    from dse.workload.transformer._job import TransformerJob

#: Keys and values go round the ranks, or to all of them at once.
_ROTATIONS = {ContextExchange.RING: "alltoall", ContextExchange.ALL_GATHER: "allgather"}

#: Names of schedules, plain and with virtual stages.
_SCHEDULES = {
    (Schedule.ONE_F_ONE_B, False): "1F1B",
    (Schedule.ONE_F_ONE_B, True): "Interleaved1F1B",
    (Schedule.GPIPE, False): "GPipe",
    (Schedule.ZERO_BUBBLE, True): "InterleavedZeroBubble",
}

Value = str | int | bool | list[str]
Section = tuple[str, dict[str, Value]]


class _Sizes(NamedTuple):
    layers: int
    hidden: int
    heads: int
    kv_heads: int
    head_dim: int
    ffn_hidden: int
    vocab: int
    tied: bool = False
    experts: int = 0
    active: int = 0
    expert_hidden: int = 0
    window: SlidingWindow | None = None


_LLAMA, _QWEN, _OSS = 128_256, 151_936, 201_088
_WINDOW = SlidingWindow(128, full_every=2)

#: Models and flavours of torchtitan by their sizes.
_FLAVOURS: Mapping[_Sizes, tuple[str, str]] = {
    _Sizes(32, 4096, 32, 8, 128, 14336, _LLAMA): ("llama3", "8B"),
    _Sizes(80, 8192, 64, 8, 128, 28672, _LLAMA): ("llama3", "70B"),
    _Sizes(126, 16384, 128, 8, 128, 53248, _LLAMA): ("llama3", "405B"),
    _Sizes(28, 1024, 16, 8, 128, 3072, _QWEN, tied=True): ("qwen3", "0.6B"),
    _Sizes(28, 2048, 16, 8, 128, 6144, _QWEN, tied=True): ("qwen3", "1.7B"),
    _Sizes(36, 2560, 32, 8, 128, 9728, _QWEN, tied=True): ("qwen3", "4B"),
    _Sizes(36, 4096, 32, 8, 128, 12288, _QWEN): ("qwen3", "8B"),
    _Sizes(40, 5120, 40, 8, 128, 17408, _QWEN): ("qwen3", "14B"),
    _Sizes(64, 5120, 64, 8, 128, 25600, _QWEN): ("qwen3", "32B"),
    _Sizes(48, 2048, 32, 4, 128, 0, _QWEN, False, 128, 8, 768): ("qwen3", "30B-A3B"),
    _Sizes(94, 4096, 64, 4, 128, 0, _QWEN, False, 128, 8, 1536): ("qwen3", "235B-A22B"),
    _Sizes(24, 2880, 64, 8, 64, 0, _OSS, False, 32, 4, 2880, _WINDOW): ("gpt_oss", "20b"),
    _Sizes(36, 2880, 64, 8, 64, 0, _OSS, False, 128, 4, 2880, _WINDOW): ("gpt_oss", "120b"),
}


def _text(job: TransformerJob) -> str:
    name, flavour = _flavour(job.model)
    spread = job.parallelism
    if spread.pipeline > 1 and name != "llama3":
        raise FORMAT.refusal(f"pipeline stages for {name}", "use pipeline 1")
    if spread.context > 1 and name == "gpt_oss":
        raise FORMAT.refusal(f"context parallelism for {name}", "use context 1")
    converters, quantized = _precision(job)
    model: dict[str, Value] = {"name": name, "flavor": flavour}
    if converters:
        model["converters"] = converters
    sections: list[Section] = [
        ("job", {"description": f"{job.model.name} on {spread.world_size} ranks"}),
        ("model", model),
        ("training", _training(job)),
        ("parallelism", _parallelism(job)),
        ("activation_checkpoint", _recompute(job)),
        ("compile", _compile(job)),
        *quantized,
    ]
    head = "".join(f"# {line}\n" for line in _head(job))
    return head + "".join(f"\n[{title}]\n{_lines(values)}" for title, values in sections)


def _lines(values: Mapping[str, Value]) -> str:
    # Texts, numbers, truth values and lists of texts are written as in JSON.
    return "".join(
        f"{key} = {json.dumps(value, ensure_ascii=False)}\n" for key, value in values.items()
    )


def _head(job: TransformerJob) -> Iterator[str]:
    """Yields how to start it, and what differs from what was predicted."""
    spread = job.parallelism
    yield "torchtitan 0.2 (later releases take Python instead of TOML)"
    yield f"Start on {spread.world_size} ranks: torchrun … -m torchtitan.train"
    yield "    --job.config_file THIS_FILE --model.hf_assets_path TOKENIZER"
    if job.program != "torchtitan":
        yield f"Predicted for the program {job.program or 'that was given'}, not for torchtitan."
    yield "Yours to add: data, learning rate, steps, checkpoints."
    if job.gradient_bytes != 4 and spread.replicas > 1:
        yield f"Gradients are reduced in FP32; predicted with {job.gradient_bytes} bytes."
    if spread.data_sharding is DataSharding.OPTIMIZER and spread.pipeline == 1:
        yield "Gradients are sharded too (ZeRO-2); predicted with ZeRO-1."
    each = spread.data_sharding.shards_gradients and not spread.no_sync
    if each and spread.pipeline > 1 and job.micro_batches > 1:
        yield "Gradients are reduced once a step; predicted after every micro-batch."
    if job.precision is Precision.FP8:
        yield "FP8 needs torchao; scales of whole tensors are those of the present step."
        if job.model.experts is not None:
            yield "Experts have one scale a row."


def _flavour(model: TransformerModel) -> tuple[str, str]:
    experts = model.experts
    # Of its models only gpt-oss has biases, in attention and in experts.
    if (model.qkv_bias or model.attention_output_bias) and not (experts and experts.biases):
        raise FORMAT.refusal("flavour with biases of attention", "use --format json or yaml")
    sizes = _Sizes(
        model.layers,
        model.hidden,
        model.heads,
        model.kv_heads,
        model.head_dim,
        model.ffn_hidden,
        model.vocab,
        model.tied_embeddings,
        *((experts.count, experts.active, experts.ffn_hidden) if experts else (0, 0, 0)),
        model.window,
    )
    if sizes not in _FLAVOURS:
        known = ", ".join(" ".join(names) for names in _FLAVOURS.values())
        raise FORMAT.refusal(f"flavour with the sizes of {model.name}", f"it has {known}")
    return _FLAVOURS[sizes]


def _training(job: TransformerJob) -> dict[str, Value]:
    spread = job.parallelism
    # A pipeline divides the local batch into micro-batches; without one, gradients accumulate.
    local = (
        job.global_batch_size // spread.data if spread.pipeline > 1 else spread.micro_batch_size
    )
    low = job.precision.outside_products is Precision.BF16
    return {
        "local_batch_size": local,
        "global_batch_size": job.global_batch_size,
        "seq_len": job.model.sequence_length,
        "mixed_precision_param": "bfloat16" if low else "float32",
        "mixed_precision_reduce": "float32",
    }


def _parallelism(job: TransformerJob) -> dict[str, Value]:
    spread = job.parallelism
    found: dict[str, Value] = _data(job)
    _check_unsharded(job)
    if spread.tensor > 1 and not spread.sequence_parallel:
        raise FORMAT.refusal(
            "tensor parallelism without sequence parallelism", "use sequence_parallel true"
        )
    found["tensor_parallel_degree"] = spread.tensor
    if spread.tensor > 1:
        asynchronous = job.overlaps_tensor_products and job.software.fused_elementwise
        found["enable_async_tensor_parallel"] = asynchronous
    found["context_parallel_degree"] = spread.context
    if spread.context > 1:
        if spread.context_exchange not in _ROTATIONS:
            raise FORMAT.refusal(
                f"context exchange {spread.context_exchange}", f"it has {', '.join(_ROTATIONS)}"
            )
        found["context_parallel_rotate_method"] = _ROTATIONS[spread.context_exchange]
    # Without expert parallelism experts are shared as all other matrices are.
    wanted = {spread.tensor} if spread.expert == 1 else {1, spread.tensor}
    if job.model.experts is not None and spread.expert_shards not in wanted:
        raise FORMAT.refusal(
            f"expert_tensor {spread.expert_shards} with tensor {spread.tensor} and expert "
            f"{spread.expert}",
            f"use {' or '.join(map(str, sorted(wanted)))}",
        )
    if spread.expert > 1:
        found["expert_parallel_degree"] = spread.expert
        found["expert_tensor_parallel_degree"] = spread.expert_shards
    found["pipeline_parallel_degree"] = spread.pipeline
    if spread.pipeline > 1:
        layers = job.layers_by_chunk
        if min(layers[1:-1], default=max(layers)) < max(layers):
            raise FORMAT.refusal(
                f"stages of {', '.join(map(str, layers))} layers",
                "use another program or pipeline",
            )
        schedule = spread.schedule, spread.interleave > 1
        if schedule not in _SCHEDULES:
            raise FORMAT.refusal(
                f"schedule {spread.schedule} with one stage on each rank", "use interleave > 1"
            )
        found |= {
            "pipeline_parallel_schedule": _SCHEDULES[schedule],
            "pipeline_parallel_microbatch_size": spread.micro_batch_size,
            "pipeline_parallel_layers_per_stage": max(layers),
            "pipeline_parallel_first_stage_less_layers": max(layers) - layers[0],
            "pipeline_parallel_last_stage_less_layers": max(layers) - layers[-1],
        }
    return found


def _data(job: TransformerJob) -> dict[str, Value]:
    spread = job.parallelism
    if spread.data_sharding is DataSharding.NONE:
        if spread.context > 1:
            raise FORMAT.refusal(
                "context-parallel ranks that shard nothing", "use data_sharding zero1"
            )
        return {
            "data_parallel_replicate_degree": spread.data,
            "data_parallel_shard_degree": 1,
        }
    if spread.shards % spread.context:
        raise FORMAT.refusal(
            f"sharding degree {spread.shards} with context {spread.context}",
            "use a multiple of the context-parallel ranks",
        )
    if spread.no_sync and spread.pipeline == 1:
        raise FORMAT.refusal("no_sync without pipeline stages", "use no_sync false")
    keeps = spread.data_sharding is not DataSharding.PARAMETERS
    keeps = keeps or not spread.reshard_after_forward
    return {
        "data_parallel_replicate_degree": spread.replicas // spread.shards,
        "data_parallel_shard_degree": spread.shards // spread.context,
        "fsdp_reshard_after_forward": "never" if keeps else "always",
    }


def _check_unsharded(job: TransformerJob) -> None:
    """Refuses what torchtitan only does where FSDP shards something.

    Raises:
        ConfigError: There is such a thing; what to use instead.
    """
    spread = job.parallelism
    shards = 1 if spread.data_sharding is DataSharding.NONE else spread.shards
    if shards > 1:
        return
    several = spread.tensor * spread.pipeline > 1
    for wrong, what in (
        (
            several and spread.data > 1,
            "replicas beside other kinds of parallelism that shard nothing",
        ),
        (
            several and job.precision.outside_products is Precision.BF16,
            f"{job.precision} beside tensor parallelism or pipeline stages where nothing is "
            "sharded over other ranks",
        ),
        (spread.expert > 1 and spread.data > 1, "experts on replicas that shard nothing else"),
    ):
        if wrong:
            raise FORMAT.refusal(what, "use data_sharding zero1 on several replicas")


def _recompute(job: TransformerJob) -> dict[str, Value]:
    spread, early = job.parallelism, job.software.stops_recomputing_early
    by_operator = spread.recompute_modules == (RecomputeModule.OPERATORS,)
    if spread.recompute is Recompute.SELECTIVE and (not by_operator or spread.recompute_layers):
        raise FORMAT.refusal(
            "recomputation of parts of a layer or in some layers",
            f"use recompute none or full, or recompute_modules {RecomputeModule.OPERATORS}",
        )
    if by_operator:
        return {"mode": "selective", "selective_ac_option": "op", "early_stop": early}
    if every := spread.recompute_layers:
        layers = job.chunk_layers(0, 0)
        if layers % every:
            raise FORMAT.refusal(
                f"recomputation of {every} of {layers} layers", "use a number that divides them"
            )
        return {
            "mode": "selective",
            "selective_ac_option": str(layers // every),
            "early_stop": early,
        }
    return {"mode": spread.recompute.value, "early_stop": early}


def _compile(job: TransformerJob) -> dict[str, Value]:
    components = ["model", "loss"] if job.software.loss is LossKernels.FUSED else ["model"]
    return {"enable": job.software.fused_elementwise, "components": components}


def _precision(job: TransformerJob) -> tuple[list[str], list[Section]]:
    """Returns the converters of a precision, and their sections."""
    experts = job.model.experts is not None
    if job.precision in (Precision.BF16, Precision.FP32):
        return [], []
    if job.precision not in (Precision.FP8, Precision.MXFP8):
        raise FORMAT.refusal(f"precision {job.precision}", "it has bf16, fp32, fp8 and mxfp8")
    if job.precision is Precision.MXFP8 and job.parallelism.tensor > 1:
        raise FORMAT.refusal("mxfp8 with tensor parallelism", "use fp8, or tensor 1")
    if experts and job.parallelism.context > 1:
        raise FORMAT.refusal(f"{job.precision} experts with context parallelism", "use context 1")
    kind = "float8" if job.precision is Precision.FP8 else "mx"
    linear: dict[str, Value] = {"filter_fqns": ["output"]}
    if job.gathers_fp8 and job.parallelism.data_sharding is DataSharding.PARAMETERS:
        linear |= {"enable_fsdp_float8_all_gather": True}
    sections: list[Section] = [(f"quantize.linear.{kind}", linear)]
    if experts:
        sections.append((f"quantize.grouped_mm.{kind}", {"fqns": ["experts"]}))
    return [title for title, _ in sections], sections


FORMAT = DeployFormat(
    name="torchtitan",
    framework="torchtitan",
    text=_text,
    parallelism=frozenset(
        {
            "tensor",
            "pipeline",
            "data",
            "context",
            "expert",
            "expert_tensor",
            "interleave",
            "sequence_parallel",
            "micro_batch_size",
            "recompute",
            "recompute_modules",
            "recompute_layers",
            "data_sharding",
            "schedule",
            "sharding_degree",
            "reshard_after_forward",
            "no_sync",
            "context_exchange",
        }
    ),
    model=frozenset(
        {
            "experts",
            "imbalance",
            "skew",
            "biases",
            "qkv_bias",
            "attention_output_bias",
            "limited",
            "router_groups",
            "active_groups",
            "window",
        }
    ),
)
