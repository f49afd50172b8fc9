"""Operators of dense parts, against arithmetic by hand and torch's own count."""

from __future__ import annotations

import pytest

pytest.importorskip("torchrec", exc_type=(ImportError, OSError))

import torch
from torch.utils.flop_counter import FlopCounterMode

import dse
from dse.config import parse_document
from dse.errors import ConfigError
from dse.machine import Precision
from dse.model import (
    ModelDocument,
    OperatorKind,
    activation_bytes,
    dense_operators,
    dense_parameter_count,
    model_flops,
)
from dse.model.torchrec import read_torchrec
from tests.model.torchrec.architectures import (
    DIM,
    LENGTH,
    Dcn,
    DeepFm,
    Forgetful,
    Mlp,
    Mmoe,
    Positions,
    Reader,
    Transformer,
    TwoTowers,
    bags,
    jagged,
    sparse,
)

B = 12


def dense(width, samples=B):
    return torch.randn(samples, width)


def product(m, n, k):
    return 2 * m * n * k


def linear(inputs, outputs, rows=B, passes=3):
    """A layer: forward, and the gradients of its input and of its weights."""
    return passes * product(rows, outputs, inputs)


def parameters(module):
    return sum(one.numel() for name, one in module.named_parameters() if "embedding" not in name)


VECTORS = 3 * DIM

CASES = [
    (
        Mlp,
        (dense(13), sparse(B)),
        # The first layer's input needs no gradient.
        linear(13, 8, passes=2) + linear(8 + VECTORS, 20) + linear(20, 1),
    ),
    (Mmoe, sparse(B), 4 * linear(VECTORS, 24) + 2 * linear(VECTORS, 4) + 2 * linear(24, 1)),
    (Dcn, sparse(B), 2 * linear(VECTORS, VECTORS) + linear(VECTORS, 1)),
    (
        DeepFm,
        (dense(10), sparse(B)),
        # Three vectors and the dense one go through the deep part; its output, the sum of
        # second order and the dense vector through the last layer.
        linear(10, 20, passes=2)
        + linear(20, DIM)
        + linear(VECTORS + DIM, 5)
        + linear(DIM + 1 + 5, 1),
    ),
    (
        TwoTowers,
        sparse(B),
        linear(2 * DIM, 12) + linear(DIM, 12) + 3 * product(B, B, 12),
    ),
    (Positions, jagged(B, history=[1, 2, 3] * 4), linear(DIM, 5, rows=2 * B)),
]


@pytest.mark.parametrize(
    ("made", "batch", "by_hand"), CASES, ids=[case[0].__name__ for case in CASES]
)
def test_products_are_those_of_the_module(made, batch, by_hand):
    module = made()
    model = read_torchrec(module, [batch]).model
    assert model.traced is not None
    assert model_flops(model, B) == by_hand
    assert dense_parameter_count(model) == parameters(module)
    with FlopCounterMode(display=False) as counted:
        results = module(*batch) if isinstance(batch, tuple) else module(batch)
        results = results if isinstance(results, list) else [results]
        torch.autograd.backward(results, [torch.ones_like(one) for one in results])
    assert model_flops(model, B) == counted.get_total_flops()


def test_attention_in_one_kernel_is_an_operator_of_its_own():
    module = Transformer()
    model = read_torchrec(module, [jagged(B, history=LENGTH)]).model
    rows = B * LENGTH
    layers = linear(DIM, 3 * DIM, rows) + linear(DIM, DIM, rows) + 2 * linear(DIM, 40, rows)
    scores = product(B * LENGTH, LENGTH, DIM)
    # Scores and outputs forward; backward the scores again, and gradients of all four.
    assert model_flops(model, B) == layers + linear(DIM, 1) + (2 + 5) * scores
    found = dense_operators(model, B, Precision.FP32)
    attention = [
        dict(one.sizes)
        for one in (*found.top_forward, *found.top_backward)
        if one.kind is OperatorKind.SEQUENCE_ATTENTION
    ]
    assert [one["backward"] for one in attention] == [0, 1]
    assert all(one["sequences"] == B and one["heads"] == 2 for one in attention)
    assert not any(one["causal"] for one in attention)


@pytest.mark.parametrize(("samples", "times"), [(2 * B, 2), (10 * B, 10)])
def test_sizes_follow_the_samples(samples, times):
    model = read_torchrec(Mmoe(), [sparse(B)]).model
    assert model_flops(model, samples) == times * model_flops(model, B)
    kept = [activation_bytes(model, count, Precision.FP32) for count in (B, samples)]
    assert kept[1] == times * kept[0]


def test_negatives_within_the_batch_follow_its_square():
    model = read_torchrec(TwoTowers(), [sparse(B)]).model
    layers = linear(2 * DIM, 12) + linear(DIM, 12)
    assert model_flops(model, 8 * B) == 8 * layers + 64 * 3 * product(B, B, 12)


def test_what_runs_beside_the_exchange_is_told_apart():
    model = read_torchrec(Mlp(), [(dense(13), sparse(B))]).model
    before, after = (
        [one.name for one in operators] for operators in (model.traced.before, model.traced.after)
    )
    assert before[0] == "traced.bottom.0.addmm"
    assert all(name.startswith(("traced.bottom", "traced.norm")) for name in (*before, *after))
    assert any(one.name.startswith("traced.over") for one in model.traced.forward)
    found = dense_operators(model, B, Precision.FP32)
    assert [one.name for one in found.bottom_forward] == before
    groups = [group.parameters for group in found.parameter_groups]
    # Each layer is complete when its own gradients are; the bottom one comes last.
    assert groups == [21, (8 + VECTORS + 1) * 20, 2 * 8, 14 * 8]


def test_values_that_are_read_and_written():
    """A ReLU reads and writes its values; backward it reads two and writes one."""

    class Relu(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.bags = bags()

        def forward(self, features):
            return self.bags(features).values().relu()

    found = read_torchrec(Relu(), [sparse(B)]).model.traced
    assert [dict(one.sizes) for one in found.forward] == [{"values": (0.0, 2 * VECTORS)}]
    assert [dict(one.sizes) for one in found.backward] == [{"values": (0.0, 3 * VECTORS)}]
    assert found.kept_values == (0.0, VECTORS)


def test_what_replaces_vectors_in_memory_is_kept_as_well():
    # What the sigmoid returns, which the layer reads, and what the exponential returns.
    for _ in range(5):
        found = read_torchrec(Forgetful(), [sparse(B)]).model.traced
        assert found.kept_values == (0.0, VECTORS + 7)


def test_the_module_is_left_as_it_was():
    module = Mlp()
    state = {name: one.clone() for name, one in module.state_dict().items()}
    random = torch.get_rng_state()
    read_torchrec(module, [(dense(13), sparse(B))])
    assert all(torch.equal(one, state[name]) for name, one in module.state_dict().items())
    assert all(one.grad is None for one in module.parameters())
    assert "forward" not in vars(module.bags)
    assert module(dense(13), sparse(B)).shape == (B,)
    torch.set_rng_state(random)


def test_weights_may_be_on_the_meta_device():
    batch = (dense(13), sparse(B))
    on_meta = read_torchrec(Mlp(device="meta"), [batch]).model
    assert on_meta.traced == read_torchrec(Mlp(), [batch]).model.traced


def test_a_module_may_look_at_its_data():
    model = read_torchrec(Reader(), [jagged(B, history=[1, 2, 5] * 4)]).model
    assert model_flops(model, B) == linear(DIM, 4, rows=5 * B)


def test_large_batches_are_cut():
    samples = 5000
    model = read_torchrec(Mlp(), [(dense(13, samples), sparse(samples))]).model
    assert model.global_batch_size == samples
    assert model_flops(model, B) == CASES[0][2]


def test_parts_of_a_batch_go_where_the_caller_says():
    batch = {"sparse": sparse(B), "labels": torch.ones(B), "dense": dense(13)}

    def loss(module, given):
        predicted = module(given["dense"], given["sparse"])
        return torch.nn.functional.binary_cross_entropy_with_logits(predicted, given["labels"])

    found = read_torchrec(Mlp(), [batch], forward=loss)
    assert model_flops(found.model, B) == CASES[0][2]
    assert found.model.outputs == 0
    by_default = read_torchrec(Mlp(), [batch])
    assert by_default.model.traced is None
    assert any("not traced" in note for note in by_default.notes)


def test_what_does_not_run_has_an_mlp_in_its_place():
    module = Mmoe()
    module.heads = torch.nn.ModuleList()
    found = read_torchrec(module, [sparse(B)])
    assert found.model.traced is None
    assert dense_parameter_count(found.model) == pytest.approx(parameters(module), rel=0.05)
    with pytest.raises(ConfigError, match="no sample batches"):
        read_torchrec(Transformer())


def test_a_module_wrapped_for_several_ranks_is_not_run():
    module = Mmoe()
    module.heads.reducer = object()
    (note,) = [one for one in read_torchrec(module, [sparse(B)]).notes if "not traced" in one]
    assert "several ranks" in note


def test_operators_of_unknown_arithmetic_are_named():
    class Convolved(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.bags, self.layer = bags(), torch.nn.Conv1d(1, 2, 3)

        def forward(self, features):
            return self.layer(self.bags(features).values().unsqueeze(1))

    notes = read_torchrec(Convolved(), [sparse(B)]).notes
    assert any("convolution" in note for note in notes)


def test_the_file_holds_the_operators_and_predicts():
    found = read_torchrec(Transformer(), [jagged(B, history=LENGTH)])
    assert parse_document(found.text, ModelDocument).to_model() == found.model
    job = dse.Job(found.model, "h100_sxm", world_size=8, global_batch_size=2**20)
    assert job.shard().iteration_time_s > 0
    groups = {task.group for task in job.explain().tasks}
    assert {"dense part forward", "dense part backward"} <= groups
