"""Operators that are measured: their sizes, the range of each size and the work they imply.

The work is a rough count that shows whether a point is too large; times are measured, never
derived from it.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from importlib.util import find_spec
import math
from typing import TYPE_CHECKING

from dse.machine import Precision

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping


@dataclass(frozen=True, slots=True)
class Axis:
    """One size of an operator.

    Attributes:
        name: Name of the size.
        low: Smallest value.
        high: Largest value.
        multiple: Values are multiples of it.
        choices: The only values, each with the same share; `low` and `high` are not used then.
    """

    name: str
    low: int = 1
    high: int = 1
    multiple: int = 1
    choices: tuple[float, ...] = ()

    def value(self, share: float) -> float:
        """Returns the value at `share` of the axis, 0 to 1, evenly spaced in the logarithm.

        Values keep five significant bits: small ones are any integer, large ones multiples of
        powers of two, as layer widths and batch sizes are.
        """
        if self.choices:
            return self.choices[min(int(share * len(self.choices)), len(self.choices) - 1)]
        exact = math.exp(math.log(self.low) + share * math.log(self.high / self.low))
        grain = max(self.multiple, 1 << max(0, math.floor(math.log2(exact)) - 4))
        return min(self.high, max(self.low, round(exact / grain) * grain))


@dataclass(frozen=True, slots=True)
class Work:
    """Rough cost of one call.

    Attributes:
        flops: Arithmetic operations.
        traffic_bytes: Bytes read and written in order.
        accesses: Reads and writes at random places.
        memory_bytes: Bytes that the operands, temporaries and results occupy.
    """

    flops: float = 0.0
    traffic_bytes: float = 0.0
    accesses: float = 0.0
    memory_bytes: float = 0.0


@dataclass(frozen=True, slots=True)
class Limits:
    """What a point may cost at most, with cautious rates to turn its work into time.

    Attributes:
        memory_bytes: Memory of one point.
        time_s: Estimated time of one call, in seconds.
        flops_per_s: Arithmetic rate that any device of the kind reaches.
        bytes_per_s: Bandwidth that any device of the kind reaches.
        accesses_per_s: Random accesses that any device of the kind reaches.
    """

    memory_bytes: float
    time_s: float
    flops_per_s: float
    bytes_per_s: float
    accesses_per_s: float

    def allow(self, work: Work) -> bool:
        """Returns whether a point of this work is within the limits."""
        estimate_s = (
            work.flops / self.flops_per_s
            + work.traffic_bytes / self.bytes_per_s
            + work.accesses / self.accesses_per_s
        )
        return work.memory_bytes <= self.memory_bytes and estimate_s <= self.time_s


#: Sizes of products in eight bits are multiples of this, on tensor cores.
_SCALED_MULTIPLE = 16

#: A quarter of a second and 256 MiB, at rates that one core reaches. That is several times the
#: last cache of most machines; larger operands take long to set up and say little more.
CPU_LIMITS = Limits(2.0**28, 0.25, 20e9, 2e9, 10e6)

#: A twentieth of a second and 8 GiB, at rates that a data-centre GPU of 2017 reaches.
CUDA_LIMITS = Limits(2.0**33, 0.05, 10e12, 300e9, 1e9)


@dataclass(frozen=True, slots=True)
class OperatorSpec:
    """One operator that is measured.

    Attributes:
        axes: Its sizes.
        work: Rough cost of one call, from the sizes by name.
        weight: Points for each point of an operator of weight 1; more sizes need more points.
        precisions: Precisions it can be measured in, all of them on a GPU; on a CPU it is fp32
            unless others are requested.
        package: Module that it belongs to, which is measured on CPUs and where it is installed;
            empty for torch.
    """

    axes: tuple[Axis, ...]
    work: Callable[[Mapping[str, float]], Work]
    weight: int = 1
    precisions: tuple[Precision, ...] = (Precision.FP32,)
    package: str = ""

    def axes_in(self, precision: Precision) -> tuple[Axis, ...]:
        """Returns the sizes in a precision; scaled products need multiples of sixteen."""
        if not precision.is_low:
            return self.axes
        return tuple(
            replace(axis, low=max(axis.low, _SCALED_MULTIPLE), multiple=_SCALED_MULTIPLE)
            for axis in self.axes
        )

    def measured_on(self, device: str) -> bool:
        """Returns whether it is measured on a device of this machine unless it is asked for."""
        return not self.package or (device == "cpu" and find_spec(self.package) is not None)


def _gemm(size: Mapping[str, float]) -> Work:
    m, n, k = size["m"], size["n"], size["k"]
    operand_bytes = 4 * (m * k + k * n + m * n)
    return Work(2 * m * n * k, operand_bytes, 0.0, operand_bytes)


def _embedding(size: Mapping[str, float], passes: int) -> Work:
    lookups = size["batch"] * size["pooling"]
    table_bytes = size["rows"] * size["dim"] * size["value_bytes"]
    gathered_bytes = lookups * size["dim"] * size["value_bytes"]
    # The index sets in rotation hold up to a few times the lookups of one call.
    rotation_bytes = 8 * (4 * lookups + 2**20)
    pooled_bytes = 4 * size["batch"] * size["dim"]
    return Work(
        traffic_bytes=passes * gathered_bytes + pooled_bytes + 8 * lookups,
        accesses=passes * lookups,
        memory_bytes=table_bytes + (passes - 1) * gathered_bytes + rotation_bytes + pooled_bytes,
    )


def _fbgemm(size: Mapping[str, float]) -> Work:
    one, count = _embedding(size, passes=2), size["tables"]
    return Work(
        traffic_bytes=count * one.traffic_bytes,
        accesses=count * one.accesses,
        memory_bytes=count * one.memory_bytes,
    )


def _elementwise(size: Mapping[str, float]) -> Work:
    return Work(traffic_bytes=size["traffic_bytes"], memory_bytes=size["traffic_bytes"])


def _matrix(size: Mapping[str, float], passes: int = 1) -> Work:
    both_bytes = 8 * passes * size["rows"] * size["columns"]
    return Work(flops=both_bytes, traffic_bytes=both_bytes, memory_bytes=both_bytes)


def _interaction_dot(size: Mapping[str, float]) -> Work:
    batch, vectors, dim = size["batch"], size["vectors"], size["dim"]
    moved_bytes = 4 * batch * (2 * vectors * dim + 2.5 * vectors**2)
    return Work(2 * batch * vectors**2 * dim, moved_bytes, batch * vectors, moved_bytes)


def _optimizer_step(size: Mapping[str, float]) -> Work:
    values = size["parameters"]
    state = size["state_values"]
    return Work(
        flops=10 * values,
        traffic_bytes=4 * values * (3 + 2 * state),
        memory_bytes=4 * values * (2 + state),
    )


def _index_permute(size: Mapping[str, float]) -> Work:
    return Work(0.0, 16 * size["values"], size["values"], 24 * size["values"])


def _attention(size: Mapping[str, float]) -> Work:
    heads = size["batch"] * size["heads"]
    scores = heads * size["queries"] * size["keys"]
    operand_bytes = 8 * heads * (size["queries"] + size["keys"]) * size["dim"]
    return Work(4 * scores * size["dim"], operand_bytes, 0.0, operand_bytes + 8 * scores)


def _causal_attention(size: Mapping[str, float]) -> Work:
    rows = size["heads"] * size["tokens"]
    operand_bytes = 16 * rows * size["dim"]
    return Work(
        10 * rows * size["tokens"] * size["dim"], 2 * operand_bytes, 0.0, 2 * operand_bytes
    )


def _copy(size: Mapping[str, float]) -> Work:
    return Work(traffic_bytes=2 * size["size_bytes"], memory_bytes=2 * size["size_bytes"])


_EMBEDDING_AXES = (
    Axis("rows", 1_000, 20_000_000),
    Axis("dim", 4, 256, multiple=4),
    Axis("batch", 32, 65_536),
    Axis("pooling", 1, 512),
    # Uniform draws have three times the share of any exponent.
    Axis("alpha", choices=(0.0, 0.0, 0.0, 0.6, 0.75, 0.9, 1.05, 1.2)),
    Axis("value_bytes", choices=(4,)),
)
_FBGEMM_AXES = (*_EMBEDDING_AXES, Axis("tables", choices=(4,)))
_MATRIX_AXES = (Axis("rows", 16, 262_144), Axis("columns", 4, 8_192))
_NORM_AXES = (Axis("rows", 64, 65_536), Axis("columns", 64, 8_192))
_LOGIT_AXES = (Axis("rows", 64, 16_384), Axis("columns", 256, 131_072))
_ACTIVATION_AXES = (Axis("traffic_bytes", 4_096, 2**28, multiple=8),)
_CAUSAL_AXES = (
    # Heads of all sequences of a batch.
    Axis("heads", 1, 512),
    Axis("tokens", 32, 4_096, multiple=8),
    Axis("dim", choices=(32, 64, 128)),
)
_COPY_AXES = (Axis("size_bytes", 1_024, 2**29, multiple=4),)

#: All operators by name, in the order of their turns: first those that a platform cannot be made
#: without, so that a short session has them.
OPERATORS: dict[str, OperatorSpec] = {
    "gemm": OperatorSpec(
        (Axis("m", 1, 16_384), Axis("n", 1, 16_384), Axis("k", 1, 16_384)),
        _gemm,
        weight=4,
        precisions=(
            *(Precision.FP32, Precision.TF32, Precision.FP16, Precision.BF16),
            Precision.FP8,
        ),
    ),
    "elementwise": OperatorSpec((Axis("traffic_bytes", 1_024, 2**30, multiple=8),), _elementwise),
    "memcpy_h2d": OperatorSpec(_COPY_AXES, _copy),
    "memcpy_d2h": OperatorSpec(_COPY_AXES, _copy),
    "memcpy_d2d": OperatorSpec(_COPY_AXES, _copy),
    "embedding_forward": OperatorSpec(_EMBEDDING_AXES, partial(_embedding, passes=1), weight=6),
    # Gradient rows, their coalesced copy, the update of the table.
    "embedding_backward": OperatorSpec(_EMBEDDING_AXES, partial(_embedding, passes=3), weight=6),
    "fbgemm_forward": OperatorSpec(_FBGEMM_AXES, _fbgemm, weight=6, package="fbgemm_gpu"),
    "fbgemm_backward": OperatorSpec(_FBGEMM_AXES, _fbgemm, weight=6, package="fbgemm_gpu"),
    "concat": OperatorSpec(_MATRIX_AXES, _matrix, weight=2),
    "layer_norm": OperatorSpec(_MATRIX_AXES, _matrix, weight=2),
    "softmax": OperatorSpec(_MATRIX_AXES, _matrix, weight=2),
    "interaction_dot": OperatorSpec(
        (Axis("batch", 16, 65_536), Axis("vectors", 2, 64), Axis("dim", 4, 256, multiple=4)),
        _interaction_dot,
        weight=3,
    ),
    "optimizer_step": OperatorSpec(
        (Axis("parameters", 256, 2**28), Axis("state_values", choices=(0, 1, 2))), _optimizer_step
    ),
    "index_permute": OperatorSpec((Axis("values", 256, 2**27),), _index_permute),
    "attention": OperatorSpec(
        (
            Axis("batch", 1, 512),
            Axis("heads", 1, 32),
            Axis("queries", 1, 4_096),
            Axis("keys", 16, 4_096),
            Axis("dim", 16, 128, multiple=8),
        ),
        _attention,
        weight=2,
        precisions=(Precision.FP32, Precision.BF16),
    ),
    "gelu": OperatorSpec(_ACTIVATION_AXES, _elementwise),
    "gelu_backward": OperatorSpec(_ACTIVATION_AXES, _elementwise),
    "silu": OperatorSpec(_ACTIVATION_AXES, _elementwise),
    "silu_backward": OperatorSpec(_ACTIVATION_AXES, _elementwise),
    "layer_norm_backward": OperatorSpec(_NORM_AXES, _matrix),
    "rms_norm": OperatorSpec(_NORM_AXES, _matrix),
    "rms_norm_backward": OperatorSpec(_NORM_AXES, _matrix),
    "cross_entropy": OperatorSpec(_LOGIT_AXES, partial(_matrix, passes=2)),
    "cross_entropy_backward": OperatorSpec(_LOGIT_AXES, partial(_matrix, passes=2)),
    "causal_attention": OperatorSpec(
        _CAUSAL_AXES, _causal_attention, weight=2, precisions=(Precision.FP32, Precision.BF16)
    ),
    "causal_attention_backward": OperatorSpec(
        _CAUSAL_AXES, _causal_attention, weight=2, precisions=(Precision.FP32, Precision.BF16)
    ),
}
