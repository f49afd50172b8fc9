"""Kineto reader."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from msgspec import UNSET

from dse._io.reading import MAX_RANKS
from dse.errors import ConfigError
from dse.trace.read._assemble import Assembler, refuse_faults
from dse.trace.read._columns import Columns
from dse.trace.read._files import NOT_KINETO, documents
from dse.trace.read._json import KinetoDocument, blocks, decode, plain
from dse.trace.read._rank_trace import ProcessGroup
from dse.trace.read._ranks import check_ranks, rank_from_name

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from pathlib import Path

    from msgspec import Raw

    from dse.trace.read._rank_trace import RankTrace


@dataclass(frozen=True, slots=True)
class Header:
    """The top of a Kineto trace.

    Attributes:
        rank: Global rank; None if not given.
        world_size: Ranks of the job; 0 if unknown.
        groups: Process groups.
        devices: Names of devices.
        base_time_ns: Reference of all times.
    """

    rank: int | None
    world_size: int
    groups: tuple[ProcessGroup, ...]
    devices: tuple[str, ...]
    base_time_ns: int

    @classmethod
    def parse(cls, document: KinetoDocument) -> Header:
        """Takes what is usable; anything odd counts as missing."""
        info = plain(document.distributed)
        info = info if isinstance(info, dict) else {}
        rank, world = info.get("rank"), info.get("world_size")
        devices = plain(document.devices)
        return cls(
            rank=rank if isinstance(rank, int) and 0 <= rank < MAX_RANKS else None,
            world_size=world if isinstance(world, int) and 0 < world <= MAX_RANKS else 0,
            groups=tuple(_groups(info.get("pg_config"))),
            devices=tuple(
                str(item.get("name", "")) if isinstance(item, dict) else ""
                for item in (devices if isinstance(devices, list) else [])
            ),
            base_time_ns=document.base_time,
        )


def read_kineto(path: str | Path) -> tuple[RankTrace, ...]:
    """Reads the Kineto traces of one run, one per rank.

    Args:
        path: A `.json` or `.json.gz` file, a `.tar.gz` archive of such files, or a folder.

    Returns:
        The traces, sorted by rank.

    Raises:
        ConfigError: A file cannot be read, is not a Kineto trace, is truncated, or has broken
            times in more than 3 % of its events; or two files belong to the same rank or to
            different runs.
    """
    read = []
    for name, content in documents(path, NOT_KINETO):
        read.append(_trace(name, content))
        del content
    return check_ranks(read)


def _trace(file: str, content: bytearray) -> tuple[RankTrace, int | None]:
    document, notes = decode(content, KinetoDocument, file)
    if document.events is UNSET:
        advice = "; it looks like an execution trace" if bytes(document.nodes) else ""
        raise ConfigError(f"{file}: not a Kineto trace: `traceEvents` is missing{advice}")
    columns, header = _columns(document.events), Header.parse(document)
    # Nothing refers to the text any more, which is most of the memory.
    del document
    content.clear()
    refuse_faults(file, columns)
    trace = Assembler(file, columns, header, notes).assemble()
    return trace, header.rank if header.rank is not None else rank_from_name(file)


def _columns(raws: Sequence[Raw]) -> Columns:
    """Takes all events; those of the last block may refer to the text, and end here."""
    columns = Columns()
    for first, events in blocks(raws):
        columns.add(first, events)
    return columns


def _groups(config: object) -> Iterable[ProcessGroup]:
    for item in config if isinstance(config, list) else []:
        if isinstance(item, dict) and "pg_name" in item:
            listed = item.get("ranks")
            ranks = (
                tuple(rank for rank in listed if isinstance(rank, int) and 0 <= rank < MAX_RANKS)
                if isinstance(listed, list)
                else ()
            )
            size = item.get("pg_size", item.get("group_size"))
            yield ProcessGroup(
                str(item["pg_name"]),
                str(item.get("pg_desc", "")),
                ranks,
                size if isinstance(size, int) and 0 <= size <= MAX_RANKS else len(ranks),
            )
