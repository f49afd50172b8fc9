"""Progress of long commands."""

from __future__ import annotations

from contextlib import contextmanager
from threading import Timer
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

    from rich.progress import Progress, TaskID

#: Seconds after which a command shows its progress.
PATIENCE_S = 2.0


class Display:
    """One line on a terminal with the stage, a bar, and the time; or nothing.

    Called with what is done of a total: whole numbers, or seconds and shares as floats.
    """

    def __init__(self, bar: Progress | None, task: TaskID | None) -> None:
        self._bar = bar
        self._task = task

    def __call__(
        self,
        done: float | None = None,
        total: float | None = None,
        *,
        stage: str | None = None,
        remark: str | None = None,
    ) -> None:
        """Updates what is given.

        Args:
            done: How much is done.
            total: Of how much.
            stage: What is being done.
            remark: Shown behind the bar.
        """
        if self._bar is None or self._task is None:
            return
        changes: dict[str, object] = {}
        if done is not None and total:
            whole = isinstance(done, int)
            count = f"{done:,}/{total:,}" if whole else f"{100 * min(done / total, 1):.0f} %"
            changes |= {"completed": done, "total": total, "count": count}
        if stage is not None:
            changes["description"] = stage
        if remark is not None:
            changes["remark"] = remark
        self._bar.update(self._task, **changes)  # type: ignore[arg-type]

    def stage(self, text: str) -> None:
        """Shows what is being done."""
        self(stage=text)


@contextmanager
def progress(
    stage: str, *, quiet: bool = False, patience_s: float = PATIENCE_S
) -> Iterator[Display]:
    """Shows progress on standard error if it is a terminal, and removes it at the end.

    Args:
        stage: What is being done.
        quiet: Show nothing.
        patience_s: Seconds after which it is shown.
    """
    from dse._text.terminal import Console

    console = Console(stderr=True)
    if quiet or not console.is_terminal:
        yield Display(None, None)
        return
    from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

    bar = Progress(
        SpinnerColumn(),
        TextColumn("{task.description}", markup=False),
        BarColumn(bar_width=24),
        TextColumn("{task.fields[count]}"),
        TextColumn("{task.fields[remark]}", markup=False),
        TimeElapsedColumn(),
        console=console,
        transient=True,
    )
    task = bar.add_task(stage, total=None, count="", remark="")
    timer = Timer(patience_s, bar.start)
    timer.daemon = True
    if patience_s > 0:
        timer.start()
    else:
        bar.start()
    try:
        yield Display(bar, task)
    finally:
        timer.cancel()
        if timer.ident is not None:
            timer.join()
        bar.stop()
