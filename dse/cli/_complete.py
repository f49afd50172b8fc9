"""Completion of names in shells: built-in files, programs, kernels, candidates of a study.

Nothing here imports what takes long to import, since shells wait for the answer.
"""

from __future__ import annotations

import csv
from pathlib import Path
import re
from typing import TYPE_CHECKING, Any

from dse._io.catalog import DocumentKind, find_document, list_documents
from dse._io.reading import read_text
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


#: Characters of file names and numbers, which mean nothing to any shell.
_UNQUOTED = re.compile(r"[^\w .,+-]")

models = builtin(DocumentKind.MODEL)
platforms = builtin(DocumentKind.PLATFORM)
spaces = builtin(DocumentKind.SEARCH_SPACE)


def candidates(ctx: Any, incomplete: str) -> list[tuple[str, str]]:
    """Completes the numbers on the front of the study that is named, with what they differ in."""
    # After an option without its value, words in front of it are not yet assigned.
    folder = ctx.params.get("study_dir") or next(iter(ctx.args), None)
    if folder is None:
        return []
    try:
        rows = list(csv.DictReader(read_text(Path(folder) / "pareto.csv").splitlines()))
    except (DseError, csv.Error):
        return []
    # The parameters stand between what the row is and what was found for it.
    columns = list(rows[0]) if rows else []
    first, last = "equal_configurations", "throughput_samples_per_s"
    varied = []
    if {first, last} <= set(columns):
        chosen = columns[columns.index(first) + 1 : columns.index(last)]
        varied = [name for name in chosen if len({row[name] for row in rows}) > 1]
    return [
        (row["number"], _UNQUOTED.sub("", ", ".join(f"{name} {row[name]}" for name in varied)))
        for row in rows
        if (row.get("number") or "").isdecimal() and row["number"].startswith(incomplete)
    ]


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
