"""Collectives in traces: spellings of PyTorch and NCCL, and the description of one."""

from __future__ import annotations

from dataclasses import dataclass
import re

#: Canonical names, in the order in which spellings are tried: `allreduce` before `reduce`.
OPERATIONS = {
    "allreduce": "all_reduce",
    "allgather": "all_gather",
    "reducescatter": "reduce_scatter",
    "alltoall": "all_to_all",
    "broadcast": "broadcast",
    "sendrecv": "send_recv",
    "reduce": "reduce",
    "gather": "gather",
    "scatter": "scatter",
    "send": "send",
    "recv": "recv",
    "barrier": "barrier",
}

_BYTES = {
    **dict.fromkeys(("bool", "int8", "uint8", "fp8"), 1),
    **dict.fromkeys(("fp16", "bf16", "int16"), 2),
    **dict.fromkeys(("fp32", "int32"), 4),
    **dict.fromkeys(("fp64", "int64", "complex64"), 8),
    "complex128": 16,
}
_TYPES = {
    "float": "fp32",
    "float32": "fp32",
    "double": "fp64",
    "float64": "fp64",
    "half": "fp16",
    "float16": "fp16",
    "bfloat16": "bf16",
    "char": "int8",
    "signed char": "int8",
    "byte": "uint8",
    "unsigned char": "uint8",
    "short": "int16",
    "short int": "int16",
    "int": "int32",
    "long": "int64",
    "long int": "int64",
    "long long": "int64",
    "complexfloat": "complex64",
    "complexdouble": "complex128",
}
_MAX_DIGITS = 18
_PREFIX = re.compile(r"^(?:nccl|rccl|gloo|mpi|ucc|xccl|c10d)(?::+|_)?", re.IGNORECASE)
_KERNEL = re.compile(r"^(?:void )?(?:nccl|rccl)(?:Dev)?(?:Kernel_?)?([A-Za-z]+)")
_PEERS = re.compile(r"\b(send|recv)\s+(\d+)\s*(->|<-)\s*(\d+)")


@dataclass(frozen=True, slots=True)
class CollectiveInfo:
    """Description of one collective; unknown fields are -1, 0 or empty.

    Attributes:
        operation: Name in this package (`all_reduce`, …); unknown operations as written.
        message_bytes: As nccl-tests counts: all ranks' result for all-gather, the whole input for
            reduce-scatter, otherwise the buffer of this rank, in bytes.
        dtype: Element type (`fp32`, …); unknown types as written.
        group_size: Number of ranks.
        group: Name of the process group.
        ranks: Global ranks of the group.
        input_elements: Elements that this rank sends.
        output_elements: Elements that this rank receives.
        input_splits: Elements or rows sent to each rank of an uneven all-to-all.
        output_splits: Elements or rows received from each rank.
        sequence: Number of the collective in its group.
        source: Sending rank in the group.
        destination: Receiving rank in the group.
    """

    operation: str
    message_bytes: int = -1
    dtype: str = ""
    group_size: int = 0
    group: str = ""
    ranks: tuple[int, ...] = ()
    input_elements: int = -1
    output_elements: int = -1
    input_splits: tuple[int, ...] = ()
    output_splits: tuple[int, ...] = ()
    sequence: int = -1
    source: int = -1
    destination: int = -1


def operation_of(name: str) -> str:
    """Returns the canonical name of an operation in any spelling; unknown names as written."""
    plain = re.sub(r"[^a-z]", "", _PREFIX.sub("", name).lower())
    for spelling, ours in OPERATIONS.items():
        if plain.startswith(spelling):
            return ours
    return name


def operation_of_kernel(name: str) -> str:
    """Returns the operation of an NCCL kernel, or an empty string for other kernels."""
    found = _KERNEL.match(name)
    if found is None:
        return ""
    ours = operation_of(found.group(1))
    return ours if ours in OPERATIONS.values() else "unknown"


def peers_of(name: str) -> tuple[int, int]:
    """Returns sender and receiver of `nccl:send 0->1` or `nccl:recv 1<-0`, -1 if not named."""
    found = _PEERS.search(name)
    if found is None:
        return -1, -1
    left, right = int(found.group(2)), int(found.group(4))
    return (left, right) if found.group(3) == "->" else (right, left)


def dtype_name(spelling: str) -> str:
    """Returns the canonical name of a data type in any of PyTorch's spellings, or as written."""
    plain = spelling.removeprefix("c10::").removeprefix("torch.").strip().lower()
    return "fp8" if plain.startswith("float8") else _TYPES.get(plain, plain)


def dtype_bytes(dtype: str) -> int:
    """Returns the bytes of one value of a canonical type; 0 if unknown."""
    return _BYTES.get(dtype, 0)


def message_bytes(operation: str, inputs: int, outputs: int, ranks: int, dtype: str) -> int:
    """Returns the size of a message as nccl-tests counts it, in bytes; -1 if unknown.

    Args:
        operation: Canonical name.
        inputs: Elements that this rank sends; -1 if unknown.
        outputs: Elements that this rank receives; -1 if unknown.
        ranks: Ranks of the group; 0 if unknown.
        dtype: Canonical type.
    """
    elements = inputs
    if operation == "all_gather":
        elements = outputs if outputs >= 0 else inputs * ranks if ranks else -1
    elif operation == "recv" or inputs < 0:
        elements = outputs
    width = dtype_bytes(dtype)
    return elements * width if elements >= 0 and width else -1


def whole_numbers(text: str) -> tuple[int, ...]:
    """Returns the numbers of `[0, 1, 2]`; empty if the list is abridged with dots."""
    if "..." in text:
        return ()
    found = re.findall(r"\d+", text)
    # Longer numbers are damaged; they would not fit into 64 bits.
    return tuple(int(item) for item in found if len(item) <= _MAX_DIGITS)
