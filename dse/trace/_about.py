"""What the top of a Kineto trace says: rank, groups, devices, base of the times."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from dse._reading import MAX_RANKS
from dse.trace._events import ProcessGroup
from dse.trace._json import plain

if TYPE_CHECKING:
    from collections.abc import Iterable

    from dse.trace._json import KinetoDocument


@dataclass(frozen=True, slots=True)
class About:
    """What the top of a document says.

    Attributes:
        rank: Global rank.
        world_size: Ranks of the job; 0 if unknown.
        groups: Process groups.
        devices: Names of devices.
        base_time_ns: What times are relative to.
    """

    rank: int | None
    world_size: int
    groups: tuple[ProcessGroup, ...]
    devices: tuple[str, ...]
    base_time_ns: int

    @classmethod
    def of(cls, document: KinetoDocument) -> About:
        """Takes what is usable; anything odd counts as not given."""
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
