from __future__ import annotations

from dataclasses import replace

import pytest

from dse.machine import Precision
from dse.machine.kernels import streaming_work
from dse.model import (
    Interaction,
    InteractionKind,
    OperatorKind,
    Optimizer,
    activation_bytes,
    dense_operators,
    dense_parameter_count,
    interaction_width,
)
from tests.conftest import make_model, make_table

BATCH = 10


def tiny(kind: InteractionKind = InteractionKind.DOT, **changes):
    """Dense input 3, bottom 5-4, two tables of width 4 with three features, top 6-1."""
    shared = replace(make_table("b", rows=7, dim=4), pooling_factors=(1.0, 2.0))
    model = replace(
        make_model((make_table("a", rows=5, dim=4), shared)),
        dense_features=3,
        bottom_mlp=(5, 4),
        top_mlp=(6, 1),
        interaction=Interaction(kind),
    )
    return replace(model, **changes)


def shapes(operators):
    gemms = (OperatorKind.GEMM, OperatorKind.BATCHED_GEMM)
    return [(op.m, op.n, op.k, op.batch) for op in operators if op.kind in gemms]


def traffic(operators):
    """Values a sample that streaming operators read and write, in FP32."""
    return [
        op.traffic_bytes / 4 / BATCH
        for op in operators
        if op.kind in (OperatorKind.ELEMENTWISE, OperatorKind.CONCAT)
    ]


def test_dot_model_operator_by_operator():
    ops = dense_operators(tiny(), BATCH, Precision.FP32)
    # Three dense values and a label of four bytes.
    assert [op.traffic_bytes for op in ops.input_copy] == [BATCH * 4 * 4]
    assert ops.input_copy[0].kind is OperatorKind.COPY_TO_DEVICE
    assert shapes(ops.bottom_forward) == [(10, 5, 3, 1), (10, 4, 5, 1)]
    assert traffic(ops.bottom_forward) == [10, 8]
    # Four vectors (three features and the dense one): 4 + 4 · 3 / 2 = 10 inputs of the top MLP.
    assert interaction_width(tiny()) == 10
    assert shapes(ops.interaction_forward) == [(4, 4, 4, 10)]
    assert traffic(ops.interaction_forward) == [2 * 16, 16 + 10]
    assert shapes(ops.top_forward) == [(10, 6, 10, 1), (10, 1, 6, 1)]
    assert [op.name for op in ops.top_forward][-1] == "loss.forward"
    # Backward: (input gradient, weight gradient) a layer, but no gradient of the data.
    assert shapes(ops.top_backward) == [
        (10, 6, 1, 1),
        (1, 6, 10, 1),
        (10, 10, 6, 1),
        (6, 10, 10, 1),
    ]
    assert shapes(ops.interaction_backward) == [(4, 4, 4, 20)]
    assert shapes(ops.bottom_backward) == [(10, 5, 4, 1), (4, 5, 10, 1), (5, 3, 10, 1)]


def test_gradients_become_ready_from_the_top_down():
    model = tiny()
    ops = dense_operators(model, BATCH, Precision.FP32)
    groups = [(group.name, group.parameters) for group in ops.parameter_groups]
    assert groups == [
        ("top_mlp.1", 7),
        ("top_mlp.0", 66),
        ("bottom_mlp.1", 24),
        ("bottom_mlp.0", 20),
    ]
    assert dense_parameter_count(model) == 117
    backward = (*ops.top_backward, *ops.interaction_backward, *ops.bottom_backward)
    ready = [backward[group.ready_after].name for group in ops.parameter_groups]
    assert ready == [f"{group.name}.weight_gradient" for group in ops.parameter_groups]


def test_cross_layers_by_hand():
    # Width 4 · 4 = 16, rank 2: V is 16 → 2, W is 2 → 16 with a bias.
    model = tiny(interaction=Interaction(InteractionKind.DCNV2_LOW_RANK, layers=2, low_rank=2))
    assert interaction_width(model) == 16
    ops = dense_operators(model, BATCH, Precision.FP32)
    assert shapes(ops.interaction_forward) == 2 * [(10, 2, 16, 1), (10, 16, 2, 1)]
    assert shapes(ops.interaction_backward) == 2 * [
        (10, 2, 16, 1),
        (16, 2, 10, 1),
        (10, 16, 2, 1),
        (2, 16, 10, 1),
    ]
    cross = [group for group in ops.parameter_groups if group.name.startswith("interaction")]
    assert [(group.name, group.parameters) for group in cross] == [
        ("interaction.1", 80),
        ("interaction.0", 80),
    ]
    # Top 16-6-1 and bottom 3-5-4 beside the two cross layers.
    assert dense_parameter_count(model) == 160 + 17 * 6 + 7 + 44


@pytest.mark.parametrize(("stride", "width"), [(1, 16), (2, 10), (5, 7), (100, 5)])
def test_pooling_shortens_only_the_embeddings(stride, width):
    # Twelve embedded values, pooled in groups of `stride` (the last may be short), and four dense.
    model = tiny(interaction=Interaction(InteractionKind.CONCAT, stride=stride))
    assert interaction_width(model) == width
    ops = dense_operators(model, BATCH, Precision.FP32)
    assert shapes(ops.top_forward)[0] == (10, 6, width, 1)
    pooled = [op.name for op in ops.interaction_forward if "pool" in op.name]
    assert pooled == ([] if stride == 1 else ["interaction.pool"])
    assert len(ops.interaction_backward) == len(ops.interaction_forward)


def test_without_a_bottom_mlp_the_dense_input_is_concatenated():
    model = tiny(InteractionKind.CONCAT, bottom_mlp=())
    ops = dense_operators(model, BATCH, Precision.FP32)
    assert interaction_width(model) == 12 + 3
    assert ops.bottom_forward == ops.bottom_backward == ()
    assert [group.name for group in ops.parameter_groups] == ["top_mlp.1", "top_mlp.0"]


@pytest.mark.parametrize(
    ("rule", "values"),
    # Gradient and weight read, weight written; each state value is read and written.
    [
        (Optimizer.SGD, 3),
        (Optimizer.ROWWISE_ADAGRAD, 5),
        (Optimizer.ADAGRAD, 5),
        (Optimizer.ADAM, 7),
    ],
)
def test_one_fused_optimizer_step(rule, values):
    (step,) = dense_operators(tiny(dense_optimizer=rule), BATCH, Precision.FP16).optimizer
    assert step.traffic_bytes == 117 * values * 4
    assert step.launches == 1
    assert step.kind is OperatorKind.OPTIMIZER_STEP
    assert dict(step.sizes) == {"parameters": 117, "state_values": (values - 3) // 2}


def test_named_operators_move_what_their_kernels_count():
    ops = dense_operators(tiny(), BATCH, Precision.FP16)
    named = [op for op in (*ops.interaction_forward, *ops.optimizer) if op.sizes]
    assert [op.kind.value for op in named] == ["concat", "optimizer_step"]
    for op in named:
        work = streaming_work(op.kind.value, dict(op.sizes))
        assert work.traffic_bytes == op.traffic_bytes


def test_half_precision_halves_activations_only():
    wide = dense_operators(tiny(), BATCH, Precision.TF32)
    half = dense_operators(tiny(), BATCH, Precision.FP16)
    assert half.bottom_forward[1].traffic_bytes == wide.bottom_forward[1].traffic_bytes / 2
    assert half.input_copy == wide.input_copy
    assert shapes(half.top_backward) == shapes(wide.top_backward)


def test_kept_activations_by_hand():
    # Input 3; before and after each activation 2 · (5 + 4) and 2 · (6 + 1); 12 embedded; 10 top.
    assert activation_bytes(tiny(), BATCH, Precision.FP32) == BATCH * 4 * (3 + 18 + 14 + 12 + 10)
