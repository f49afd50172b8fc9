"""What benchmarks write: Markdown tables, figures in words, sections of pages, and JSON."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from dse.errors import DseError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence
    from pathlib import Path


def table(heads: Sequence[str], sides: str, rows: Iterable[Iterable[object]]) -> Iterator[str]:
    """Yields the lines of a Markdown table.

    Args:
        heads: Of the columns.
        sides: `l` or `r` for each column; the last one holds for all that follow.
        rows: Their cells.
    """
    rules = {"l": "---", "r": "---:"}
    yield _row(heads)
    yield f"|{'|'.join(rules[side] for side in sides.ljust(len(heads), sides[-1]))}|"
    yield from map(_row, rows)


def _row(cells: Iterable[object]) -> str:
    return "|" + "".join(f" {cell} |" if f"{cell}" else " |" for cell in cells)


def text(lines: Iterable[str]) -> str:
    """Returns lines as they stand in a page."""
    return "".join(f"{line}\n" for line in lines)


def percent(value: float, digits: int = 1) -> str:
    """Returns a share in percent, or a dash."""
    return "–" if math.isnan(value) else f"{100 * value:.{digits}f} %"


def number(value: float, *, sign: bool = False) -> str:
    """Returns a number with two digits behind the point, or a dash."""
    return "–" if math.isnan(value) else f"{value:{'+' if sign else ''}.2f}"


def without_nan(value: object) -> object:
    """Returns what JSON can say: what is not known is null."""
    if isinstance(value, dict):
        return {name: without_nan(inner) for name, inner in value.items()}
    if isinstance(value, list):
        return [without_nan(inner) for inner in value]
    return None if isinstance(value, float) and math.isnan(value) else value


def replace_section(page: Path, section: str) -> None:
    """Writes a section over the one that a page has under the same title.

    Args:
        page: The page.
        section: The new one, which begins with its title.

    Raises:
        DseError: The page has no such section.
    """
    title, _, _ = section.lstrip().partition("\n")
    text = page.read_text(encoding="utf-8")
    before, found, rest = text.partition(f"\n{title}\n")
    if not found:
        raise DseError(f"{page} has no line `{title}`; write the whole page")
    _, following, after = rest.partition("\n## ")
    page.write_text(before.rstrip() + "\n" + section + following + after, encoding="utf-8")
