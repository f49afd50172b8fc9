from __future__ import annotations

import numpy as np
import pytest

from dse.calibration.microbench import OPERATORS
from dse.calibration.microbench.operators import make_kernel
from dse.calibration.microbench.operators._dense import KERNELS
from dse.calibration.microbench.operators._embedding import LEARNING_RATE, _pool
from dse.errors import CalibrationError

torch = pytest.importorskip("torch")

BAG = {"rows": 50, "dim": 8, "batch": 6, "pooling": 3, "alpha": 0.0, "value_bytes": 4}
ACTIVATIONS = ("gelu", "gelu_backward", "silu", "silu_backward")
NORMS = ("layer_norm_backward", "rms_norm", "rms_norm_backward")
LOSSES = ("cross_entropy", "cross_entropy_backward")
CAUSAL = ("causal_attention", "causal_attention_backward")
TINY = {
    "gemm": {"m": 3, "n": 5, "k": 7},
    "embedding_forward": BAG,
    "embedding_backward": BAG,
    "elementwise": {"traffic_bytes": 64},
    "concat": {"rows": 4, "columns": 7},
    "layer_norm": {"rows": 4, "columns": 16},
    "softmax": {"rows": 4, "columns": 16},
    "interaction_dot": {"batch": 2, "vectors": 5, "dim": 4},
    "optimizer_step": {"parameters": 10, "state_values": 2},
    "index_permute": {"values": 20},
    "attention": {"batch": 2, "heads": 3, "queries": 4, "keys": 5, "dim": 8},
    **{name: {"traffic_bytes": 96} for name in ACTIVATIONS},
    **{name: {"rows": 4, "columns": 16} for name in (*NORMS, *LOSSES)},
    **{name: {"heads": 3, "tokens": 8, "dim": 4} for name in CAUSAL},
    "memcpy_h2d": {"size_bytes": 64},
    "memcpy_d2h": {"size_bytes": 64},
    "memcpy_d2d": {"size_bytes": 64},
}
SHAPES = {
    "gemm": (3, 5),
    "embedding_forward": (6, 8),
    "embedding_backward": (50, 8),
    "elementwise": (8,),
    "concat": (4, 7),
    "layer_norm": (4, 16),
    "softmax": (4, 16),
    "interaction_dot": (2, 10),
    "optimizer_step": (10,),
    "index_permute": (20,),
    "attention": (2, 3, 4, 8),
    **dict.fromkeys(("gelu", "silu"), (12,)),
    **dict.fromkeys(("gelu_backward", "silu_backward"), (8,)),
    **dict.fromkeys((*NORMS, "cross_entropy_backward"), (4, 16)),
    "cross_entropy": (),
    **dict.fromkeys(CAUSAL, (1, 3, 8, 4)),
    "memcpy_h2d": (16,),
    "memcpy_d2h": (16,),
    "memcpy_d2d": (16,),
}


def make(op: str, precision: str = "fp32", **changes):
    return make_kernel(op, TINY[op] | changes, precision, "cpu", np.random.default_rng(0))


def test_every_operator_has_a_benchmark():
    assert set(KERNELS) == set(OPERATORS)
    assert set(TINY) == {op for op in OPERATORS if not OPERATORS[op].package}
    for op, sizes in TINY.items():
        assert set(sizes) == {axis.name for axis in OPERATORS[op].axes}


#: Importing torch.optim takes seconds.
SLOW = {"optimizer_step"}


@pytest.mark.parametrize(
    "op", [pytest.param(op, marks=[pytest.mark.slow] * (op in SLOW)) for op in sorted(TINY)]
)
def test_results_have_the_shape_that_the_sizes_say(op):
    call = make(op)
    for _ in range(3):
        result = call()
    assert tuple(result.shape) == SHAPES[op]
    assert bool(torch.isfinite(result).all())


@pytest.mark.parametrize(("precision", "dtype"), [("bf16", "bfloat16"), ("fp16", "float16")])
def test_gemm_in_two_bytes(precision, dtype):
    assert make("gemm", precision)().dtype == getattr(torch, dtype)


@pytest.mark.parametrize("op", [*ACTIVATIONS, *NORMS, *LOSSES, *CAUSAL])
def test_backward_passes_alone_are_timed_without_their_forward_pass(op):
    # Gradients are leaves; what comes forward could be differentiated.
    assert make(op)().requires_grad == (not op.endswith("_backward"))


@pytest.mark.parametrize("op", ["layer_norm_backward", "cross_entropy_backward"])
def test_gradients_of_what_a_shift_does_not_change_add_up_to_zero(op):
    assert make(op)().sum(dim=1).abs().max() < 1e-5


def test_gemm_in_eight_bits_is_scaled():
    result = make("gemm", "fp8", m=16, n=32, k=48)()
    assert (result.dtype, tuple(result.shape)) == (torch.bfloat16, (16, 32))
    # Sums of 48 products of normal values.
    assert 4 < float(result.float().std()) < 10


def test_a_gpu_without_eight_bits_is_told_apart(monkeypatch):
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _device: (8, 0))
    with pytest.raises(ValueError, match=r"8\.9"):
        make_kernel("gemm", TINY["gemm"], "fp8", "cuda", np.random.default_rng(0))


def test_tf32_is_not_measured_on_a_cpu():
    with pytest.raises(ValueError, match="tf32"):
        make("gemm", "tf32")


def test_unknown_operator():
    with pytest.raises(CalibrationError, match="unknown operator `gem`"):
        make_kernel("gem", {}, "fp32", "cpu", np.random.default_rng(0))


def test_same_operands_from_the_same_generator():
    assert torch.equal(make("gemm")(), make("gemm")())


def test_forward_sums_the_rows_of_each_bag():
    # The table holds the same value everywhere.
    assert torch.allclose(make("embedding_forward")(), torch.full((6, 8), 3 * 0.5))


@pytest.mark.parametrize("alpha", [0.0, 1.05])
def test_backward_updates_the_touched_rows_and_no_others(alpha):
    # Two bags of two lookups touch at most four rows of fifty.
    call = make("embedding_backward", rows=50, batch=2, pooling=2, alpha=alpha)
    table = call().detach()
    steps = ((0.5 - table) / LEARNING_RATE).round()
    # All columns of a row get the same update, once for each lookup of the row.
    assert bool((steps == steps[:, :1]).all())
    assert int(steps[:, 0].sum()) == 4
    assert 1 <= int((steps[:, 0] > 0).sum()) <= 4


def test_backward_takes_turns():
    call = make("embedding_backward", rows=5_000, batch=2, pooling=2)
    one = (call().detach() != 0.5).any(dim=1).sum()
    for _ in range(20):
        table = call()
    several = (table.detach() != 0.5).any(dim=1).sum()
    assert int(several) > 3 * int(one)


def test_interaction_is_that_of_all_pairs():
    call = make("interaction_dot")
    products = call()
    tensors = [cell.cell_contents for cell in call.__closure__]
    (vectors,) = [value for value in tensors if torch.is_tensor(value) and value.dim() == 3]
    expected = [vectors[0, i] @ vectors[0, j] for i in range(5) for j in range(i)]
    assert torch.allclose(products[0], torch.stack(expected), atol=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("state_values", [0, 1, 2])
def test_optimizers_keep_as_many_state_values(state_values):
    call = make("optimizer_step", state_values=state_values)
    call()
    (optimizer,) = [
        cell.cell_contents
        for cell in call.__closure__
        if isinstance(cell.cell_contents, torch.optim.Optimizer)
    ]
    (state,) = optimizer.state.values() or [{}]
    full = [value for value in state.values() if torch.is_tensor(value) and value.numel() == 10]
    assert len(full) == state_values


def test_permutation_is_one():
    assert sorted(make("index_permute")().tolist()) == list(range(20))


@pytest.mark.parametrize("rows", [1, 2, 10, 999, 4096])
def test_draws_are_scattered_over_the_whole_table(rows):
    drawn = _pool(rows, 20_000, 0.0, np.random.default_rng(0))
    assert drawn.min() >= 0
    assert drawn.max() < rows
    assert len(np.unique(drawn)) > 0.95 * min(rows, 4096)


def test_popular_rows_are_not_neighbours():
    drawn = _pool(10_000, 20_000, 1.2, np.random.default_rng(0))
    counts = np.bincount(drawn, minlength=10_000)
    popular = np.sort(np.argsort(counts)[-10:])
    assert counts.max() > 1000
    assert np.diff(popular).min() > 1
