"""Recorded inputs of operators: reading their shapes and types, and writing changed ones."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
import json
import math
from typing import TYPE_CHECKING, Any

from dse._io.reading import JsonProblemError, load_json
from dse.machine import Precision
from dse.trace import OperatorInputs, dtype_bytes, dtype_name

if TYPE_CHECKING:
    from collections.abc import Mapping

Shape = tuple[int, ...]
ShapeChange = Callable[[Shape], Shape]

#: Values of TF32 are stored in four bytes.
_TF32 = "tf32"
#: Spelling of a precision in PyTorch's traces. TF32 has none: only its arithmetic differs.
_SPELLINGS = {
    Precision.FP32: "float",
    Precision.TF32: _TF32,
    Precision.FP16: "c10::Half",
    Precision.BF16: "c10::BFloat16",
}
#: Lists of tensors are recorded without a type; nearly all hold parameters or gradients.
_LIST_TYPE = "fp32"
_NOT_TENSORS = ("", "Scalar", "ScalarList", "GenericList")


@dataclass(frozen=True, slots=True)
class Argument:
    """A tensor, or a list of tensors, that an operator was given.

    Attributes:
        shapes: Shape of each; a tensor is a list of one. Empty for what is no tensor, and for
            lists whose shapes were not recorded.
        dtype: Our name of the type of the values; empty if unknown.
    """

    shapes: tuple[Shape, ...]
    dtype: str

    @property
    def shape(self) -> Shape:
        """Shape of the first tensor; `()` without one."""
        return self.shapes[0] if self.shapes else ()

    @property
    def elements(self) -> int:
        """Values in all tensors."""
        return sum(math.prod(shape) for shape in self.shapes)

    @property
    def value_bytes(self) -> int:
        """Bytes of one value; 0 if the type is unknown."""
        return 4 if self.dtype == _TF32 else dtype_bytes(self.dtype)

    @property
    def size_bytes(self) -> int:
        """Bytes of all tensors."""
        return self.elements * self.value_bytes

    @property
    def precision(self) -> Precision | None:
        """Arithmetic of products of such values; None if it has no model."""
        return Precision(self.dtype) if self.dtype in set(Precision) else None


@lru_cache(maxsize=65536)
def arguments_of(inputs: OperatorInputs) -> tuple[Argument, ...]:
    """Returns the arguments of an operator; empty if no shapes were recorded or legible.

    Args:
        inputs: Shapes and types as recorded.
    """
    shapes, types = _loaded(inputs.shapes), _loaded(inputs.types)
    types = [*types, *[""] * (len(shapes) - len(types))]
    return tuple(_argument(shape, str(kind)) for shape, kind in zip(shapes, types, strict=False))


def tensors_of(inputs: OperatorInputs | None) -> tuple[Argument, ...]:
    """Returns the tensors of at least one dimension, in their order; lists are flattened.

    Args:
        inputs: Shapes and types as recorded; None if there are none.
    """
    return tuple(
        Argument((shape,), argument.dtype)
        for argument in (arguments_of(inputs) if inputs is not None else ())
        for shape in argument.shapes
        if shape
    )


def with_shapes(inputs: OperatorInputs, change: ShapeChange) -> OperatorInputs:
    """Returns inputs with every shape changed; the same object if nothing changes.

    Args:
        inputs: Shapes and types as recorded.
        change: New shape of a tensor.
    """
    old = _loaded(inputs.shapes)
    new = [_changed(shape, change) for shape in old]
    if new == old:
        return inputs
    return OperatorInputs(json.dumps(new, separators=(",", ":")), inputs.types)


def with_precision(inputs: OperatorInputs, precision: Precision) -> OperatorInputs:
    """Returns inputs whose floating-point values of two or four bytes have another type.

    Args:
        inputs: Shapes and types as recorded.
        precision: The type; FP64 and integers stay.
    """
    known = set(_SPELLINGS)
    old = _loaded(inputs.types)
    new = [
        _SPELLINGS[precision] if isinstance(kind, str) and dtype_name(kind) in known else kind
        for kind in old
    ]
    # A list of tensors is recorded without a type.
    new = [f"TensorList<{precision.value}>" if _is_list(kind) else kind for kind in new]
    if new == old:
        return inputs
    return OperatorInputs(inputs.shapes, json.dumps(new, separators=(",", ":")))


def resized(dimensions: Mapping[int, int], times: tuple[int, ...] = ()) -> ShapeChange:
    """Returns the change that gives dimensions of certain sizes other ones.

    Args:
        dimensions: Old size → new size.
        times: Factors of flattened products: a dimension of `old · factor` becomes `new · factor`.
    """

    def one(size: int) -> int:
        if size in dimensions:
            return dimensions[size]
        for factor in times:
            if size % factor == 0 and size // factor in dimensions:
                return dimensions[size // factor] * factor
        return size

    return lambda shape: tuple(map(one, shape))


def _loaded(text: str) -> list[Any]:
    try:
        found = load_json(text) if text else []
    except JsonProblemError:
        return []
    return found if isinstance(found, list) else []


def _is_list(kind: object) -> bool:
    return isinstance(kind, str) and kind.startswith("TensorList")


def _argument(shape: object, kind: str) -> Argument:
    if kind in _NOT_TENSORS or not isinstance(shape, list):
        return Argument((), "")
    if _is_list(kind):
        dtype = kind.removeprefix("TensorList").strip("<>") or _LIST_TYPE
        return Argument(tuple(tuple(one) for one in shape if _is_shape(one)), dtype)
    if not _is_shape(shape):
        return Argument((), "")
    return Argument((tuple(shape),), dtype_name(kind))


def _is_shape(value: object) -> bool:
    return isinstance(value, list) and all(type(size) is int for size in value)


def _changed(shape: object, change: ShapeChange) -> object:
    if not isinstance(shape, list):
        return shape
    if shape and _is_shape(shape):
        return list(change(tuple(shape)))
    return [_changed(one, change) for one in shape]
