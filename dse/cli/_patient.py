"""A progress bar that comes only when something takes longer than a moment."""

from __future__ import annotations

from contextlib import contextmanager
import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from rich.progress import Progress

    from dse._terminal import Console

#: Seconds after which a command shows that it is at work.
PATIENCE_S = 2.0


@contextmanager
def patient_progress(what: str, *, quiet: bool = False) -> Iterator[Callable[[int, int], None]]:
    """Yields a function that takes how much is done of how much, and shows it after two seconds.

    Args:
        what: What is going on, in a word or two.
        quiet: Show nothing.
    """
    from dse._terminal import Console

    console = Console(stderr=True)
    bar = _Bar(what, console, shown=not quiet and console.is_terminal)
    try:
        yield bar
    finally:
        bar.stop()


class _Bar:
    def __init__(self, what: str, console: Console, *, shown: bool) -> None:
        self._what = what
        self._console = console
        self._shown = shown
        self._started = time.monotonic()
        self._progress: Progress | None = None

    def __call__(self, done: int, total: int) -> None:
        if not self._shown:
            return
        if self._progress is None:
            if time.monotonic() - self._started < PATIENCE_S:
                return
            self._progress = _progress(self._console)
            self._progress.start()
            self._task = self._progress.add_task(self._what, total=total)
        self._progress.update(self._task, total=total, completed=done)

    def stop(self) -> None:
        if self._progress is not None:
            self._progress.stop()


def _progress(console: Console) -> Progress:
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        Progress,
        TextColumn,
        TimeRemainingColumn,
    )

    return Progress(
        TextColumn("{task.description}"),
        BarColumn(bar_width=24),
        MofNCompleteColumn(),
        TimeRemainingColumn(),
        console=console,
        transient=True,
    )
