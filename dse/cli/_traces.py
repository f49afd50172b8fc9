"""Traces named on the command line."""

from __future__ import annotations

from contextlib import contextmanager
import sys
from typing import TYPE_CHECKING, Annotated

import typer

from dse.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from pathlib import Path

    from dse.trace import RankTrace


#: Which step of the traces; the help says what is taken without.
StepOption = Annotated[
    str | None,
    typer.Option(
        "--step",
        metavar="NUMBER|ANNOTATION",
        help="Number of the profiler's step, or name of an annotation, of which the last counts; "
        "the last step by default.",
    ),
]


def chosen_step(text: str | None) -> int | str | None:
    """Returns what `--step` names: a number is a step of the profiler, all else an annotation."""
    return int(text) if text is not None and text.strip().isdecimal() else text


@contextmanager
def progress(*, quiet: bool) -> Iterator[Callable[[str], None]]:
    """Shows on standard error what is being done, and takes it away at the end.

    Args:
        quiet: Shows nothing; neither does an output that is no terminal.

    Yields:
        A function to be told what comes next.
    """
    if quiet or not sys.stderr.isatty():
        yield lambda _: None
        return
    from rich.text import Text

    from dse._terminal import Console

    with Console(stderr=True).status("reading") as status:
        yield lambda text: status.update(Text(text))


def read_traces(paths: Sequence[Path]) -> tuple[RankTrace, ...]:
    """Reads files and folders of traces, in order of rank.

    Raises:
        ConfigError: A file cannot be used, or a rank is there twice.
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
