"""PyTorch operators, with recorded shapes and types, as calls of the kernel models.

The innermost operator around a task counts; operators that it calls have separate tasks.
Convolutions are products of an unfolded input (implicit GEMM). Unknown operators with recorded
shapes count as memory traffic: every input is read, and a result as large as the largest input is
written.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
import math
import re
from typing import TYPE_CHECKING

import numpy as np

from dse.trace.whatif.core import Argument, arguments_of
from dse.trace.whatif.retime import _operator_names as names

if TYPE_CHECKING:
    from collections.abc import Mapping

    from dse.machine import Precision
    from dse.machine.platforms import Platform
    from dse.trace import OperatorInputs
    from dse.trace.whatif.retime._lookups import Lookup

_EVALUATE = "autograd::engine::evaluate_function: "
#: The gradient of attention has five products, attention itself two (Dao, arXiv 2307.08691).
_ATTENTION_BACKWARD = 2.5


@dataclass(frozen=True, slots=True)
class KernelCall:
    """One call of a kernel model: arguments of :meth:`machine.platforms.Platform.kernel_estimate`.

    Attributes:
        op: Name of the model.
        shape: Sizes by name.
        precision: Arithmetic of products; None where the model has none.
    """

    op: str
    shape: tuple[tuple[str, float], ...]
    precision: Precision | None = None

    def time_s(self, platform: Platform) -> float:
        """Returns the duration on the device of a platform, in seconds."""
        sizes = dict(self.shape)
        if self.precision is None:
            return float(platform.kernel_time(self.op, **sizes))
        precision = np.asarray(self.precision.value)
        return float(platform.kernel_time(self.op, **sizes, precision=precision))


Calls = tuple[KernelCall, ...]


def kernel_calls(
    stack: tuple[str, ...], inputs: OperatorInputs | None, lookup: Lookup | None = None
) -> Calls | None:
    """Returns the calls of kernel models that stand for an operator.

    Args:
        stack: Names of operators and annotations around a task, the outermost first.
        inputs: Shapes and types of the innermost operator's inputs.
        lookup: The work of an fbgemm lookup, or of the update of its tables, which their inputs
            do not show.

    Returns:
        Empty for operators that move no data; None if shapes are missing.
    """
    if lookup is not None:
        return (lookup.call(forward=not is_lookup_backward(operator_name(stack))),)
    return None if inputs is None else _calls(operator_name(stack), inputs)


def operator_name(stack: tuple[str, ...]) -> str:
    """Returns the innermost operator of a stack; annotations inside it do not count."""
    for name in reversed(stack):
        plain = name.removeprefix(_EVALUATE)
        if not plain.startswith(("##", "ProfilerStep")) and ("::" in plain or "Backward" in plain):
            return plain
    return ""


def is_lookup(operator: str) -> bool:
    """Returns whether an operator looks up tables of fbgemm, forward or backward."""
    return is_lookup_forward(operator) or is_lookup_backward(operator)


def is_lookup_forward(operator: str) -> bool:
    """Returns whether an operator is a forward lookup of fbgemm."""
    return "embedding_codegen_lookup" in operator or "embedding_codegen_forward" in operator


def is_lookup_backward(operator: str) -> bool:
    """Returns whether an operator is the gradient of an fbgemm lookup or updates its tables."""
    return bool(re.search(r"SplitLookupFunction|embedding_backward_codegen", operator))


def is_product_operator(operator: str) -> bool:
    """Returns whether an operator multiplies matrices or convolves."""
    name = _plain(operator)
    return (
        name in names.PRODUCTS
        or name in names.BATCHED_PRODUCTS
        or name in names.LINEAR
        or name in names.CONVOLUTIONS
        or name in names.TRANSPOSED_CONVOLUTIONS
        or name in names.CONVOLUTIONS_BACKWARD
        or name in ("matmul", "mv", "addmv")
        or "attention" in name
    )


def weight_of(stack: tuple[str, ...], inputs: OperatorInputs) -> Argument | None:
    """Returns the weights of a product with parameters; None for other operators.

    Args:
        stack: Names around a task.
        inputs: Shapes and types of the innermost operator's inputs.
    """
    name, arguments = _plain(operator_name(stack)), arguments_of(inputs)
    if name in names.PRODUCTS:
        place = names.PRODUCTS[name][1]
    elif (
        name in names.LINEAR or name in names.CONVOLUTIONS or name in names.TRANSPOSED_CONVOLUTIONS
    ):
        place = 1
    else:
        return None
    return arguments[place] if place < len(arguments) and arguments[place].elements else None


def traffic(size_bytes: float) -> KernelCall:
    """Returns the call of an operator that moves so many bytes, read plus written."""
    return KernelCall("elementwise", (("traffic_bytes", float(size_bytes)),))


def _plain(operator: str) -> str:
    """Returns an operator without its library and overload: `aten::add.Tensor` → `add`."""
    return operator.rsplit("::", 1)[-1].split(".", 1)[0]


@lru_cache(maxsize=65536)
def _calls(operator: str, inputs: OperatorInputs) -> Calls | None:
    arguments = arguments_of(inputs)
    name = _plain(operator)
    if name in names.NO_WORK:
        return ()
    if not any(argument.shapes for argument in arguments):
        return None
    for known in (_product, _convolution, _attention, _embedding, _rows, _optimizer):
        found = known(name, arguments)
        if found is not None:
            return found
    size_bytes = _traffic_bytes(name, arguments)
    return (traffic(size_bytes),) if size_bytes else None


def _traffic_bytes(name: str, arguments: tuple[Argument, ...]) -> float:
    sizes = [argument.size_bytes for argument in arguments]
    if name in names.FILLS or name in names.REDUCTIONS:
        return max(sizes)
    if name == "copy_":
        return sum(sizes[:2])
    return sum(sizes) + max(sizes)


def gemm(m: float, n: float, k: float, precision: Precision | None, batch: float = 1) -> Calls:
    """Returns the call of a product; empty if its arithmetic has no model."""
    if precision is None:
        return ()
    sizes = (("m", float(m)), ("n", float(n)), ("k", float(k)))
    return (
        KernelCall("gemm", sizes if batch == 1 else (*sizes, ("batch", float(batch))), precision),
    )


def _product(name: str, arguments: tuple[Argument, ...]) -> Calls | None:
    places = names.PRODUCTS.get(name) or names.BATCHED_PRODUCTS.get(name)
    if places is not None:
        left, right = places
        if len(arguments) <= right:
            return None
        return _general_product(arguments[left], arguments[right])
    if len(arguments) < 2:
        return None
    if name in names.LINEAR and len(arguments[1].shape) == 2:
        inputs, (columns, depth) = arguments[0], arguments[1].shape
        rows = inputs.elements // depth if depth else 0
        return gemm(rows, columns, depth, inputs.precision) or None
    if name == "matmul":
        return _general_product(arguments[0], arguments[1])
    if name in ("mv", "addmv", "addmv_"):
        place = 0 if name == "mv" else 1
        shape = arguments[place].shape
        if len(shape) == 2:
            return gemm(shape[0], 1, shape[1], arguments[place].precision) or None
    return None


def _general_product(left: Argument, right: Argument) -> Calls | None:
    """A product as `torch.matmul` defines it: vectors are padded, leading sizes broadcast."""
    a, b = left.shape, right.shape
    if not a or not b or left.precision is None:
        return None
    a = a if len(a) > 1 else (1, *a)
    b = b if len(b) > 1 else (*b, 1)
    if len(b) == 2:
        # All leading rows are one matrix.
        return gemm(math.prod(a[:-1]), b[1], b[0], left.precision)
    batch = max(math.prod(a[:-2]), math.prod(b[:-2]))
    return gemm(a[-2], b[-1], a[-1], left.precision, batch)


def _convolution(name: str, arguments: tuple[Argument, ...]) -> Calls | None:
    """Products of the unfolded input with the weights.

    The forward operator does not record its stride, so its output is taken to be as large as its
    input; the gradient's operator has the size of the output.
    """
    backward = name in names.CONVOLUTIONS_BACKWARD
    transposed = name in names.TRANSPOSED_CONVOLUTIONS
    if not (backward or transposed or name in names.CONVOLUTIONS):
        return None
    given = arguments[: 3 if backward else 2]
    if len(given) < (3 if backward else 2) or any(len(one.shape) < 3 for one in given):
        return None
    inputs, weight = given[-2:]
    channels, (out, per_group), area = inputs.shape[1], weight.shape[:2], weight.shape[2:]
    if not per_group or not inputs.elements or inputs.precision is None:
        return None
    if transposed:
        pixels = inputs.shape[0] * math.prod(inputs.shape[2:])
        return gemm(pixels, per_group * math.prod(area), channels, inputs.precision)
    groups = max(channels // per_group, 1)
    outer = given[0].shape if backward else inputs.shape
    pixels = outer[0] * math.prod(outer[2:])
    depth, columns = per_group * math.prod(area), out // groups
    if not backward:
        return gemm(pixels, columns, depth, inputs.precision, groups)
    return (
        *gemm(pixels, depth, columns, inputs.precision, groups),
        *gemm(columns, depth, pixels, inputs.precision, groups),
    )


def _attention(name: str, arguments: tuple[Argument, ...]) -> Calls | None:
    if "attention" not in name:
        return None
    backward = name.endswith("_backward")
    tensors = arguments[1:3] if backward else arguments[:2]
    if len(tensors) < 2 or any(len(one.shape) != 4 for one in tensors):
        return None
    query, key = (one.shape for one in tensors)
    # The kernels' own operators have heads inside of positions, the others the reverse.
    inner = name.startswith(("_flash_attention", "_efficient_attention", "_cudnn_attention"))
    heads, queries, keys = (query[2], query[1], key[1]) if inner else (query[1], query[2], key[2])
    precision = tensors[0].precision
    if precision is None:
        return None
    sizes = {
        "batch": query[0] * (_ATTENTION_BACKWARD if backward else 1.0),
        "heads": heads,
        "queries": queries,
        "keys": keys,
        "dim": query[3],
    }
    return (KernelCall("attention", _sizes(sizes), precision),)


def _embedding(name: str, arguments: tuple[Argument, ...]) -> Calls | None:
    """Lookups of PyTorch's own operators; gradients do not record the rows of the table."""
    places = names.LOOKUPS.get(name)
    if places is None or len(arguments) <= max(places):
        return None
    table = arguments[places[0]]
    lookups, bags = (arguments[place].elements for place in places[1:])
    backward = name in names.LOOKUPS_BACKWARD
    if len(table.shape) < 2 or not table.elements or not lookups:
        return None
    if backward:
        bags = table.elements // table.shape[-1]
    sizes = {
        "rows": max(lookups, bags) if backward else table.shape[0],
        "dim": table.shape[-1],
        "batch": bags,
        "pooling": lookups / max(bags, 1),
        "value_bytes": table.value_bytes or 4,
    }
    op = "embedding_backward" if backward else "embedding_forward"
    return (KernelCall(op, _sizes(sizes)),)


def _rows(name: str, arguments: tuple[Argument, ...]) -> Calls | None:
    """Operators over rows: norms, softmax, concatenation."""
    first = arguments[0]
    if name in names.LAYER_NORMS:
        weights = [one.elements for one in arguments[1:] if len(one.shape) >= 1]
        columns = weights[0] if weights else (first.shape or (1,))[-1]
    elif name in names.SOFTMAXES:
        columns = (first.shape or (1,))[-1]
    elif name in names.CONCATENATIONS:
        if not first.elements:
            return None
        rows = {shape[0] for shape in first.shapes if shape}
        # Sides by side if all have the same first dimension, else one below the other.
        height = rows.pop() if len(rows) == 1 else 1
        sizes = {"rows": height, "columns": first.elements / max(height, 1)}
        return (KernelCall("concat", _sizes({**sizes, "value_bytes": first.value_bytes or 4})),)
    else:
        return None
    if not columns or not first.elements:
        return None
    op = "softmax" if "softmax" in name else "layer_norm"
    sizes = {"rows": first.elements / columns, "columns": columns}
    return (KernelCall(op, _sizes({**sizes, "value_bytes": first.value_bytes or 4})),)


def _optimizer(name: str, arguments: tuple[Argument, ...]) -> Calls | None:
    """Fused optimizers: lists of parameters, gradients and states of the same sizes."""
    if not name.startswith(("_fused_adam", "_fused_sgd", "_fused_adagrad")):
        return None
    parameters = arguments[0].elements
    if not parameters:
        return None
    states = sum(one.elements == parameters for one in arguments) - 2
    sizes = {"parameters": parameters, "state_values": max(states, 0)}
    return (KernelCall("optimizer_step", _sizes(sizes)),)


def _sizes(sizes: Mapping[str, float]) -> tuple[tuple[str, float], ...]:
    return tuple((name, float(value)) for name, value in sizes.items())
