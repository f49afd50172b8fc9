"""Which kind of file some data is from, told by its keys: for files given in place of others."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Collection

#: Keys that files of a kind have and no others do together, and which command takes such a file.
_KINDS = (
    ({"workload", "parameters", "objectives"}, "a search space", "`dse run {file}` searches it"),
    ({"model", "objectives", "created", "versions"}, "part of a study", "give the study's folder"),
    ({"device", "node", "links"}, "a platform", "give it where a platform is named"),
    ({"kind", "source", "tables"}, "a model", "give it where a model is named"),
    ({"kind", "source", "layers"}, "a model", "give it where a model is named"),
    ({"world_size", "tables"}, "a sharding plan", "`dse predict` and `dse rank` take plans"),
    ({"world_size", "plan"}, "a sharding plan", "`dse predict` and `dse rank` take plans"),
)


def other_kind(data: object, known: Collection[str], wanted: str, file: str) -> str:
    """Returns what a file is if it is of another kind than the wanted one; empty if unknown.

    Args:
        data: What the file holds.
        known: Keys of the wanted kind of file.
        wanted: What the wanted kind is called, such as `a model`.
        file: The file, for messages.
    """
    if not isinstance(data, dict):
        return ""
    for keys, kind, advice in _KINDS:
        if keys <= data.keys() and not keys <= set(known) and kind != wanted:
            return f"this is {kind}, not {wanted}; {advice.format(file=file)}"
    return ""
