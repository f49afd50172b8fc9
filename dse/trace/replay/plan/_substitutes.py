"""Substitutes: GPU operators on a CPU, and lookups of FBGEMM by its dense lookup.

A lookup of FBGEMM keeps its tables in one block of memory. A trace has the number of features, the
width of all of them together and the size of the block; tables are taken to have equal widths and
rows. Lookups that are fused with an optimizer are replayed by the dense lookup of the installed
FBGEMM, which reads the same rows; other operators of FBGEMM are called as they are.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from dse.trace.replay._registry import NotReplayableError, OperatorCall
from dse.trace.replay.read import Opaque, TensorRef, argument_names

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from dse.trace.replay._registry import OperatorBuilder, OperatorCall


def substitute_for(name: str, device: str) -> OperatorBuilder | None:
    """Returns what replaces an operator on a device, or None if it runs there as it is."""
    return _ON_CPU.get(name) if device == "cpu" else None


def _batch_norm(call: OperatorCall) -> Callable[..., Any]:
    """`cudnn_batch_norm` also returns a reserve, which no CPU kernel needs."""
    import torch

    def run(
        values: Any,
        weight: Any,
        bias: Any,
        mean: Any,
        variance: Any,
        training: bool,
        momentum: float,
        epsilon: float,
    ) -> tuple[Any, ...]:
        found = torch.ops.aten.native_batch_norm.default(
            values, weight, bias, mean, variance, training, momentum, epsilon
        )
        return (*found, values.new_empty(0, dtype=torch.uint8))

    return run


def _batch_norm_backward(call: OperatorCall) -> Callable[..., Any]:
    import torch

    def run(
        values: Any,
        gradient: Any,
        weight: Any,
        mean: Any,
        variance: Any,
        saved_mean: Any,
        saved_variance: Any,
        epsilon: float,
        reserve: Any = None,
    ) -> Any:
        return torch.ops.aten.native_batch_norm_backward.default(
            gradient,
            values,
            weight,
            mean,
            variance,
            saved_mean,
            saved_variance,
            True,
            epsilon,
            [True, True, True],
        )

    return run


def _convolution(call: OperatorCall) -> Callable[..., Any]:
    import torch

    def run(
        values: Any, weight: Any, padding: Any, stride: Any, dilation: Any, groups: int, *_: Any
    ) -> Any:
        return torch.ops.aten.convolution.default(
            values, weight, None, stride, padding, dilation, False, [0] * len(padding), groups
        )

    return run


def _pinned_copy(call: OperatorCall) -> Callable[..., Any]:
    """Pinning copies; without a driver there is nothing to pin with."""
    return lambda values, *_: values.clone()


def _nothing(call: OperatorCall) -> Callable[..., Any]:
    return lambda *_: None


_ON_CPU: dict[str, OperatorBuilder] = {
    "aten::cudnn_batch_norm": _batch_norm,
    "aten::cudnn_batch_norm_backward": _batch_norm_backward,
    "aten::cudnn_convolution": _convolution,
    "aten::pin_memory": _pinned_copy,
    "aten::_pin_memory": _pinned_copy,
    # Informs the allocator of a GPU about other readers of a tensor.
    "aten::record_stream": _nothing,
}


_LOOKUP = re.compile(r"^fbgemm::(split|dense)_embedding_codegen_lookup_\w*function(_cpu|_pt2)?$")
_DENSE = "dense_embedding_codegen_lookup_function"
#: Arguments of the dense lookup, as far as they are the same in all.
_SHARED = (
    "weights_offsets",
    "D_offsets",
    "total_D",
    "max_D",
    "hash_size_cumsum",
    "total_hash_size_bits",
    "indices",
    "offsets",
    "pooling_mode",
    "indice_weights",
)


def is_lookup(name: str) -> bool:
    """Returns whether an operator is a lookup in tables that FBGEMM keeps in one block."""
    return _LOOKUP.match(name) is not None


def lookup_builder(call: OperatorCall) -> Callable[..., Any]:
    """Builds a fused lookup as the dense one.

    Raises:
        NotReplayableError: FBGEMM is not loaded, or the signature is another one.
    """
    import torch

    if f"fbgemm::{_DENSE}" not in torch._C._dispatch_get_all_op_names():
        raise NotReplayableError("the library `fbgemm` is not loaded")
    names = argument_names(call.schema)
    place = {name: at for at, name in enumerate(names[: len(call.inputs)])}
    block = "dev_weights" if call.device == "cuda" or "host_weights" not in place else ""
    block = block or "host_weights"
    missing = [name for name in (block, *_SHARED) if name not in place]
    if missing:
        raise NotReplayableError(f"this signature has no argument `{missing[0]}`")
    if any(isinstance(call.inputs[place[name]], Opaque) for name in _SHARED):
        raise NotReplayableError("its arguments are not in the trace")
    function = getattr(torch.ops.fbgemm, _DENSE).default

    def run(*arguments: Any) -> Any:
        shared = [arguments[place[name]] for name in _SHARED]
        return function(arguments[place[block]], *shared, None)

    return run


def table_layout(given: Mapping[str, Any]) -> tuple[int, int, int] | None:
    """Returns tables, their width and their rows, or None if the arguments do not show them.

    Args:
        given: Arguments by name, tensors as `TensorRef`.
    """
    widths, total = given.get("D_offsets"), given.get("total_D")
    blocks = [given.get(name) for name in ("dev_weights", "host_weights", "uvm_weights")]
    elements = max((ref.elements for ref in blocks if isinstance(ref, TensorRef)), default=0)
    if not isinstance(widths, TensorRef) or type(total) is not int or not elements:
        return None
    features = widths.elements - 1
    if features < 1 or total < features:
        return None
    width = total // features
    return features, width, max(elements // (features * width), 1)


def table_values(given: Mapping[str, Any]) -> dict[str, tuple[int, ...]]:
    """Returns what the describing tensors hold when tables are equal, by argument."""
    layout = table_layout(given)
    if layout is None:
        return {}
    features, width, rows = layout
    found = {
        "weights_offsets": _multiples(features, rows * width),
        "D_offsets": _multiples(features + 1, width),
        "hash_size_cumsum": _multiples(features + 1, rows),
    }
    for name in given:
        if name.endswith("_placements"):
            found[name] = (0,)
        elif name.startswith("momentum") and name.endswith("_offsets"):
            state = given.get(name.replace("_offsets", "_dev"))
            wide = isinstance(state, TensorRef) and state.elements >= features * rows * width
            found[name] = _multiples(features, rows * width if wide else rows)
    return found


def _multiples(count: int, call: int) -> tuple[int, ...]:
    return tuple(number * call for number in range(count))
