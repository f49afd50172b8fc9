"""A tiny decoder, and its step as a candidate of real runs."""

from __future__ import annotations

from dataclasses import replace

from dse.machine import Precision
from dse.model import Activation, NormKind, Optimizer, load_model
from dse.validation import TransformerCandidate
from dse.workload.transformer import (
    PYTORCH,
    DataSharding,
    Parallelism,
    Recompute,
    TransformerJob,
)
from tests.conftest import make_cluster

TINY = replace(
    load_model("llama3_8b"),
    name="tiny",
    layers=2,
    hidden=32,
    heads=4,
    kv_heads=2,
    head_dim=8,
    ffn_hidden=48,
    vocab=64,
    sequence_length=16,
    norm=NormKind.LAYER,
    activation=Activation.GELU,
    optimizer=Optimizer.SGD,
)


def candidate(name, *, model=None, batch=8, precision="fp32", software=PYTORCH, **spread):
    """Returns a candidate on as many ranks as its degrees have together."""
    choices = {"data_sharding": DataSharding, "recompute": Recompute}
    spread = {key: choices.get(key, lambda same: same)(value) for key, value in spread.items()}
    parallelism = Parallelism(**spread)
    job = TransformerJob(
        replace(TINY, **(model or {})),
        make_cluster(parallelism.world_size, parallelism.world_size),
        batch,
        Precision(precision),
        parallelism,
        software,
        program="pytorch",
    )
    return TransformerCandidate(name, job)
