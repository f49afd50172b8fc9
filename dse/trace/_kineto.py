"""Kineto traces → `RankTrace`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec import UNSET

from dse.errors import ConfigError
from dse.trace._about import About
from dse.trace._build import Builder, refuse_faults
from dse.trace._columns import Columns
from dse.trace._files import MAX_UNPACKED_BYTES, NOT_KINETO, documents
from dse.trace._json import KinetoDocument, blocks, decode
from dse.trace._ranks import check_ranks, rank_from_name

if TYPE_CHECKING:
    from pathlib import Path

    from dse.trace._events import RankTrace


def read_kineto(
    path: str | Path, *, max_unpacked_bytes: int = MAX_UNPACKED_BYTES
) -> tuple[RankTrace, ...]:
    """Reads the Kineto traces of one run, one a rank.

    Args:
        path: A `.json` or `.json.gz` file, a `.tar.gz` archive of such files, or a folder.
        max_unpacked_bytes: Limit on the unpacked bytes of one file.

    Returns:
        The traces in order of their ranks.

    Raises:
        ConfigError: A file cannot be read, is not a Kineto trace, is cut off, or has broken times
            in more than 3 % of its events; two files are of one rank or of different runs.
    """
    read = []
    for name, content in documents(path, max_unpacked_bytes, NOT_KINETO):
        read.append(_trace(name, content))
        del content
    return check_ranks(read)


def _trace(file: str, content: bytearray) -> tuple[RankTrace, int | None]:
    document, notes = decode(content, KinetoDocument, file)
    if document.events is UNSET:
        advice = "; it looks like an execution trace" if bytes(document.nodes) else ""
        raise ConfigError(f"{file}: not a Kineto trace: there is no `traceEvents`{advice}")
    columns = Columns()
    for first, events in blocks(document.events):
        columns.add(first, events)
    document.events = UNSET
    refuse_faults(file, columns)
    about = About.of(document)
    trace = Builder(file, columns, about, notes).build()
    return trace, about.rank if about.rank is not None else rank_from_name(file)
