"""Lookups of FBGEMM: what the tensors hold that describe their tables."""

from __future__ import annotations

import pytest

from dse.trace.replay._registry import NotReplayableError, OperatorCall
from dse.trace.replay.plan._substitutes import (
    is_lookup,
    lookup_builder,
    table_layout,
    table_values,
)
from dse.trace.replay.read import TensorRef

torch = pytest.importorskip("torch")

LOOKUP = "fbgemm::split_embedding_codegen_lookup_adagrad_function"


def ref(count, dtype="int64"):
    return TensorRef(1, 2, 0, 8, "cuda:0", dtype, (count,), (1,))


def described(momentum):
    """Three features of width 16 over 100 rows each."""
    return {
        "dev_weights": ref(4800, "float32"),
        "weights_placements": ref(3),
        "weights_offsets": ref(3),
        "D_offsets": ref(4),
        "total_D": 48,
        "hash_size_cumsum": ref(4),
        "momentum1_dev": ref(momentum, "float32"),
        "momentum1_offsets": ref(3),
    }


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        (LOOKUP, True),
        ("fbgemm::dense_embedding_codegen_lookup_function", True),
        ("fbgemm::split_embedding_codegen_lookup_sgd_function_cpu", True),
        ("fbgemm::permute_2D_sparse_data", False),
        ("other::split_embedding_codegen_lookup_sgd_function", False),
    ],
)
def test_lookups_are_known_by_name(name, expected):
    assert is_lookup(name) is expected


def test_tables_share_block_and_width_equally():
    assert table_layout(described(4800)) == (3, 16, 100)


@pytest.mark.parametrize(("momentum", "offsets"), [(4800, (0, 1600, 3200)), (300, (0, 100, 200))])
def test_describing_tensors(momentum, offsets):
    assert table_values(described(momentum)) == {
        "weights_offsets": (0, 1600, 3200),
        "D_offsets": (0, 16, 32, 48),
        "hash_size_cumsum": (0, 100, 200, 300),
        "weights_placements": (0,),
        "momentum1_offsets": offsets,
    }


@pytest.mark.parametrize("change", [{"total_D": 2}, {"D_offsets": None}, {"dev_weights": None}])
def test_without_a_layout_nothing_is_said(change):
    assert table_values(described(300) | change) == {}


def test_without_the_library_a_lookup_is_not_rebuilt():
    if "fbgemm::dense_embedding_codegen_lookup_function" in (
        torch._C._dispatch_get_all_op_names()
    ):
        pytest.skip("FBGEMM is installed")
    call = OperatorCall(LOOKUP, f"{LOOKUP}(Tensor dev_weights) -> Tensor", (ref(1),), (), "cpu")
    with pytest.raises(NotReplayableError, match="`fbgemm` is not loaded"):
        lookup_builder(call)
