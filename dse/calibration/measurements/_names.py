"""Vocabularies of measurement files: operations, data types and units, with their spellings."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from dse._io.tables import snake_case

if TYPE_CHECKING:
    from collections.abc import Mapping

#: Seconds in one unit of time.
TIME_UNITS: Mapping[str, float] = {"s": 1.0, "ms": 1e-3, "us": 1e-6, "ns": 1e-9}

#: What a message size may be counted in.
SIZE_UNITS = ("bytes", "elements")

_SPELLED_UNITS = {
    "s": ("s", "sec", "secs", "second", "seconds"),
    "ms": ("ms", "msec", "msecs", "millis", "millisecond", "milliseconds"),
    "us": ("us", "usec", "usecs", "micros", "microsecond", "microseconds"),
    "ns": ("ns", "nsec", "nsecs", "nanos", "nanosecond", "nanoseconds"),
}
UNIT_OF_SUFFIX = {word: unit for unit, words in _SPELLED_UNITS.items() for word in words}

_BYTES = {
    **dict.fromkeys(("fp8", "fp8_block", "int8", "uint8"), 1),
    **dict.fromkeys(("bf16", "fp16", "int16"), 2),
    **dict.fromkeys(("fp32", "tf32", "int32", "uint32"), 4),
    **dict.fromkeys(("fp64", "int64", "uint64"), 8),
}

_SPELLED_TYPES = {
    "fp8": ("f8", "float8", "fp8_e4m3", "fp8_e5m2", "f8e4m3", "f8e5m2", "float8_e4m3fn", "e4m3"),
    "fp16": ("half", "float16", "f16"),
    "bf16": ("bfloat16", "bfloat"),
    "fp32": ("float", "float32", "f32", "single"),
    "tf32": ("tensorfloat32",),
    "fp64": ("double", "float64", "f64"),
    "int8": ("char", "i8"),
    "uint8": ("byte", "u8"),
    "int32": ("int", "i32"),
    "int64": ("long", "i64"),
}

_SPELLED_OPS = {
    "all_reduce": ("allreduce",),
    "all_gather": ("allgather", "all_gather_into_tensor"),
    "reduce_scatter": ("reducescatter", "reduce_scatter_tensor"),
    "all_to_all": ("alltoall", "all2all", "a2a", "all_to_all_single"),
    "broadcast": ("bcast",),
    "send_recv": ("sendrecv", "p2p", "send_receive"),
}

_SPELLED_PASSES = {
    "forward": ("fwd", "embedding_forward", "embedding_fwd", "lookup"),
    "backward": ("bwd", "embedding_backward", "embedding_bwd", "update"),
}


@dataclass(frozen=True, slots=True)
class Vocabulary:
    """The terms that one kind of column may hold.

    Attributes:
        kind: What a term means, for messages.
        names: Our names.
        other: Other people's spellings, in lower case, to our names.
    """

    kind: str
    names: tuple[str, ...]
    other: Mapping[str, str]

    def find(self, word: str) -> str | None:
        """Returns our name for any spelling, or None."""
        plain = snake_case(word.removeprefix("torch.").removeprefix("nccl").removesuffix("_perf"))
        return plain if plain in self.names else self.other.get(plain)


def _vocabulary(
    kind: str, names: tuple[str, ...], spelled: Mapping[str, tuple[str, ...]]
) -> Vocabulary:
    other = {word: name for name, words in spelled.items() for word in words if name in names}
    return Vocabulary(kind, names, other)


#: Arithmetic that matrix multiplications are measured in; wider than what a workload may ask for.
GEMM_PRECISIONS = (
    "fp64",
    "fp32",
    "tf32",
    "fp16",
    "bf16",
    "fp8",
    "fp8_block",
    "mxfp8",
    "nvfp4",
    "int8",
)

#: Types of the elements of messages and tables.
DATA_TYPES = tuple(_BYTES)

#: Collectives by our names.
COLLECTIVE_OPS = tuple(_SPELLED_OPS)

#: Passes of an embedding lookup.
EMBEDDING_OPS = tuple(_SPELLED_PASSES)

PRECISION_WORDS = _vocabulary("precision", GEMM_PRECISIONS, _SPELLED_TYPES)
TYPE_WORDS = _vocabulary("data type", DATA_TYPES, _SPELLED_TYPES)
COLLECTIVE_WORDS = _vocabulary("operation", COLLECTIVE_OPS, _SPELLED_OPS)
EMBEDDING_WORDS = _vocabulary("operation", EMBEDDING_OPS, _SPELLED_PASSES)


def collective_of(word: str) -> str | None:
    """Returns our name of a collective in any spelling, or None if unknown."""
    return COLLECTIVE_WORDS.find(word)


def value_bytes_of(data_type: str) -> int | None:
    """Returns the bytes of one value of a data type in any spelling, or None if unknown."""
    name = TYPE_WORDS.find(data_type)
    return None if name is None else _BYTES[name]
