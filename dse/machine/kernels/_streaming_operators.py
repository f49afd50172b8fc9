"""Traffic and arithmetic of operators other than GEMM and embedding.

Each function counts one operator's bytes, read plus written with every operand touched once, and
its arithmetic, from its sizes. Where an operator has no `value_bytes`, the precision
gives them. Indices that all rows share stay in the cache and are not counted.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Sizes = Mapping[str, NDArray[np.float64]]

#: Bytes of one memory transaction.
_SECTOR_BYTES = 32


@dataclass(frozen=True, slots=True)
class StreamingWork:
    """Work of one call.

    Attributes:
        traffic_bytes: Bytes read plus bytes written, any shape.
        flops: Arithmetic operations, same shape.
    """

    traffic_bytes: NDArray[np.float64]
    flops: NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class StreamingOperator:
    """One operator.

    Attributes:
        sizes: Names of its sizes.
        work: Counts bytes and operations from the sizes and `value_bytes`.
        launches: Kernels that it consists of.
        matrix_efficiency: Share of the precision's peak rate that its products reach; None when
            it has none, so that its arithmetic is ordinary FP32.
    """

    sizes: tuple[str, ...]
    work: Callable[[Sizes], StreamingWork]
    launches: int = 1
    matrix_efficiency: float | None = None


def _elementwise(size: Sizes) -> StreamingWork:
    """One operation for each four bytes moved."""
    return StreamingWork(size["traffic_bytes"], size["traffic_bytes"] / 4)


def _concat(size: Sizes) -> StreamingWork:
    """Every value of the result is read from an input and written."""
    values = size["rows"] * size["columns"]
    return StreamingWork(2 * values * size["value_bytes"], np.zeros_like(values))


def _index_permute(size: Sizes) -> StreamingWork:
    """An 8-byte index and a gathered sector are read, an 8-byte value is written.

    A random permutation uses 8 of the 32 bytes of each transaction (the sector model of HiPC'22,
    arXiv 2201.07821).
    """
    values = size["values"]
    return StreamingWork((8 + _SECTOR_BYTES + 8) * values, np.zeros_like(values))


def _interaction_dot(size: Sizes) -> StreamingWork:
    """A batch of `x xᵀ` and a gather of the lower triangle without the diagonal.

    The product reads `v · d` and writes `v · v` values a sample in `2 v² d` operations; the gather
    reads and writes `v (v − 1) / 2` (the two kernels of HiPC'22, arXiv 2201.07821).
    """
    batch, vectors = size["batch"], size["vectors"]
    product = vectors * size["dim"] + vectors**2
    # A single vector has no pairs; fractions of one vector must not have negative ones.
    gather = vectors * np.maximum(vectors - 1, 0)
    moved = batch * (product + gather) * size["value_bytes"]
    return StreamingWork(moved, 2 * batch * vectors**2 * size["dim"])


def _cross_layer(size: Sizes) -> StreamingWork:
    """`x₀ ⊙ (W (V x) + b) + x` with `V` of `rank × width` and `W` of `width × rank`.

    Two products, which move their operands once, and one elementwise kernel over four matrices of
    `batch × width` (DCNv2 in low rank: Wang et al., arXiv 2008.13535).
    """
    batch, width, rank = size["batch"], size["width"], size["rank"]
    products = 2 * (batch * width + width * rank + batch * rank)
    values = products + CROSS_ELEMENTWISE_VALUES * batch * width
    flops = 4 * batch * width * rank + 3 * batch * width
    return StreamingWork(values * size["value_bytes"], flops)


#: Matrices of `batch × width` that the elementwise kernel of a cross layer reads or writes.
CROSS_ELEMENTWISE_VALUES = 4


def _layer_norm(size: Sizes) -> StreamingWork:
    """Reads and writes every value, reads weight and bias, writes mean and deviation in FP32.

    Eight operations a value: one for the mean, three for the variance, two to normalise, two for
    weight and bias. Values are held on chip between the passes.
    """
    rows, columns = size["rows"], size["columns"]
    values = rows * columns
    parameters = np.where(values > 0, 2 * columns, 0.0)
    statistics_bytes = np.where(values > 0, 8 * rows, 0.0)
    moved = (2 * values + parameters) * size["value_bytes"] + statistics_bytes
    return StreamingWork(moved, 8 * values)


def _softmax(size: Sizes) -> StreamingWork:
    """Reads and writes every value; maximum, difference, exponential, sum and quotient of each.

    Values are held on chip between the passes.
    """
    values = size["rows"] * size["columns"]
    return StreamingWork(2 * values * size["value_bytes"], 5 * values)


def _attention(size: Sizes) -> StreamingWork:
    """Queries, keys, values and outputs move once; scores stay on chip.

    `4 · b · h · q · k · d` operations for the two products (Dao, FlashAttention-2, arXiv
    2307.08691).
    """
    heads = size["batch"] * size["heads"]
    queries, keys, dim = size["queries"], size["keys"], size["dim"]
    moved = 2 * heads * (queries + keys) * dim * size["value_bytes"]
    return StreamingWork(moved, 4 * heads * queries * keys * dim)


def _activation(size: Sizes) -> StreamingWork:
    """A function of each value: some ten operations for four bytes moved."""
    return StreamingWork(size["traffic_bytes"], 2.5 * size["traffic_bytes"])


def _norm_backward(size: Sizes) -> StreamingWork:
    """Reads inputs and gradients of outputs, writes gradients of inputs and of the weights.

    About fifteen operations a value: normalised again, two sums of a row, two of a column.
    """
    rows, columns = size["rows"], size["columns"]
    values = rows * columns
    parameters = np.where(values > 0, 4 * columns, 0.0)
    return StreamingWork((3 * values + parameters) * size["value_bytes"], 15 * values)


def _cross_entropy_backward(size: Sizes) -> StreamingWork:
    """Zeros with one value a row, and from them and the logarithms the gradient of the logits."""
    values = size["rows"] * size["columns"]
    return StreamingWork(4 * values * size["value_bytes"], 5 * values)


def _causal_attention(size: Sizes) -> StreamingWork:
    """Attention over half of the scores: a token sees those before it."""
    return _causal(size, products=2, moved=4)


def _causal_attention_backward(size: Sizes) -> StreamingWork:
    """Five products, the scores once more among them (Dao, arXiv 2307.08691, § 2.2).

    Queries, keys, values, outputs and the gradient of outputs are read, three gradients written.
    """
    return _causal(size, products=5, moved=8)


#: Queries of one block of a causal mask; blocks on the diagonal are computed in full.
_CAUSAL_BLOCK = 64


def _causal(size: Sizes, *, products: int, moved: int) -> StreamingWork:
    tokens = size["tokens"]
    rows = size["heads"] * tokens
    scores = rows * (tokens + np.minimum(tokens, _CAUSAL_BLOCK)) / 2
    return StreamingWork(
        moved * rows * size["dim"] * size["value_bytes"], 2 * products * scores * size["dim"]
    )


def _optimizer_step(size: Sizes) -> StreamingWork:
    """Reads the gradient, reads and writes the weight and each state value, all of four bytes.

    A multiplication and an addition for the weight, and about five operations for each state.
    """
    parameters, state = size["parameters"], size["state_values"]
    return StreamingWork(4 * parameters * (3 + 2 * state), parameters * (2 + 5 * state))


def _memcpy_d2d(size: Sizes) -> StreamingWork:
    """Every byte is read and written."""
    return StreamingWork(2 * size["size_bytes"], np.zeros_like(size["size_bytes"]))


#: Operators by name. Products inside: attention reaches 0.5–0.73 of the tensor rate on an A100
#: (arXiv 2307.08691); 27 vectors fill 0.7 of a 32 × 32 tile, whose loop reaches 0.6 (assumed).
STREAMING_OPERATORS: dict[str, StreamingOperator] = {
    "elementwise": StreamingOperator(("traffic_bytes",), _elementwise),
    "concat": StreamingOperator(("rows", "columns", "value_bytes"), _concat),
    "index_permute": StreamingOperator(("values",), _index_permute),
    "interaction_dot": StreamingOperator(
        ("batch", "vectors", "dim", "value_bytes"),
        _interaction_dot,
        launches=2,
        matrix_efficiency=0.4,
    ),
    "cross_layer": StreamingOperator(("batch", "width", "rank"), _cross_layer, launches=3),
    "layer_norm": StreamingOperator(("rows", "columns", "value_bytes"), _layer_norm),
    "softmax": StreamingOperator(("rows", "columns", "value_bytes"), _softmax),
    "attention": StreamingOperator(
        ("batch", "heads", "queries", "keys", "dim"), _attention, matrix_efficiency=0.6
    ),
    "gelu": StreamingOperator(("traffic_bytes",), _activation),
    "gelu_backward": StreamingOperator(("traffic_bytes",), _activation),
    "silu": StreamingOperator(("traffic_bytes",), _activation),
    "silu_backward": StreamingOperator(("traffic_bytes",), _activation),
    "layer_norm_backward": StreamingOperator(("rows", "columns", "value_bytes"), _norm_backward),
    "rms_norm": StreamingOperator(("rows", "columns", "value_bytes"), _layer_norm),
    "rms_norm_backward": StreamingOperator(("rows", "columns", "value_bytes"), _norm_backward),
    "cross_entropy": StreamingOperator(("rows", "columns", "value_bytes"), _softmax),
    "cross_entropy_backward": StreamingOperator(
        ("rows", "columns", "value_bytes"), _cross_entropy_backward
    ),
    "causal_attention": StreamingOperator(
        ("heads", "tokens", "dim"), _causal_attention, matrix_efficiency=0.6
    ),
    "causal_attention_backward": StreamingOperator(
        ("heads", "tokens", "dim"), _causal_attention_backward, matrix_efficiency=0.5
    ),
    "optimizer_step": StreamingOperator(("parameters", "state_values"), _optimizer_step),
    "memcpy_d2d": StreamingOperator(("size_bytes",), _memcpy_d2d),
}
