"""Outputs of the dense part, from its parameters in their order."""

from __future__ import annotations

from dataclasses import replace

import pytest

from dse.errors import ConfigError
from dse.model import (
    DataType,
    Experts,
    IndexType,
    Interaction,
    InteractionKind,
    Task,
    Tower,
    TracedDense,
)
from dse.sharding import ShardingType
from dse.validation.dlrm import make_network
from dse.validation.trainer.reference import ReferenceTrainer
from tests.validation.models import candidate, model

torch = pytest.importorskip("torch")

#: Vectors of the tables a, b (two features), c and d, of width 8.
VECTORS = 5


def run(what, samples=3):
    generator = torch.Generator().manual_seed(1)
    network = make_network(torch, what, 3, torch.float64, "cpu")
    dense = torch.rand(samples, what.dense_features, generator=generator, dtype=torch.float64)
    widths = [table.dim for table in what.tables for _ in range(table.feature_count)]
    pooled = [
        torch.rand(samples, width, generator=generator, dtype=torch.float64) for width in widths
    ]
    return network, dense, pooled, network(dense, lambda: pooled)


def linear(value, weights):
    return value @ next(weights).T + next(weights)


def without_dense(interaction, top=(1,)):
    return replace(model(interaction=interaction), dense_features=0, bottom_mlp=(), top_mlp=top)


def test_full_cross_layers():
    network, _, pooled, logits = run(without_dense(Interaction(InteractionKind.DCNV2, 2), (2,)))
    weights = iter(network.parameters())
    start = value = torch.cat(pooled, dim=1)
    for _ in range(2):
        value = start * linear(value, weights) + value
    assert torch.allclose(logits, linear(value, weights))
    assert logits.shape == (3, 2)


def test_a_factorization_machine_adds_to_the_deep_part():
    what = without_dense(Interaction(InteractionKind.FM))
    first = replace(what.tables[0], name="first", dim=1)
    network, _, pooled, logits = run(replace(what, tables=(*what.tables, first)))
    *wide, weight = pooled
    pairs = sum((wide[i] * wide[j]).sum(dim=1) for i in range(VECTORS) for j in range(i))
    deep = linear(torch.cat(wide, dim=1), iter(network.parameters()))
    assert torch.allclose(logits[:, 0], deep[:, 0] + pairs + weight[:, 0])


def test_a_dot_product_without_a_dense_vector():
    network, _, pooled, logits = run(without_dense(Interaction(InteractionKind.DOT)))
    pairs = [(pooled[i] * pooled[j]).sum(dim=1) for i in range(VECTORS) for j in range(i)]
    assert torch.allclose(logits, linear(torch.stack(pairs, dim=1), iter(network.parameters())))


def checked(one):
    return ReferenceTrainer().checked(one, "cpu")


@pytest.mark.parametrize(
    ("part", "changes"),
    [
        ("towers", {"towers": (Tower("t", ("a",), (8,)),)}),
        ("tasks", {"tasks": (Task("click", (1,)),), "experts": Experts(2, (8,))}),
        ("traced", {"traced": TracedDense((), (), (), ())}),
    ],
)
def test_parts_without_a_network_are_refused_by_name(part, changes):
    what = replace(model(), **changes)
    with pytest.raises(ConfigError, match=part):
        checked(candidate("one", what, 1, [(ShardingType.TABLE_WISE, (0,))] * 4))


@pytest.mark.parametrize(
    ("name", "changes"),
    [
        ("weighted", {"weighted": True}),
        ("bags_per_sample", {"bags_per_sample": 0.5}),
        ("output_data_type", {"output_data_type": DataType.FP16}),
        ("index_type", {"index_type": IndexType.INT32}),
    ],
)
def test_lookups_that_are_not_trained_are_refused_by_name(name, changes):
    what = model()
    what = replace(what, tables=tuple(replace(table, **changes) for table in what.tables))
    with pytest.raises(ConfigError, match=name):
        checked(candidate("one", what, 1, [(ShardingType.TABLE_WISE, (0,))] * 4))
