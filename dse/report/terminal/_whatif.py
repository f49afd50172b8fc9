"""What-if answers on captured steps."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dse.report.console import (
    UNKNOWN,
    Table,
    figures,
    line,
    ms,
    names,
    notes,
    signed_percent,
    texts,
)
from dse.report.terminal._trace import parts_text

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rich.console import Console

    from dse.trace.whatif import WhatIf

#: Factors from here on are printed in full.
_LARGE = 1000


def print_what_if(answer: WhatIf, console: Console) -> None:
    """Prints each change with its effect, every rank before and after, and what binds the step."""
    from dse.trace.whatif import bound_by

    titles = ("tasks", "inserted", "removed", "step after", "change")
    table = Table("changes, applied in order", texts("change"), figures(*titles))
    for effect in answer.effects:
        table.add(
            effect.title,
            f"{effect.tasks:,}",
            f"{effect.inserted:,}",
            f"{effect.removed:,}",
            f"{ms(effect.after_s)} ms",
            signed_percent(effect.after_s / effect.before_s - 1) if effect.before_s else UNKNOWN,
        )
    table.print(console)
    parts = ("before", "after", "compute", "exposed", "idle", "waiting")
    table = Table("one step of each rank, in ms", figures("rank", *parts))
    for old, new in zip(answer.before, answer.after, strict=True):
        seconds = (
            old.simulated_s,
            new.simulated_s,
            new.compute_s,
            new.exposed_communication_s,
            new.idle_s,
            new.wait_s,
        )
        table.add(str(new.rank), *map(ms, seconds))
    table.print(console)
    work = f", {_times(answer.work_factor)} the samples" if answer.work_factor != 1.0 else ""
    line(
        console,
        f"step {ms(answer.before_s)} ms → {ms(answer.after_s)} ms{work}: "
        f"{answer.speedup:.3f} times the throughput",
    )
    if bounds := parts_text(bound_by(answer)):
        line(console, f"the changed step is bound by: {bounds}")
    notes(console, ((None, note) for note in (*answer.machine.notes, *answer.notes)))


def _times(factor: float) -> str:
    return f"{factor:,.0f} times" if factor >= _LARGE else f"{factor:.4g} times"


def print_optimizations(
    optimizations: Sequence[tuple[str, str, tuple[str, ...]]], console: Console
) -> None:
    """Prints names, descriptions and options; `NAME=VALUE` sets the first option."""
    table = Table("optimizations", names("name"), texts("effect", "options"))
    for name, text, options in optimizations:
        table.add(name, text, ", ".join(options))
    table.print(console)
