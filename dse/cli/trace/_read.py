"""Traces named on the command line."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dse.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from dse.simulate import CriticalPath, Timeline
    from dse.trace import RankTrace, TraceGraph


def read_traces(paths: Sequence[Path]) -> tuple[RankTrace, ...]:
    """Reads files and folders of traces, in order of rank.

    Raises:
        ConfigError: A file cannot be used, or a rank is given twice.
    """
    from dse.trace import read_kineto

    loaded = [trace for path in paths for trace in read_kineto(path)]
    found: dict[int, str] = {}
    for trace in loaded:
        if trace.rank in found:
            raise ConfigError(
                f"{trace.file}: rank {trace.rank} again, after {found[trace.rank]}; give each "
                "rank's trace once"
            )
        found[trace.rank] = trace.file
    return tuple(sorted(loaded, key=lambda trace: trace.rank))


def critical_path_of(made: TraceGraph, simulated: Timeline) -> CriticalPath:
    """Returns the critical path to the end of the last step."""
    from dse.simulate import critical_path

    return critical_path(simulated, [task for tasks in made.end_tasks for task in tasks])
