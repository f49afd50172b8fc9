"""Arguments and results of a node, parsed into tensors, numbers and lists."""

from __future__ import annotations

from dataclasses import dataclass
import math
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from dse.trace import NodeArguments


#: Names of torch's types by the spellings of traces.
_DTYPES = {
    "float": "float32",
    "double": "float64",
    "half": "float16",
    "c10::half": "float16",
    "bfloat16": "bfloat16",
    "c10::bfloat16": "bfloat16",
    "int": "int32",
    "long": "int64",
    "long int": "int64",
    "long long": "int64",
    "short": "int16",
    "short int": "int16",
    "char": "int8",
    "signed char": "int8",
    "unsigned char": "uint8",
    "byte": "uint8",
    "bool": "bool",
    "c10::complex<float>": "complex64",
    "complexfloat": "complex64",
    "c10::complex<double>": "complex128",
    "complexdouble": "complex128",
    "float8_e4m3fn": "float8_e4m3fn",
    "c10::float8_e4m3fn": "float8_e4m3fn",
    "float8_e5m2": "float8_e5m2",
    "c10::float8_e5m2": "float8_e5m2",
}
_TENSOR = "Tensor"
_LISTS = ("GenericList[", "Tuple[")
_NUMBERS = 5
_MAX_DEPTH = 8


@dataclass(frozen=True, slots=True)
class TensorRef:
    """A tensor as one node saw it.

    Attributes:
        tensor: Identity of the tensor; a number may serve another one later.
        storage: Identity of its memory, likewise.
        offset: Elements from the start of the memory.
        item_bytes: Bytes of one element.
        device: Name of the device.
        dtype: Name of torch's type; empty if it is not known.
        shape: Sizes of the dimensions.
        strides: Steps in memory in elements; None if they were not recorded.
    """

    tensor: int
    storage: int
    offset: int
    item_bytes: int
    device: str
    dtype: str
    shape: tuple[int, ...]
    strides: tuple[int, ...] | None

    @property
    def elements(self) -> int:
        """Number of elements."""
        return math.prod(self.shape)

    @property
    def hidden(self) -> bool:
        """Whether the trace does not record its memory, as for sparse tensors."""
        return not self.storage and not self.device and self.elements > 0

    @property
    def known_strides(self) -> tuple[int, ...]:
        """Strides as recorded, or those of a tensor without gaps."""
        if self.strides is not None:
            return self.strides
        found, stride = [], 1
        for size in reversed(self.shape):
            found.append(stride)
            stride *= max(size, 1)
        return tuple(reversed(found))

    @property
    def end_bytes(self) -> int:
        """End of the tensor in its memory, in bytes from the start."""
        if not self.elements or self.hidden:
            return 0
        last = sum(
            (size - 1) * step for size, step in zip(self.shape, self.known_strides, strict=True)
        )
        return (self.offset + last + 1) * self.item_bytes


@dataclass(frozen=True, slots=True)
class Opaque:
    """A value that traces do not hold.

    Attributes:
        kind: What it is, for example `Storage`.
    """

    kind: str


@dataclass(frozen=True, slots=True)
class Device:
    """A device as recorded, for example `cuda:1`."""

    name: str


#: Everything else is None, bool, int, float, str, or a list of such values.
Recorded = Any


def inputs_of(arguments: NodeArguments) -> list[Recorded]:
    """Returns the arguments of a node in the order of its signature."""
    return _side(
        arguments.inputs,
        arguments.input_shapes,
        arguments.input_types,
        arguments.input_strides,
    )


def outputs_of(arguments: NodeArguments) -> list[Recorded]:
    """Returns the results of a node."""
    return _side(
        arguments.outputs,
        arguments.output_shapes,
        arguments.output_types,
        arguments.output_strides,
    )


def tensors_in(values: Sequence[Recorded]) -> Iterator[TensorRef]:
    """Yields the tensors among values, also inside lists."""
    for value in values:
        if isinstance(value, TensorRef):
            yield value
        elif isinstance(value, list):
            yield from tensors_in(value)


def _side(
    values: Sequence[Any], shapes: Sequence[Any], types: Sequence[str], strides: Sequence[Any]
) -> list[Recorded]:
    return [
        _value(
            value,
            types[at] if at < len(types) else "",
            shapes[at] if at < len(shapes) else [],
            strides[at] if at < len(strides) else None,
            0,
        )
        for at, value in enumerate(values)
    ]


def _value(value: Any, kind: str, shape: Any, strides: Any, depth: int) -> Recorded:
    if kind.startswith(_TENSOR):
        return _tensor(value, kind, shape, strides)
    if kind.startswith(_LISTS):
        return _list(value, kind, shape, strides, depth)
    if kind == "None":
        return None
    if kind == "Device":
        return Device(str(value))
    if kind == "Double":
        # The reader puts nothing in place of numbers that JSON does not have.
        return -math.inf if value is None else _finite(value)
    if kind in ("Int", "SymInt", "Bool", "String") and isinstance(value, bool | int | str):
        return value
    return Opaque(kind or "value without a type")


def _finite(value: Any) -> Recorded:
    return float(value) if isinstance(value, int | float) else Opaque("Double")


def _list(value: Any, kind: str, shape: Any, strides: Any, depth: int) -> Recorded:
    kinds = _split(kind.partition("[")[2].removesuffix("]"))
    if not isinstance(value, list) or depth > _MAX_DEPTH:
        return Opaque(kind.partition("[")[0])
    if len(kinds) != len(value):
        return Opaque("list that was cut off")
    return [
        _value(
            one,
            kinds[at],
            shape[at] if isinstance(shape, list) and at < len(shape) else [],
            strides[at] if isinstance(strides, list) and at < len(strides) else None,
            depth + 1,
        )
        for at, one in enumerate(value)
    ]


def _tensor(value: Any, kind: str, shape: Any, strides: Any) -> Recorded:
    spelling = kind.partition("(")[2].removesuffix(")")
    if "nullptr" in spelling:
        return None
    sizes = _whole(shape)
    numbers = _whole(value[:_NUMBERS]) if isinstance(value, list) else None
    if sizes is None or numbers is None or len(numbers) < _NUMBERS or len(value) <= _NUMBERS:
        return Opaque("tensor without sizes")
    steps = _whole(strides)
    if steps is None or len(steps) != len(sizes):
        steps = None
    tensor, storage, offset, _, item_bytes = numbers
    return TensorRef(
        tensor=tensor,
        storage=storage,
        offset=offset,
        item_bytes=item_bytes,
        device=str(value[_NUMBERS]),
        dtype=_DTYPES.get(spelling.lower(), ""),
        shape=sizes,
        strides=steps,
    )


def _whole(values: Any) -> tuple[int, ...] | None:
    """Returns the numbers of a list, or None if it has something else, or numbers below 0."""
    if not isinstance(values, list) or not all(
        isinstance(value, int) and value >= 0 for value in values
    ):
        return None
    return tuple(values)


def argument_names(schema: str) -> list[str]:
    """Returns the names of the arguments of `library::operator(Type name, …) -> …`, in order."""
    # Aliases have arrows: `Tensor(a -> *) self`.
    inside = schema.partition("(")[2].rpartition(") -> ")[0].replace("->", "")
    parts = [part.strip().partition("=")[0].split() for part in _split(inside) if part.strip()]
    return [part[-1] for part in parts if part and part != ["*"]]


def _split(text: str) -> list[str]:
    """Splits at commas outside of brackets: `Tensor(float),GenericList[Int,Int],None`."""
    parts, depth, start = [], 0, 0
    for at, letter in enumerate(text):
        depth += (letter in "([<") - (letter in ")]>")
        if letter == "," and not depth:
            parts.append(text[start:at])
            start = at + 1
    return [*parts, text[start:]] if text else []
