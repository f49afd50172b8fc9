"""Operators with recorded inputs → calls of kernel models; all sizes worked out by hand."""

from __future__ import annotations

import json

import pytest

from dse.machine import Precision
from dse.machine.platforms import load_platform
from dse.trace import OperatorInputs
from dse.trace.whatif.core import arguments_of, resized, with_precision, with_shapes
from dse.trace.whatif.retime import KernelCall, kernel_calls, operator_name, weight_of


def inputs(*tensors):
    """Inputs from `shape` or `(shape, type)`; a list of lists is a list of tensors."""
    pairs = [tensor if isinstance(tensor, tuple) else (tensor, None) for tensor in tensors]
    kinds = [kind or _kind(shape) for shape, kind in pairs]
    compact = {"separators": (",", ":")}
    return OperatorInputs(
        json.dumps([shape for shape, _ in pairs], **compact), json.dumps(kinds, **compact)
    )


def _kind(shape):
    if not shape:
        return "Scalar"
    return "TensorList" if isinstance(shape[0], list) else "float"


def calls(name, *tensors, above=()):
    return kernel_calls((*above, name), inputs(*tensors))


def only(found):
    (call,) = found
    return call.op, dict(call.shape), call.precision


def test_products():
    fp32 = Precision.FP32
    assert only(calls("aten::mm", [16, 512], [512, 367])) == (
        "gemm",
        {"m": 16, "n": 367, "k": 512},
        fp32,
    )
    assert only(calls("aten::addmm", [256], [16, 13], [13, 256], [], [])) == (
        "gemm",
        {"m": 16, "n": 256, "k": 13},
        fp32,
    )
    assert only(calls("aten::bmm", [16, 27, 8], [16, 8, 27])) == (
        "gemm",
        {"m": 27, "n": 27, "k": 8, "batch": 16},
        fp32,
    )
    assert only(calls("aten::baddbmm", [1], [4, 2, 3], [4, 3, 5]))[1]["batch"] == 4
    assert only(calls("aten::linear", [2, 8, 64], [32, 64], [32])) == (
        "gemm",
        {"m": 16, "n": 32, "k": 64},
        fp32,
    )
    assert only(calls("aten::matmul", [3, 5, 2, 7], [7, 4]))[1] == {"m": 30, "n": 4, "k": 7}
    assert only(calls("aten::matmul", [3, 5, 2, 7], [3, 5, 7, 4]))[1]["batch"] == 15
    assert only(calls("aten::mv", [8, 64], [64]))[1] == {"m": 8, "n": 1, "k": 64}


@pytest.mark.parametrize(
    ("kind", "precision"),
    [("c10::Half", "fp16"), ("c10::BFloat16", "bf16"), ("tf32", "tf32"), ("float", "fp32")],
)
def test_precision_of_products(kind, precision):
    found = calls("aten::mm", ([4, 8], kind), ([8, 2], kind))
    assert only(found)[2] == precision


def test_products_without_a_model_are_traffic():
    found = calls("aten::mm", ([4, 8], "double"), ([8, 2], "double"))
    # Both operands are read and the larger one stands for the result: (32 + 16 + 32) · 8 bytes.
    assert only(found) == ("elementwise", {"traffic_bytes": 640}, None)


def test_autograd_names_are_looked_through():
    backward = "autograd::engine::evaluate_function: AddmmBackward0"
    assert only(calls("aten::mm", [2, 3], [3, 4], above=(backward, "AddmmBackward0")))[0] == "gemm"
    assert operator_name((backward,)) == "AddmmBackward0"
    assert operator_name(("aten::cat", "## a mark ##", "ProfilerStep#3")) == "aten::cat"
    assert operator_name(("a mark",)) == ""


def test_convolutions_are_products_of_the_unfolded_input():
    # 2 samples of 8 × 8 pixels, 3 channels, 16 filters of 3 × 3.
    forward = only(calls("aten::cudnn_convolution", [2, 3, 8, 8], [16, 3, 3, 3]))
    assert forward == ("gemm", {"m": 128, "n": 16, "k": 27}, Precision.FP32)
    # With stride 2 the gradient of the output has 4 × 4 pixels.
    back = calls("aten::convolution_backward", [2, 16, 4, 4], [2, 3, 8, 8], [16, 3, 3, 3])
    assert [dict(call.shape) for call in back] == [
        {"m": 32, "n": 27, "k": 16},
        {"m": 16, "n": 27, "k": 32},
    ]


def test_grouped_convolution():
    found = only(calls("aten::convolution", [1, 8, 4, 4], [16, 2, 3, 3]))[1]
    assert found == {"m": 16, "n": 4, "k": 18, "batch": 4}


def test_attention_in_both_layouts():
    expected = {"batch": 2, "heads": 4, "queries": 8, "keys": 16, "dim": 32}
    outer = calls(
        "aten::_scaled_dot_product_flash_attention_for_cpu", [2, 4, 8, 32], [2, 4, 16, 32]
    )
    inner = calls("aten::_flash_attention_forward", [2, 8, 4, 32], [2, 16, 4, 32])
    assert only(outer)[1] == only(inner)[1] == expected
    name = "aten::_scaled_dot_product_efficient_attention_backward"
    back = calls(name, [2, 4, 8, 32], [2, 4, 8, 32], [2, 4, 16, 32])
    assert only(back)[1] == {**expected, "batch": 5}


def test_elementwise_traffic():
    # Two read, one written; then one read, one written.
    assert only(calls("aten::add", [8, 4], [8, 4]))[1] == {"traffic_bytes": 3 * 32 * 4}
    assert only(calls("aten::relu", [8, 4]))[1] == {"traffic_bytes": 2 * 32 * 4}
    assert only(calls("aten::add", [8, 4], [4]))[1] == {"traffic_bytes": (32 + 4 + 32) * 4}
    assert only(calls("aten::fill_", [8, 4], []))[1] == {"traffic_bytes": 32 * 4}
    assert only(calls("aten::sum", [8, 4], []))[1] == {"traffic_bytes": 32 * 4}
    half, single = ([8, 4], "c10::Half"), ([8, 4], "float")
    assert only(calls("aten::copy_", half, single))[1] == {"traffic_bytes": 32 * 6}
    assert only(calls("mine::unheard_of", [8, 4]))[1] == {"traffic_bytes": 2 * 32 * 4}


def test_rows():
    assert only(calls("aten::native_layer_norm", [4, 8, 16], [], [16], [16], [])) == (
        "layer_norm",
        {"rows": 32, "columns": 16, "value_bytes": 4},
        None,
    )
    assert only(calls("aten::_softmax", [4, 8, 16]))[1]["rows"] == 32
    assert only(calls("aten::cat", [[4, 3], [4, 5]]))[1] == {
        "rows": 4,
        "columns": 8,
        "value_bytes": 4,
    }
    assert only(calls("aten::cat", [[4, 3], [6, 3]]))[1]["columns"] == 30


def test_lookups():
    whole = ("long int",)
    bag = calls("aten::_embedding_bag", [1000, 16], ([60], *whole), ([20], *whole))
    assert only(bag) == (
        "embedding_forward",
        {"rows": 1000, "dim": 16, "batch": 20, "pooling": 3, "value_bytes": 4},
        None,
    )
    one = calls("aten::index_select", [1000, 16], [], ([60], *whole))
    assert only(one)[1]["pooling"] == 1
    back = calls("aten::embedding_dense_backward", [6, 10, 16], ([6, 10], *whole))
    assert only(back)[0] == "embedding_backward"
    assert only(back)[1]["batch"] == 60


def test_optimizers():
    lists = [[[8, 4], [4]]] * 4
    found = calls("aten::_fused_adam_", *lists)
    assert only(found) == ("optimizer_step", {"parameters": 36, "state_values": 2}, None)
    each = calls("aten::_foreach_add_", [[8, 4], [4]], [[8, 4], [4]])
    assert only(each)[1] == {"traffic_bytes": 3 * 36 * 4}


def test_views_do_nothing_and_missing_shapes_are_unknown():
    assert calls("aten::transpose", [8, 4], [], []) == ()
    assert calls("aten::cat", ([], "TensorList"), []) is None
    assert calls("aten::add", [], []) is None
    assert kernel_calls(("aten::add",), None) is None
    assert kernel_calls(("aten::add",), OperatorInputs("", "")) is None
    assert kernel_calls(("aten::add",), OperatorInputs("[[1,2", "[")) is None


def test_calls_are_the_platforms_models():
    platform = load_platform("v100_dgx1")
    call = KernelCall("gemm", (("m", 64.0), ("n", 32.0), ("k", 16.0)), Precision.FP16)
    assert call.time_s(platform) == platform.kernel_time("gemm", m=64, n=32, k=16)
    single = KernelCall("gemm", call.shape, Precision.FP32)
    assert single.time_s(platform) == platform.kernel_time(
        "gemm", m=64, n=32, k=16, precision="fp32"
    )


def test_weights_of_products():
    given = inputs([256], [16, 13], [13, 256], [], [])
    assert weight_of(("aten::addmm",), given).elements == 13 * 256
    assert weight_of(("aten::bmm",), inputs([2, 3, 4], [2, 4, 5])) is None


def test_changing_inputs():
    given = inputs([16, 512], [[512, 4], [32]], ([8192], "long int"), [])
    change = resized({512: 1024}, times=(16,))
    new = with_shapes(given, change)
    assert new.shapes == "[[16,1024],[[1024,4],[32]],[16384],[]]"
    assert new.types == given.types
    assert with_shapes(given, resized({7: 8})) is given

    narrow = with_precision(given, Precision.BF16)
    first, some, third, last = arguments_of(narrow)
    assert (first.size_bytes, some.size_bytes) == (2 * 16 * 512, 2 * (2048 + 32))
    assert (third.size_bytes, last.size_bytes) == (8 * 8192, 0)
    wide = with_precision(narrow, Precision.FP32)
    assert [one.size_bytes for one in arguments_of(wide)] == [
        one.size_bytes for one in arguments_of(given)
    ]
