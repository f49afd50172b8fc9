"""Attention over a sample's history, operator by operator."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st
import numpy as np
import pytest

from dse.errors import ConfigError
from dse.machine import Precision
from dse.model import (
    Interaction,
    InteractionKind,
    OperatorKind,
    PoolingDistribution,
    SequenceLayers,
    activation_bytes,
    dense_operators,
    dense_parameter_count,
    interaction_inputs,
    load_model,
    model_flops,
    sequence_positions,
)
from tests.conftest import make_model, make_table

BATCH, LENGTH = 10, 6
#: Two heads with keys of 3 and values of 5 over positions of 4.
LAYERS = SequenceLayers(layers=2, hidden=4, heads=2, head_dim=3, value_dim=5)


def tiny(sequence=LAYERS, pooling=LENGTH, **changes):
    """A history of one table of width 4, and nothing else."""
    history = replace(make_table("item", rows=50, dim=4, pooling=pooling), pooled=False)
    model = replace(
        make_model((history,)),
        dense_features=0,
        bottom_mlp=(),
        interaction=Interaction(InteractionKind.CONCAT),
        top_mlp=(3, 1),
        sequence=sequence,
    )
    return replace(model, **changes)


def forward(model, batch=BATCH):
    ops = dense_operators(model, batch, Precision.FP32)
    return [*ops.interaction_forward, *ops.top_forward]


def backward(model, batch=BATCH):
    ops = dense_operators(model, batch, Precision.FP32)
    return [*ops.top_backward, *ops.interaction_backward]


def products(operators):
    return {op.name: (op.m, op.n, op.k) for op in operators if op.kind is OperatorKind.GEMM}


def values(operators, name, rows):
    """Values a row that an operator reads and writes, in FP32."""
    (found,) = [op for op in operators if op.name == name]
    return found.traffic_bytes / 4 / rows


def test_a_layer_by_hand():
    ops = forward(tiny())
    rows = BATCH * LENGTH
    # u and v of 2 · 5, q and k of 2 · 3.
    assert products(ops)["sequence.0.uvqk.forward"] == (rows, 32, 4)
    assert products(ops)["sequence.1.project.forward"] == (rows, 4, 10)
    assert values(ops, "sequence.0.norm", rows) == 2 * 4
    assert values(ops, "sequence.0.uvqk.activation", rows) == 2 * 32
    assert values(ops, "sequence.0.gate", rows) == 3 * 10
    # It reads the attention, its gate and the gradient of their product, and writes one of each.
    assert values(backward(tiny()), "sequence.0.gate.backward", rows) == 5 * 10
    back = products(backward(tiny()))
    assert back["sequence.0.uvqk.weight_gradient"] == (32, 4, rows)
    assert back["sequence.0.project.input_gradient"] == (rows, 10, 4)
    (attention,) = [op for op in ops if op.name == "sequence.0.attention"]
    assert dict(attention.sizes) == {
        "sequences": BATCH,
        "positions": LENGTH,
        "squared_positions": LENGTH**2,
        "heads": 2,
        "dim": 3,
        "value_dim": 5,
        "causal": 1,
        "backward": 0,
    }
    layer = (4 + 1) * 32 + 10 * 4 + 2 * 4 + 2 * 10
    assert dense_parameter_count(tiny()) == 2 * layer + (4 + 1) * 3 + 3 + 1


def test_vectors_of_another_width_pass_an_mlp_first():
    wide = replace(LAYERS, hidden=8)
    assert products(forward(tiny(wide)))["sequence.input.0.forward"] == (60, 8, 4)
    deep = replace(wide, input_mlp=(5, 8))
    assert products(forward(tiny(deep)))["sequence.input.1.forward"] == (60, 8, 5)
    assert not any(".input." in name for name in products(forward(tiny())))


def test_several_vectors_may_be_one_position():
    # Twelve lookups of 4 a sample in six positions: 8 columns each.
    model = tiny(replace(LAYERS, length=6.0), pooling=12)
    assert sequence_positions(model) == (6.0, 36.0)
    assert products(forward(model))["sequence.input.0.forward"] == (60, 4, 8)


def test_the_sequence_is_a_vector_of_the_interaction():
    pooled = make_table("user", rows=10, dim=4, pooling=1)
    model = tiny(interaction=Interaction(InteractionKind.DOT))
    model = replace(model, tables=(*model.tables, pooled))
    assert interaction_inputs(model) == (4, 4)


def test_several_predictions_repeat_what_comes_behind():
    once, often = tiny(), tiny(replace(LAYERS, predictions=5))
    assert products(forward(once))["top_mlp.0.forward"] == (10, 3, 4)
    assert products(forward(often))["top_mlp.0.forward"] == (50, 3, 4)
    assert often.outputs == 5
    # Per sample two layers keep 2 · 4 + 2 · 32 + 2 · 10 values a position each, the table's
    # vector is kept too; behind it the sequence's vector, and twice 3 and 1.
    kept = LENGTH * (4 + 2 * 92)
    assert activation_bytes(once, 7, Precision.FP16) == 7 * 2 * (kept + 2 * 4 + 8)
    assert activation_bytes(often, 7, Precision.FP16) == 7 * 2 * (kept + 5 * (2 * 4 + 8))


def test_arithmetic_of_the_published_step():
    # 63.89 TFLOP a GPU and step are published, without the MLPs around the layers.
    flops = model_flops(load_model("dlrm_hstu_recsys"), 32)
    assert flops == pytest.approx(63.89e12, rel=0.02)
    assert flops > 63.89e12
    recomputed = replace(LAYERS, recompute=True)
    assert model_flops(tiny(recomputed), BATCH) == model_flops(tiny(), BATCH)


def test_recomputation_trades_products_for_memory():
    plain, again = tiny(), tiny(replace(LAYERS, recompute=True))
    repeated = products(backward(again))["sequence.0.uvqk.recomputed.backward"]
    assert repeated == products(forward(plain))["sequence.0.uvqk.forward"]
    assert forward(again) == forward(plain)
    # The layer's input and the attention remain.
    less = LENGTH * 2 * (4 + 2 * 32 + 10)
    saved = activation_bytes(plain, 1, Precision.FP32) - activation_bytes(again, 1, Precision.FP32)
    assert saved == 4 * less


def test_a_projection_may_read_gate_and_input_too():
    model = tiny(replace(LAYERS, concatenated=True))
    assert products(forward(model))["sequence.0.project.forward"] == (60, 4, 10 + 10 + 4)
    # Reads attention, gate and input; writes the product, the gate and the input.
    assert values(forward(model), "sequence.0.gate", 60) == 2 * 10 + 4 + 2 * 10 + 4


@given(
    layers=st.integers(0, 3),
    recompute=st.booleans(),
    concatenated=st.booleans(),
    predictions=st.integers(1, 4),
)
def test_every_gradient_is_complete_after_the_product_of_its_name(
    layers, recompute, concatenated, predictions
):
    sequence = replace(
        LAYERS,
        layers=layers,
        recompute=recompute,
        concatenated=concatenated,
        predictions=predictions,
    )
    ops = dense_operators(tiny(sequence), BATCH, Precision.BF16)
    names = [op.name for op in (*ops.top_backward, *ops.interaction_backward)]
    assert len(set(names)) == len(names)
    for group in ops.parameter_groups:
        assert names[group.ready_after] == f"{group.name}.weight_gradient"


@pytest.mark.parametrize(
    ("distribution", "square"),
    [
        (PoolingDistribution.FIXED, 100.0),
        (PoolingDistribution.POISSON, 110.0),
        (PoolingDistribution.LOGNORMAL, 271.828),
    ],
)
def test_lengths_vary_as_the_pooling_distribution_says(distribution, square):
    model = tiny(pooling=10)
    table = replace(model.tables[0], pooling_distribution=distribution)
    positions, squared = sequence_positions(replace(model, tables=(table,)))
    assert positions == 10
    assert squared == pytest.approx(square, rel=1e-5)


@pytest.mark.parametrize("samples", [32, 256])
def test_the_busiest_rank_is_that_of_a_draw(samples):
    ranks, most, mean = 8, 4096, 900
    table = replace(
        make_table("item", dim=4, pooling=mean),
        pooled=False,
        pooling_distribution=PoolingDistribution.LOGNORMAL,
    )
    model = replace(tiny(replace(LAYERS, max_length=most)), tables=(table,))
    longest, heaviest = sequence_positions(model, samples, ranks)
    # A location with which cut lengths have the mean, found by the draw itself.
    rng = np.random.default_rng(1)
    normal = rng.standard_normal((500, ranks, samples))
    low, high = 0.0, 12.0
    for _ in range(40):
        middle = 0.5 * (low + high)
        drawn = np.minimum(np.exp(normal + middle), most)
        low, high = (middle, high) if drawn.mean() < mean else (low, middle)
    assert longest == pytest.approx(drawn.mean(axis=2).max(axis=1).mean(), rel=0.03)
    assert heaviest == pytest.approx((drawn**2).mean(axis=2).max(axis=1).mean(), rel=0.06)
    one, square = sequence_positions(model)
    assert (one, square) == (mean, pytest.approx((drawn**2).mean(), rel=0.03))


@given(ranks=st.integers(1, 512), samples=st.integers(1, 4096))
def test_more_ranks_wait_longer_and_larger_batches_less(ranks, samples):
    table = replace(
        make_table("item", dim=4, pooling=100),
        pooled=False,
        pooling_distribution=PoolingDistribution.LOGNORMAL,
    )
    model = replace(tiny(), tables=(table,))
    mean, square = sequence_positions(model)
    longest, heaviest = sequence_positions(model, samples, ranks)
    assert longest >= mean
    assert heaviest >= square
    assert sequence_positions(model, samples, 2 * ranks)[1] >= heaviest
    fixed = replace(table, pooling_distribution=PoolingDistribution.FIXED)
    assert sequence_positions(replace(model, tables=(fixed,)), samples, ranks) == (100, 100**2)


MODEL = """\
schema_version: 1
kind: dlrm
name: history
source: made for tests
dense_features: 0
{rest}
interaction: {{kind: concat}}
top_mlp: [4, 1]
optimizer: {{dense: adam, sparse: adam}}
global_batch_size: 64
table_defaults: {{dim: 8}}
tables:
  - {{name: item, rows: 10, pooling: 20, pooled: false}}
  - {{name: user, rows: 20}}
"""
BLOCK = "sequence: {layers: 1, hidden: 8, heads: 2, head_dim: 4"


def written(tmp_path, rest):
    file = tmp_path / "history.yaml"
    file.write_text(MODEL.format(rest=rest))
    return load_model(str(file))


def test_files_say_a_sequence(tmp_path):
    model = written(tmp_path, BLOCK + "}")
    assert model.sequence == SequenceLayers(1, 8, 2, 4, 4)
    assert [table.pooled for table in model.tables] == [False, True]
    assert model.tables[0].vectors_per_sample == 20
    assert interaction_inputs(model) == (8, 8)


@pytest.mark.parametrize(
    ("rest", "field"),
    [
        ("", "tables[0].pooled"),
        (BLOCK + ", input_mlp: [4]}", "sequence.input_mlp"),
        (BLOCK + ", predictions: 2}", "sequence.predictions"),
        (BLOCK + ", max_length: 19}", "sequence.max_length"),
        (BLOCK + "}\ntowers: [{name: t, tables: [item], mlp: [4]}]", "tables[0].pooled"),
    ],
)
def test_files_that_do_not_fit_together(tmp_path, rest, field):
    with pytest.raises(ConfigError) as error:
        written(tmp_path, rest)
    assert [problem.field for problem in error.value.diagnostics] == [field]
