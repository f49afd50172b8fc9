"""The module that spreads a model with FSDP2: what it says, and that it trains as one rank."""

from __future__ import annotations

from dataclasses import replace

import pytest

from dse.errors import ConfigError
from dse.machine import Precision
from dse.machine.platforms import load_platform
from dse.model import load_model
from dse.workload.transformer import (
    COMPOSER,
    DEPLOY_FORMATS,
    MEGATRON_CORE,
    DataSharding,
    Parallelism,
    Recompute,
    TransformerJob,
)

CLUSTER = load_platform("h100_sxm").cluster(8)
ZERO1, ZERO2, ZERO3 = DataSharding.OPTIMIZER, DataSharding.GRADIENTS, DataSharding.PARAMETERS


def text(model="llama3_8b", software=COMPOSER, precision=Precision.BF16, batch=64, **spread):
    found = load_model(model) if isinstance(model, str) else model
    job = TransformerJob(found, CLUSTER, batch, precision, Parallelism(**spread), software)
    return DEPLOY_FORMATS["fsdp"].write(job)


@pytest.mark.parametrize("sharding", DataSharding)
@pytest.mark.parametrize("tensor", [1, 2])
def test_it_is_python(sharding, tensor):
    compile(text(data=8, tensor=tensor, data_sharding=sharding), "snippet", "exec")


def test_it_says_what_the_job_says():
    lines = text(batch=64, data=4, micro_batch_size=2, tensor=2, data_sharding=ZERO3).splitlines()
    assert {"MICRO_BATCH_SIZE = 2", "MICRO_BATCHES = 8", "REPLICATE = 1", "SHARD = 4"} <= set(
        lines
    )
    assert {"TENSOR = 2", "SEQUENCE_PARALLEL = False"} <= set(lines)
    replicated = text(data=4).splitlines()
    assert {"REPLICATE = 4", "SHARD = 1"} <= set(replicated)
    two_bytes = text(software=MEGATRON_CORE, data=4)
    assert "reduce_dtype=torch.bfloat16" in two_bytes
    assert "reduce_dtype=torch.float32" in text(data=4)


def test_groups_of_shards_and_what_stays():
    found = text(data=8, data_sharding=ZERO3, sharding_degree=4).splitlines()
    assert {"REPLICATE = 2", "SHARD = 4"} <= set(found)
    stays = text(data=8, data_sharding=ZERO3, reshard_after_forward=False)
    assert '"reshard_after_forward": False' in stays
    once = text(data=8, data_sharding=ZERO3, no_sync=True)
    assert "set_requires_gradient_sync(last)" in once
    assert "set_reshard_after_backward" not in once


def test_compiled_and_recomputed_layers():
    assert ".compile()" in text(software=MEGATRON_CORE)
    assert ".compile()" not in text()
    assert "checkpoint_wrapper(layer, early_stop=True)" in text(recompute=Recompute.FULL)


@pytest.mark.parametrize(
    "wrong",
    [
        {"pipeline": 2},
        {"context": 2},
        {"model": "qwen3_30b_a3b", "data": 8, "expert": 2},
        {"recompute": Recompute.SELECTIVE},
        {"precision": Precision.FP8},
    ],
)
def test_what_fsdp_does_not_have_is_refused(wrong):
    with pytest.raises(ConfigError):
        text(**wrong)


TINY = replace(
    load_model("llama3_8b"),
    name="tiny",
    layers=2,
    hidden=32,
    heads=4,
    kv_heads=4,
    head_dim=8,
    ffn_hidden=64,
    vocab=64,
    sequence_length=16,
)


def tiny_network():
    import torch
    from torch import nn
    from torch.nn import functional

    class Attention(nn.Module):
        def __init__(self):
            super().__init__()
            self.wq, self.wk, self.wv, self.wo = (nn.Linear(32, 32, bias=False) for _ in range(4))

        def forward(self, x):
            heads = [
                one(x).unflatten(-1, (-1, 8)).transpose(1, 2)
                for one in (self.wq, self.wk, self.wv)
            ]
            mixed = functional.scaled_dot_product_attention(*heads, is_causal=True)
            return self.wo(mixed.transpose(1, 2).flatten(2))

    class FeedForward(nn.Module):
        def __init__(self):
            super().__init__()
            self.w1, self.w3 = (nn.Linear(32, 64, bias=False) for _ in range(2))
            self.w2 = nn.Linear(64, 32, bias=False)

        def forward(self, x):
            return self.w2(functional.silu(self.w1(x)) * self.w3(x))

    class Layer(nn.Module):
        def __init__(self):
            super().__init__()
            self.attention, self.feed_forward = Attention(), FeedForward()
            self.attention_norm, self.ffn_norm = nn.RMSNorm(32), nn.RMSNorm(32)

        def forward(self, x):
            x = x + self.attention(self.attention_norm(x))
            return x + self.feed_forward(self.ffn_norm(x))

    class Network(nn.Module):
        def __init__(self):
            super().__init__()
            self.tok_embeddings = nn.Embedding(64, 32)
            self.layers = nn.ModuleDict({str(index): Layer() for index in range(2)})
            self.norm, self.output = nn.RMSNorm(32), nn.Linear(32, 64, bias=False)

        def forward(self, tokens):
            x = self.tok_embeddings(tokens)
            for layer in self.layers.values():
                x = layer(x)
            return self.output(self.norm(x))

    torch.manual_seed(0)
    return Network()


def loss_of(model, tokens):
    from torch.nn.functional import cross_entropy

    return cross_entropy(model(tokens).flatten(0, 1), tokens.flatten())


def trained_loss(rank, folder, snippets, data, results):
    """Takes two steps on one of two ranks under each snippet; the losses after them."""
    import torch
    from torch import distributed

    distributed.init_process_group(
        "gloo", init_method=f"file://{folder}/meeting", rank=rank, world_size=2
    )
    try:
        for name, (snippet, replicas) in snippets.items():
            module: dict = {}
            exec(compile(snippet, name, "exec"), module)
            model = module["parallelize"](tiny_network(), "cpu")
            optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
            own = data[rank::2] if replicas == 2 else data
            for _ in range(2):
                batches = own.split(module["MICRO_BATCH_SIZE"])
                module["train_step"](model, batches, loss_of, optimizer)
            results[rank, name] = loss_of(model, data).item()
    finally:
        distributed.destroy_process_group()


@pytest.mark.slow
def test_two_ranks_train_as_one(tmp_path):
    torch = pytest.importorskip("torch")
    from torch import multiprocessing

    data = torch.randint(0, 64, (8, 16), generator=torch.Generator().manual_seed(1))
    model = tiny_network()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    for _ in range(2):
        optimizer.zero_grad()
        loss_of(model, data).backward()
        optimizer.step()
    expected = loss_of(model, data).item()

    common = {"model": TINY, "precision": Precision.FP32, "batch": 8, "micro_batch_size": 2}
    snippets = {
        **{
            sharding.value: (text(**common, data=2, data_sharding=sharding), 2)
            for sharding in DataSharding
        },
        "recomputed": (
            text(**common, data=2, data_sharding=ZERO3, recompute=Recompute.FULL),
            2,
        ),
        "tensor": (text(**common, tensor=2), 1),
        "sequence": (text(**common, tensor=2, sequence_parallel=True), 1),
    }
    with multiprocessing.Manager() as manager:
        results = manager.dict()
        multiprocessing.spawn(
            trained_loss, (str(tmp_path), snippets, data, results), nprocs=2, join=True
        )
        found = dict(results)
    assert set(found) == {(rank, name) for rank in range(2) for name in snippets}
    assert list(found.values()) == pytest.approx([expected] * len(found), rel=1e-4)
