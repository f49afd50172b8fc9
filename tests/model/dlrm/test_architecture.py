"""Towers, experts, tasks, and interactions beside the dot product, operator by operator."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st
import pytest

from dse.errors import ConfigError
from dse.machine import Precision
from dse.machine.kernels import gemm_estimate
from dse.model import (
    Experts,
    Interaction,
    InteractionKind,
    OperatorKind,
    Task,
    Tower,
    activation_bytes,
    dense_operators,
    dense_parameter_count,
    interaction_inputs,
    interaction_width,
    load_model,
)
from tests.conftest import make_device, make_model, make_table

BATCH = 10


def tiny(**changes):
    """Dense input 3, bottom 5-4, tables of width 4 with one and two features, top 6-1."""
    shared = replace(make_table("b", rows=7, dim=4), pooling_factors=(1.0, 2.0))
    model = replace(
        make_model((make_table("a", rows=5, dim=4), shared)),
        dense_features=3,
        bottom_mlp=(5, 4),
        top_mlp=(6, 1),
    )
    return replace(model, **changes)


def products(operators):
    """Sizes of products by name."""
    return {op.name: (op.m, op.n, op.k) for op in operators if op.kind is OperatorKind.GEMM}


def values(operators, name):
    """Values a sample that an operator reads and writes, in FP32."""
    (found,) = [op for op in operators if op.name == name]
    return found.traffic_bytes / 4 / BATCH


def operators_of(model, batch=BATCH):
    return dense_operators(model, batch, Precision.FP32)


def backward(ops):
    return (*ops.top_backward, *ops.interaction_backward, *ops.bottom_backward)


def test_full_cross_layers_have_square_matrices():
    model = tiny(interaction=Interaction(InteractionKind.DCNV2, layers=2))
    ops = operators_of(model)
    # Three features of 4 and the dense vector of 4.
    assert interaction_width(model) == 16
    assert products(ops.interaction_forward) == {
        "interaction.0.w.forward": (10, 16, 16),
        "interaction.1.w.forward": (10, 16, 16),
    }
    assert products(ops.interaction_backward) == {
        f"interaction.{layer}.w.{gradient}": sizes
        for layer in (1, 0)
        for gradient, sizes in (
            ("input_gradient", (10, 16, 16)),
            ("weight_gradient", (16, 16, 10)),
        )
    }
    cross = [group for group in ops.parameter_groups if group.name.startswith("interaction")]
    assert [group.parameters for group in cross] == [16 * 16 + 16] * 2


def test_a_factorization_machine_stands_beside_the_top_mlp():
    weight = make_table("first", rows=5, dim=1)
    model = tiny(interaction=Interaction(InteractionKind.FM))
    model = replace(model, tables=(*model.tables, weight))
    ops = operators_of(model)
    # Weights of width 1 are summed and do not enter the MLP.
    assert interaction_inputs(model) == (4, 4, 4, 1)
    assert interaction_width(model) == 16
    # Four vectors of 4 read three times and written once, six times one column's value.
    assert values(ops.interaction_forward, "interaction.fm") == 4 * 16 + 6 * 4 + 1
    assert values(ops.interaction_backward, "interaction.fm.backward") == 7 * 16 + 4 * 4 + 1


def test_models_without_dense_features():
    for kind, width in ((InteractionKind.DOT, 3), (InteractionKind.CONCAT, 12)):
        model = tiny(dense_features=0, bottom_mlp=(), interaction=Interaction(kind))
        ops = operators_of(model)
        assert interaction_width(model) == width  # three pairs, or three features of 4
        assert ops.bottom_forward == ops.bottom_backward == ()
        # Labels alone are copied.
        assert ops.input_copy[0].traffic_bytes == BATCH * 4
        assert products(ops.top_forward)["top_mlp.0.forward"] == (10, 6, width)


def test_several_outputs_have_several_labels():
    ops = operators_of(tiny(top_mlp=(6, 3)))
    assert ops.input_copy[0].traffic_bytes == BATCH * 4 * (3 + 3)
    assert values(ops.top_forward, "loss.forward") == 4 * 3


def test_towers_replace_the_vectors_of_their_tables():
    towers = (Tower("user", ("a",), (8, 4)), Tower("item", ("b",), (4,)))
    model = tiny(towers=towers, dense_features=0, bottom_mlp=(), top_mlp=())
    assert interaction_inputs(model) == (4, 4)
    assert interaction_width(model) == 1  # the product of both is the score
    ops = operators_of(model)
    assert products(ops.interaction_forward) == {
        "tower.user.0.forward": (10, 8, 4),
        "tower.user.1.forward": (10, 4, 8),
        "tower.item.0.forward": (10, 4, 8),  # two features of 4
    }
    assert products(ops.interaction_backward)["tower.user.0.input_gradient"] == (10, 4, 8)
    assert dense_parameter_count(model) == (4 * 8 + 8) + (8 * 4 + 4) + (8 * 4 + 4)


def test_heads_share_the_layers_below_them():
    tasks = (Task("click", (2, 1)), Task("rate", (5,)))
    ops = operators_of(tiny(top_mlp=(6,), tasks=tasks))
    assert list(products(ops.top_forward)) == [
        "top_mlp.0.forward",
        "task.click.0.forward",
        "task.click.1.forward",
        "task.rate.0.forward",
    ]
    assert values(ops.top_forward, "loss.click.forward") == 4
    assert values(ops.top_forward, "loss.rate.forward") == 20
    # The gradients of the shared output, 6 values, are added once.
    assert values(ops.top_backward, "task.input.backward") == 3 * 6
    assert ops.input_copy[0].traffic_bytes == BATCH * 4 * (3 + 6)


def test_a_gate_for_each_task_mixes_shared_experts():
    tasks = (Task("click", (1,)), Task("like", (1,)))
    ops = operators_of(tiny(top_mlp=(6,), experts=Experts(3, (4,)), tasks=tasks))
    forward = products(ops.top_forward)
    assert [name for name in forward if name.startswith("experts.0.gate")] == [
        "experts.0.gate.0.forward",
        "experts.0.gate.1.forward",
    ]
    assert forward["experts.0.gate.1.forward"] == (10, 3, 6)
    assert forward["experts.0.2.0.forward"] == (10, 4, 6)
    assert forward["task.click.0.forward"] == (10, 1, 4)
    # Two mixtures read three experts of 4 and three weights each and write 4.
    assert values(ops.top_forward, "experts.0.mix") == 2 * 3 * 5 + 2 * 4
    # Three experts and two gates read one input of 6: four additions.
    assert values(ops.top_backward, "experts.0.input.backward") == 3 * 4 * 6
    experts = 3 * (6 * 4 + 4) + 2 * 6 * 3
    heads = 2 * (4 + 1)
    below = 3 * 5 + 5 + 5 * 4 + 4 + (10 + 1) * 6
    assert dense_parameter_count(tiny(top_mlp=(6,), experts=Experts(3, (4,)), tasks=tasks)) == (
        below + experts + heads
    )


def test_levels_of_extraction_have_gates_of_their_own():
    tasks = (Task("click", (1,)), Task("like", (1,)))
    experts = Experts(shared=1, mlp=(4,), per_task=2, levels=2)
    forward = products(operators_of(tiny(top_mlp=(6,), experts=experts, tasks=tasks)).top_forward)
    # Five experts a level; the first has a gate for the shared ones of the second, over all five.
    assert sum(name.startswith("experts.0.") and "gate" not in name for name in forward) == 5
    assert [forward[f"experts.0.gate.{gate}.forward"] for gate in range(3)] == [
        (10, 3, 6),
        (10, 3, 6),
        (10, 5, 6),
    ]
    assert [forward[f"experts.1.gate.{gate}.forward"] for gate in range(2)] == [(10, 3, 4)] * 2
    assert "experts.1.gate.2.forward" not in forward


@st.composite
def architectures(draw):
    names = ["a", "b", "c"][: draw(st.integers(1, 3))]
    experts = draw(st.sampled_from([None, Experts(2, (4,)), Experts(1, (3, 2), 1, 2)]))
    kind = draw(
        st.sampled_from(
            [
                Interaction(InteractionKind.DOT),
                Interaction(InteractionKind.FM),
                Interaction(InteractionKind.DCNV2, layers=2),
            ]
        )
    )
    return tiny(
        top_mlp=tuple(draw(st.lists(st.integers(1, 8), max_size=2))),
        tasks=tuple(Task(name, (3, 1)) for name in names),
        experts=experts,
        interaction=kind,
        towers=draw(st.sampled_from([(), (Tower("t", ("b",), (4,)),)])),
    )


@given(architectures())
def test_every_gradient_is_complete_after_the_product_of_its_name(model):
    ops = operators_of(model)
    names = [op.name for op in backward(ops)]
    assert len(set(names)) == len(names)
    for group in ops.parameter_groups:
        name = names[group.ready_after]
        assert name.startswith(group.name)
        assert name.endswith("weight_gradient")
    assert sum(group.parameters for group in ops.parameter_groups) == dense_parameter_count(model)


@given(architectures())
def test_one_more_task_is_never_faster_nor_smaller(model):
    device = make_device()

    def seconds(ops):
        phases = (*ops.bottom_forward, *ops.interaction_forward, *ops.top_forward, *backward(ops))
        gemms = [op for op in phases if op.kind.is_product]
        streamed = sum(op.traffic_bytes for op in phases)
        return streamed / 1e12 + sum(
            gemm_estimate(device, op.m, op.n, op.k, Precision.FP32, op.batch).time_s
            for op in gemms
        )

    more = replace(model, tasks=(*model.tasks, Task("more", (2, 1))))
    assert seconds(operators_of(more)) > seconds(operators_of(model))
    assert dense_parameter_count(more) > dense_parameter_count(model)
    assert activation_bytes(more, 8, Precision.FP16) > activation_bytes(model, 8, Precision.FP16)


MODEL = """\
schema_version: 1
kind: dlrm
name: parts
source: made for tests
dense_features: {dense}
interaction: {{kind: {kind}}}
{rest}
optimizer: {{dense: sgd, sparse: sgd}}
global_batch_size: 64
table_defaults: {{dim: 8}}
tables:
  - {{name: user, rows: 10}}
  - {{name: item, rows: 20, count: 2}}
  - {{name: wide, rows: 30, dim: 16}}
"""


def written(tmp_path, rest, kind="concat", dense=0):
    file = tmp_path / "parts.yaml"
    file.write_text(MODEL.format(rest=rest, kind=kind, dense=dense))
    return load_model(str(file))


def test_files_say_towers_experts_and_tasks(tmp_path):
    model = written(
        tmp_path,
        "top_mlp: [32]\n"
        "towers: [{name: left, tables: [user, item], mlp: [16]}]\n"
        "experts: {shared: 2, mlp: [8]}\n"
        "tasks: [{name: click, top_mlp: [4, 1]}, {name: rate, top_mlp: [5]}]",
        kind="dot",
    )
    # The name of a block stands for all of its tables.
    assert model.towers == (Tower("left", ("user", "item_0", "item_1"), (16,)),)
    assert model.experts == Experts(2, (8,))
    assert model.outputs == 6
    assert interaction_inputs(model) == (16, 16)


def test_as_many_experts_of_all_tasks_as_of_each(tmp_path):
    model = written(
        tmp_path,
        "experts: {shared: 1, per_task: 1, mlp: [8]}\ntasks: [{name: click, top_mlp: [1]}]",
    )
    assert model.experts == Experts(1, (8,), per_task=1)


@pytest.mark.parametrize(
    ("rest", "kind", "field"),
    [
        ("top_mlp: [4, 1]", "dot", "tables[2].dim"),
        ("top_mlp: [4, 1]", "fm", "tables[2].dim"),
        ("top_mlp: [4, 1]\nbottom_mlp: [8]", "concat", "bottom_mlp"),
        ("top_mlp: []", "concat", "top_mlp"),
        (
            "towers: [{name: t, tables: [none], mlp: [8]}]\ntop_mlp: [1]",
            "concat",
            "towers[0].tables[0]",
        ),
        (
            "towers: [{name: t, tables: [user], mlp: [8]}, {name: u, tables: [user], mlp: [8]}]\n"
            "top_mlp: [1]",
            "concat",
            "towers[1].tables[0]",
        ),
        ("towers: [{name: t, tables: [wide], mlp: [4]}]\ntop_mlp: [1]", "dot", "towers[0].mlp"),
        ("experts: {shared: 2, mlp: [8]}\ntop_mlp: [1]", "concat", "experts"),
        (
            "experts: {shared: 0, mlp: [8]}\ntasks: [{name: a, top_mlp: [1]}]",
            "concat",
            "experts.shared",
        ),
        ("tasks: [{name: a, top_mlp: [1]}, {name: a, top_mlp: [1]}]", "concat", "tasks[1].name"),
        (
            "experts: {shared: 900, mlp: [8], levels: 12}\ntasks: [{name: a, top_mlp: [1]}]",
            "concat",
            "experts",
        ),
    ],
)
def test_files_that_do_not_fit_together(tmp_path, rest, kind, field):
    with pytest.raises(ConfigError) as error:
        written(tmp_path, rest, kind=kind)
    assert [problem.field for problem in error.value.diagnostics] == [field]


@pytest.mark.parametrize("name", ["dlrm_deepfm", "dlrm_ple", "dlrm_two_tower"])
def test_built_in_models_have_the_parts_they_are_named_for(name):
    model = load_model(name)
    parts = {
        "dlrm_deepfm": model.interaction.kind is InteractionKind.FM,
        "dlrm_ple": model.experts is not None and len(model.tasks) == 6,
        "dlrm_two_tower": len(model.towers) == 2 and interaction_width(model) == 1,
    }
    assert parts[name]
