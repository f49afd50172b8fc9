"""What-ifs on the terminal."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich.table import Table
from rich.text import Text

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rich.console import Console

    from dse.trace.whatif import WhatIf

#: Share of the critical path from which a sort of task is named.
_SMALL = 0.01
#: Factors are printed in full from here on.
_LARGE = 1000


def render_what_if(answer: WhatIf, console: Console) -> None:
    """Prints each change with its effect, every rank before and after, what bounds the step."""
    from dse.trace.whatif import bound_by

    table = Table(title="changes, one after the other", title_justify="left")
    table.add_column("change")
    for name in ("tasks", "inserted", "removed", "step after", "speed-up"):
        table.add_column(name, justify="right", no_wrap=True)
    for effect in answer.effects:
        table.add_row(
            Text(effect.title),
            f"{effect.tasks:,}",
            f"{effect.inserted:,}",
            f"{effect.removed:,}",
            f"{1e3 * effect.after_s:.3f} ms",
            f"{effect.before_s / effect.after_s:.3f}×" if effect.after_s else "–",
        )
    console.print(table)
    table = Table(title="one step of each rank, in ms", title_justify="left")
    for name in ("rank", "before", "after", "compute", "exposed", "idle", "of it waiting"):
        table.add_column(name, justify="right")
    for old, new in zip(answer.before, answer.after, strict=True):
        values = (
            old.simulated_s,
            new.simulated_s,
            new.compute_s,
            new.exposed_communication_s,
            new.idle_s,
            new.wait_s,
        )
        table.add_row(str(new.rank), *(f"{1e3 * value:.3f}" for value in values))
    console.print(table)
    work = f", {_times(answer.work_factor)} the samples" if answer.work_factor != 1.0 else ""
    console.print(
        f"step {1e3 * answer.before_s:.3f} ms → {1e3 * answer.after_s:.3f} ms{work}: "
        f"{answer.speedup:.3f} times the throughput",
        highlight=False,
    )
    parts = [part for part in bound_by(answer) if part.share >= _SMALL]
    if parts:
        shares = ", ".join(f"{part.part} {100 * part.share:.0f} %" for part in parts)
        _line(console, f"the changed step is bound by: {shares}")
    for note in dict.fromkeys((*answer.machine.notes, *answer.notes)):
        _line(console, f"note: {note}")


def _line(console: Console, text: str) -> None:
    console.print(text, markup=False, highlight=False, soft_wrap=True)


def _times(factor: float) -> str:
    return f"{factor:,.0f} times" if factor >= _LARGE else f"{factor:.4g} times"


def render_optimizations(
    optimizations: Sequence[tuple[str, str, tuple[str, ...]]], console: Console
) -> None:
    """Prints names, descriptions and options; `NAME=VALUE` sets the first option."""
    table = Table(title="optimizations", title_justify="left")
    for name in ("name", "what it does", "options"):
        table.add_column(name)
    for name, text, options in optimizations:
        table.add_row(name, text, ", ".join(options))
    console.print(table)
