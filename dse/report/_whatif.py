"""What-ifs on the terminal."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich.table import Table

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rich.console import Console

    from dse.whatif import WhatIf


def render_what_if(answer: WhatIf, console: Console) -> None:
    """Prints each change with its effect, then every rank before and after."""
    table = Table(title="changes, one after the other", title_justify="left")
    table.add_column("change")
    for name in ("tasks", "inserted", "removed", "step after", "speed-up"):
        table.add_column(name, justify="right", no_wrap=True)
    for effect in answer.effects:
        table.add_row(
            effect.title,
            f"{effect.tasks:,}",
            f"{effect.inserted:,}",
            f"{effect.removed:,}",
            f"{1e3 * effect.after_s:.3f} ms",
            f"{effect.before_s / effect.after_s:.3f}×" if effect.after_s else "–",
        )
    console.print(table)
    table = Table(title="one step of each rank, in ms", title_justify="left")
    for name in ("rank", "before", "after", "compute", "exposed", "idle"):
        table.add_column(name, justify="right")
    for old, new in zip(answer.before, answer.after, strict=True):
        values = (
            old.simulated_s,
            new.simulated_s,
            new.compute_s,
            new.exposed_communication_s,
            new.idle_s,
        )
        table.add_row(str(new.rank), *(f"{1e3 * value:.3f}" for value in values))
    console.print(table)
    work = f", {answer.work_factor:g} times the samples" if answer.work_factor != 1.0 else ""
    console.print(
        f"step {1e3 * answer.before_s:.3f} ms → {1e3 * answer.after_s:.3f} ms{work}: "
        f"{answer.speedup:.3f} times the throughput",
        highlight=False,
    )
    for note in answer.notes:
        console.print(f"note: {note}", markup=False, highlight=False)


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
