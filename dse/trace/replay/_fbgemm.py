"""Lookups of FBGEMM: tables in one block of memory, described by tensors whose values matter.

A trace tells the features, the width of all of them together and the size of the block. Tables are
taken to have equal widths and rows. Lookups that are fused with an optimizer are replayed by the
dense lookup of the installed FBGEMM, which reads the same rows; what fills their tables is not.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from dse.trace.replay._recorded import Opaque, TensorRef
from dse.trace.replay._registry import NotReplayableError, OperatorCall
from dse.trace.replay._signatures import argument_names

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

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
    """Whether an operator looks rows up in tables that FBGEMM keeps in one block."""
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
    """Returns tables, their width and their rows, or None if the arguments do not tell.

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


def _multiples(count: int, step: int) -> tuple[int, ...]:
    return tuple(number * step for number in range(count))
