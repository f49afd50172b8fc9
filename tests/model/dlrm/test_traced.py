"""Dense parts that a file gives operator by operator."""

from __future__ import annotations

import pytest

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

MODEL = """\
schema_version: 1
kind: dlrm
name: m
source: test
dense_features: 4
traced:
  before:
    - {name: traced.bottom, kind: gemm, m: [0, 1], n: 8, k: 4}
  forward:
    - {name: traced.pairs, kind: batched_gemm, batch: [0, 1], m: 3, n: 3, k: 8}
    - {name: traced.add, kind: elementwise, values: [10, 6, 2], launches: 2}
    - {name: traced.attention, kind: sequence_attention, sequences: [0, 1], positions: 5,
       squared_positions: 25, heads: 2, dim: 8, value_dim: 4, causal: true}
  backward:
    - {name: traced.pairs.backward, kind: batched_gemm, batch: [0, 2], m: 3, n: 8, k: 3}
  after:
    - {name: traced.bottom.backward, kind: gemm, m: 8, n: 4, k: [0, 1], parameters: 40}
  kept_values: [0, 12]
  outputs: 2
optimizer: {dense: sgd, sparse: adagrad}
global_batch_size: 64
tables:
  - {name: a, rows: 10, dim: 8}
  - {name: b, rows: 10, dim: 16, pooled: false}
"""


def read(text=MODEL):
    return parse_document(text, ModelDocument, file="f.yaml").to_model()


def test_sizes_are_polynomials_of_the_samples():
    found = dense_operators(read(), 100, Precision.FP16)
    (bottom,) = found.bottom_forward
    assert (bottom.m, bottom.n, bottom.k) == (100, 8, 4)
    pairs, add, attention, loss = found.top_forward
    assert (pairs.kind, pairs.batch) == (OperatorKind.BATCHED_GEMM, 100)
    # Ten values, six a sample and two a pair of samples, of two bytes.
    assert (add.traffic_bytes, add.launches) == (2 * (10 + 600 + 20_000), 2)
    assert dict(attention.sizes)["sequences"] == 100
    assert loss.name == "loss.forward"
    (weights,) = found.bottom_backward
    assert (weights.m, weights.n, weights.k) == (8, 4, 100)


def test_arithmetic_parameters_and_memory():
    model = read()
    bottom, pairs = 2 * 64 * 8 * 4, 2 * 64 * 3 * 3 * 8
    causal = 2 * 0.5 * 64 * 25 * 2 * (8 + 4)
    assert model_flops(model, 64) == 2 * bottom + 3 * pairs + causal
    assert dense_parameter_count(model) == 40
    assert activation_bytes(model, 64, Precision.FP32) == 4 * 64 * (4 + 12)
    assert model.outputs == 2


@pytest.mark.parametrize(
    ("old", "new", "field"),
    [
        ("name: traced.add", "name: traced.pairs", "traced.forward[1].name"),
        ("k: 8}", "k: 8, parameters: 3}", "traced.forward[0].parameters"),
        ("optimizer:", "top_mlp: [3]\noptimizer:", "top_mlp"),
        ("optimizer:", "interaction: {kind: dot}\noptimizer:", "interaction"),
        ("values: [10, 6, 2]", "values: [1, 2, 3, 4]", "traced.forward[1].values"),
        (", k: [0, 1], parameters", ", parameters", "traced.after[0].k"),
    ],
)
def test_problems_are_named_at_their_field(old, new, field):
    assert MODEL.count(old) == 1
    with pytest.raises(ConfigError) as caught:
        read(MODEL.replace(old, new))
    assert [one.field for one in caught.value.diagnostics] == [field]


def test_a_model_has_an_interaction_or_operators():
    start, end = MODEL.index("traced:"), MODEL.index("optimizer:")
    with pytest.raises(ConfigError) as caught:
        read(MODEL[:start] + MODEL[end:])
    assert "interaction" in [one.field for one in caught.value.diagnostics]
