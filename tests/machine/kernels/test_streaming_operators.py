from __future__ import annotations

import numpy as np
import pytest

from dse.machine import Precision
from dse.machine.kernels import STREAMING_OPERATORS, streaming_work

#: (operator, sizes, bytes by hand, operations by hand); values of two bytes unless they say.
BY_HAND = [
    ("elementwise", {"traffic_bytes": 80}, 80, 20),
    # Six values read, six written.
    ("concat", {"rows": 2, "columns": 3, "value_bytes": 4}, 48, 0),
    # Index 8, sector 32, result 8.
    ("index_permute", {"values": 10}, 480, 0),
    # Three vectors of four: 12 values read, 9 written, 3 pairs read and 3 written, a sample.
    ("interaction_dot", {"batch": 2, "vectors": 3, "dim": 4, "value_bytes": 2}, 2 * 27 * 2, 144),
    ("interaction_dot", {"batch": 2, "vectors": 1, "dim": 4, "value_bytes": 2}, 2 * 5 * 2, 16),
    # V: x 20, V 10, V x 8; W: V x 8, W 10, result 20; then four times 20; values of two bytes.
    ("cross_layer", {"batch": 4, "width": 5, "rank": 2}, 2 * (38 + 38 + 80), 4 * 40 + 3 * 20),
    # 12 values in, 12 out, weight and bias of 6, all of two bytes; mean and deviation of 2 rows.
    ("layer_norm", {"rows": 2, "columns": 6, "value_bytes": 2}, 2 * 36 + 16, 96),
    ("softmax", {"rows": 2, "columns": 6, "value_bytes": 4}, 96, 60),
    # Queries and outputs 2 · 3 · 4 · 8 each, keys and values 2 · 3 · 5 · 8 each.
    (
        "attention",
        {"batch": 2, "heads": 3, "queries": 4, "keys": 5, "dim": 8},
        2 * (2 * 192 + 2 * 240),
        4 * 960,
    ),
    *((name, {"traffic_bytes": 80}, 80, 200) for name in ("gelu", "gelu_backward")),
    *((name, {"traffic_bytes": 80}, 80, 200) for name in ("silu", "silu_backward")),
    # 12 values and their gradients in, 12 gradients out; weight, its gradient and both of a bias.
    *(
        (f"{name}_backward", {"rows": 2, "columns": 6, "value_bytes": 2}, 2 * 60, 180)
        for name in ("layer_norm", "rms_norm")
    ),
    ("rms_norm", {"rows": 2, "columns": 6, "value_bytes": 2}, 2 * 36 + 16, 96),
    ("cross_entropy", {"rows": 2, "columns": 6, "value_bytes": 4}, 96, 60),
    # Zeros written, then read with the logarithms for the result.
    ("cross_entropy_backward", {"rows": 2, "columns": 6, "value_bytes": 4}, 192, 60),
    # Three heads of 100 tokens, which see 82 of them in blocks of 64 on average.
    ("causal_attention", {"heads": 3, "tokens": 100, "dim": 8}, 2 * 4 * 2400, 4 * 24600 * 8),
    (
        "causal_attention_backward",
        {"heads": 3, "tokens": 100, "dim": 8},
        2 * 8 * 2400,
        10 * 24600 * 8,
    ),
    ("optimizer_step", {"parameters": 10, "state_values": 0}, 10 * 4 * 3, 20),
    ("optimizer_step", {"parameters": 10, "state_values": 1}, 10 * 4 * 5, 70),
    ("optimizer_step", {"parameters": 10, "state_values": 2}, 10 * 4 * 7, 120),
    ("memcpy_d2d", {"size_bytes": 100}, 200, 0),
]


@pytest.mark.parametrize(("op", "sizes", "traffic_bytes", "flops"), BY_HAND)
def test_work_by_hand(op, sizes, traffic_bytes, flops):
    work = streaming_work(op, sizes)
    assert work.traffic_bytes == traffic_bytes
    assert work.flops == flops
    # The sizes are in the operator's order.
    assert tuple(sizes) == STREAMING_OPERATORS[op].sizes


def test_every_operator_is_checked_by_hand():
    assert {op for op, *_ in BY_HAND} == set(STREAMING_OPERATORS)


@pytest.mark.parametrize("op", STREAMING_OPERATORS)
def test_sizes_broadcast(op):
    names = STREAMING_OPERATORS[op].sizes
    sizes = dict.fromkeys(names, 2) | {names[0]: np.array([[1.0], [2.0], [5.0]])}
    sizes[names[-1]] = sizes[names[-1]] * np.ones((1, 2))
    assert streaming_work(op, sizes).traffic_bytes.shape == (3, 2)


@pytest.mark.parametrize("op", STREAMING_OPERATORS)
def test_no_samples_no_work(op):
    names = STREAMING_OPERATORS[op].sizes
    work = streaming_work(op, dict.fromkeys(names, 3) | {names[0]: 0})
    # Weights of a cross layer would be read, but not for no samples: see the estimates.
    assert work.flops == 0
    assert work.traffic_bytes == (0 if op != "cross_layer" else 2 * 2 * 9)


def test_the_precision_decides_bytes_where_sizes_do_not():
    sizes = {"batch": 1, "heads": 1, "queries": 8, "keys": 8, "dim": 8}
    half = streaming_work("attention", sizes).traffic_bytes
    assert streaming_work("attention", sizes, Precision.BF16).traffic_bytes == half
    assert streaming_work("attention", sizes, Precision.TF32).traffic_bytes == 2 * half
