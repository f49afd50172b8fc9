"""Completion of names in shells: built-in files, programs and kernels.

Nothing here imports what takes long to import, since shells wait for the answer.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from dse._catalog import DocumentKind, find_document, list_documents
from dse.errors import DseError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    Completer = Callable[[Any, str], list[str]]

#: Training programs; tests compare them with those that there are.
PROGRAMS = (
    *("ideal", "pytorch_eager", "pytorch", "torchrec", "dse_trainer", "torchrec_dlrm"),
    *("deeplearningexamples", "hugectr_3_1", "hugectr_hybrid", "hugectr"),
    *("distributed_embeddings", "megatron", "megatron_deepspeed", "nemo", "megatron_bridge"),
    *("nanotron", "torchtitan", "torchtitan_eager", "composer"),
)
SHARDING_TYPES = (
    *("data_parallel", "table_wise", "column_wise", "row_wise", "table_row_wise"),
    *("table_column_wise", "grid_shard"),
)
KERNELS = ("dense", "fused", "fused_uvm", "fused_uvm_caching")
WIRE_FORMATS = ("fp32", "fp16", "bf16", "fp8", "int8", "mx4")
EXPORT_FORMATS = ("json", "yaml", "torchrec", "megatron", "torchtitan", "fsdp")


def builtin(kind: DocumentKind) -> Completer:
    """Returns the completion of built-in names; without one the shell offers files."""

    def complete(ctx: Any, incomplete: str) -> list[str]:
        del ctx
        return [path.stem for path in list_documents(kind) if path.stem.startswith(incomplete)]

    return complete


def names(known: Iterable[str]) -> Completer:
    """Returns the completion of fixed names that are not the only ones."""
    offered = tuple(known)

    def complete(ctx: Any, incomplete: str) -> list[str]:
        del ctx
        return [name for name in offered if name.startswith(incomplete)]

    return complete


def listed(complete_one: Completer) -> Completer:
    """Returns the completion of the last entry of a list with commas."""

    def complete(ctx: Any, incomplete: str) -> list[str]:
        before, comma, last = incomplete.rpartition(",")
        found = complete_one(ctx, last)
        return [f"{before}{comma}{name}" for name in found]

    return complete


models = builtin(DocumentKind.MODEL)
platforms = builtin(DocumentKind.PLATFORM)
spaces = builtin(DocumentKind.SEARCH_SPACE)


def links(ctx: Any, incomplete: str) -> list[str]:
    """Completes interconnects of the platform that is named."""
    return _of_platform(ctx, "links", incomplete)


def networks(ctx: Any, incomplete: str) -> list[str]:
    """Completes networks of the platform that is named."""
    return _of_platform(ctx, "networks", incomplete)


def _of_platform(ctx: Any, field: str, incomplete: str) -> list[str]:
    from dse.config import parse_plain, read_source

    named = ctx.params.get("platform")
    if not named:
        return []
    try:
        path = find_document(DocumentKind.PLATFORM, str(named))
        document = parse_plain(read_source(path).text)
    except DseError:
        return []
    found = document.get(field) if isinstance(document, dict) else None
    return [name for name in found or () if str(name).startswith(incomplete)]
