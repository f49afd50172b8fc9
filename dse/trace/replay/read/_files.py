"""Files of a replay: execution traces, and Kineto traces and records with their times."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from dse.errors import ConfigError
from dse.trace.read import file_names, is_execution_trace, is_kineto

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

#: Endings of execution traces, and those of the Kineto traces next to them.
_PAIRS = (
    (".et.json.gz", ".pt.trace.json.gz"),
    (".et.json", ".pt.trace.json"),
    ("_pytorch_et.tar.gz", "_kineto.tar.gz"),
    ("_et.tar.gz", "_kineto.tar.gz"),
    ("_et.json.gz", "_kineto.json.gz"),
    ("_et.json", "_kineto.json"),
)


@dataclass(frozen=True, slots=True)
class TraceFiles:
    """Files of one replay.

    Attributes:
        traces: Execution traces, or folders and archives of them.
        kineto: Kineto traces of the same run; there may be none.
        captures: Folders and archives that may have records of captures.
    """

    traces: tuple[Path, ...]
    kineto: tuple[Path, ...]
    captures: tuple[Path, ...]


def find_files(traces: Sequence[Path], kineto: Sequence[Path]) -> TraceFiles:
    """Returns the files of a replay: those that were named, and those next to them.

    Args:
        traces: Execution traces, folders of a capture, or archives.
        kineto: Kineto traces; those next to the execution traces by default.

    Raises:
        ConfigError: No trace is named.
    """
    if not traces:
        raise ConfigError("no execution trace was given")
    times = list(kineto)
    captures = []
    for path in traces:
        names = file_names(path)
        if any(map(is_kineto, names)):
            if not any(map(is_execution_trace, names)):
                raise ConfigError(
                    f"{path}: there are Kineto traces, but no execution traces, which are what a "
                    "replay runs; capture again without `--no-execution-trace`"
                )
            if not kineto:
                times.append(path)
        if names:
            captures.append(path)
        if path.is_dir():
            continue
        for ending, other in _PAIRS:
            if path.name.endswith(ending):
                found = path.with_name(path.name.removesuffix(ending) + other)
                if not kineto and found.exists():
                    times.append(found)
                break
        if path.name.endswith((".et.json.gz", ".et.json")):
            captures.append(path.parent)
    unique = tuple(dict.fromkeys(captures))
    return TraceFiles(tuple(traces), tuple(dict.fromkeys(times)), unique)
