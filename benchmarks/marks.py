"""Marks: figures beside what they have to reach, as benchmarks print them and pages show them."""

from __future__ import annotations

from dataclasses import dataclass
import math
from typing import TYPE_CHECKING

from pages import table, text

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable


@dataclass(frozen=True, slots=True)
class Mark:
    """One aim with what was reached.

    Attributes:
        name: What is measured.
        figure: What was measured, in words.
        aim: What it has to reach, in words; empty where the name says it.
        met: Whether it does; None if what was measured does not say.
        value: The figure as a number; NaN where there is none.
    """

    name: str
    figure: str
    aim: str
    met: bool | None
    value: float = math.nan

    @classmethod
    def of(
        cls, name: str, value: float, sign: str, limit: float, words: Callable[[float], str]
    ) -> Mark:
        """Judges a number.

        Args:
            name: What is measured.
            value: What was measured.
            sign: `≤` or `≥`.
            limit: What it must not pass.
            words: How either reads.
        """
        met = value >= limit if sign == "≥" else value <= limit
        known = not math.isnan(value)
        return cls(name, words(value), f"{sign} {words(limit)}", met if known else None, value)

    def __str__(self) -> str:
        return f"{self.name}: {self._reached}"

    @property
    def line(self) -> str:
        """As it is printed."""
        verdict = "open" if self.met is None else "met" if self.met else "MISSED"
        return f"{verdict:<7} {self}"

    @property
    def cells(self) -> tuple[str, str, str]:
        """As pages show it."""
        verdict = "open" if self.met is None else "met" if self.met else "**missed**"
        return self.name, self._reached, verdict

    @property
    def _reached(self) -> str:
        return f"{self.figure} ({self.aim})" if self.aim else self.figure


def mark_table(marks: Iterable[Mark]) -> str:
    """Returns marks in Markdown."""
    return text(table(("target", "reached", ""), "lrl", (mark.cells for mark in marks)))
