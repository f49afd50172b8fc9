"""Lines, tables, units and numbers for people."""

from __future__ import annotations

from textwrap import TextWrapper
from typing import TYPE_CHECKING, NamedTuple

from rich.cells import cell_len
from rich.padding import Padding
from rich.segment import Segment, Segments
import rich.table
from rich.text import Text

from dse._text import percent as _percent

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from rich.console import Console, RenderableType

#: Stands for a value that is not known.
UNKNOWN = "–"

#: Narrowest name and narrowest text when a table has to shrink.
_SHORTEST_NAME = 8
_SHORTEST_TEXT = 16
#: Blanks next to a column.
_PADDING = 2
#: Runs of ranks that are listed.
_RANK_RUNS = 4
#: Words of keys that are not written in lower case.
_WRITTEN = {"gib": "GiB", "usd": "USD", "mlp": "MLP", "ffn": "FFN", "kv": "KV"}


def line(console: Console, text: str, style: str = "") -> None:
    """Prints one line; a terminal shows it in several that end between words.

    What begins with blanks, such as a command to copy, stays one line, and so does everything that
    goes to a file.
    """
    if console.is_terminal and not text.startswith(" "):
        # Long paths and names stay whole.
        wrapper = TextWrapper(console.width, break_long_words=False, break_on_hyphens=False)
        text = "\n".join(wrapper.fill(part) for part in text.split("\n"))
    console.print(Text(text), soft_wrap=True, highlight=False, style=style)


def notes(console: Console, pairs: Iterable[tuple[int | None, str]]) -> None:
    """Prints notes; a note shared by several ranks is printed once.

    Args:
        console: Where to print.
        pairs: Rank and note; the rank is None for a note on the whole.
    """
    ranks_of: dict[str, list[str]] = {}
    for rank, note in pairs:
        ranks = ranks_of.setdefault(note, [])
        if rank is not None:
            ranks.append(str(rank))
    for note, ranks in ranks_of.items():
        whose = f"rank {', '.join(ranks)}: " if ranks else ""
        line(console, f"note: {whose}{note}")


# Tables -----------------------------------------------------------------------------------------


class Column(NamedTuple):
    """A column of a :class:`Table`.

    Attributes:
        title: Heading; may be empty.
        kind: ``figure`` (right-aligned, never shortened), ``name`` (shortened with an ellipsis) or
            ``text`` (wrapped).
    """

    title: str
    kind: str


def figures(*titles: str) -> list[Column]:
    """Returns columns of numbers."""
    return [Column(title, "figure") for title in titles]


def names(*titles: str) -> list[Column]:
    """Returns columns of names."""
    return [Column(title, "name") for title in titles]


def texts(*titles: str) -> list[Column]:
    """Returns columns of text."""
    return [Column(title, "text") for title in titles]


class Table:
    """A table in the one style of the commands.

    Figures keep all their digits on a narrow terminal: headings wrap first, then names are
    shortened and text is wrapped between words. Where even that is too wide, each row is printed
    as a block of lines.

    Args:
        title: Printed above the table, after an empty line; may be empty.
        *columns: Columns; lists of columns are joined.
    """

    def __init__(self, title: str, *columns: Sequence[Column]) -> None:
        self._title = title
        self._kinds = [column.kind for group in columns for column in group]
        titles = [column.title for group in columns for column in group]
        self._table = rich.table.Table(
            box=None, header_style="bold", show_header=any(titles), pad_edge=False
        )
        for kind, heading in zip(self._kinds, titles, strict=True):
            if kind == "name":
                self._table.add_column(Text(heading), no_wrap=True, overflow="ellipsis")
            else:
                self._table.add_column(
                    Text(heading),
                    justify="right" if kind == "figure" else "left",
                    overflow="fold",
                )

    def add(self, *cells: str | Text, style: str | None = None) -> None:
        """Adds a row; missing cells at its end are empty."""
        texts = [cell if isinstance(cell, Text) else Text(cell) for cell in cells]
        self._table.add_row(*texts, style=style)

    def print(self, console: Console) -> None:
        """Prints title and table."""
        if self._title:
            console.print()
            line(console, self._title, "bold")
        if self._fit(console.width):
            _print_trimmed(console, self._table)
            return
        columns = list(zip(self._kinds, self._table.columns, strict=True))
        # What a row is about comes first.
        columns.sort(key=lambda column: column[0] == "figure")
        headings = [str(column.header) for _, column in columns]
        for number, row in enumerate(zip(*(column.cells for _, column in columns), strict=True)):
            if number:
                console.print()
            facts(
                console,
                ((name, str(cell)) for name, cell in zip(headings, row, strict=True) if str(cell)),
            )

    def _fit(self, width: int) -> bool:
        """Sets the widths of columns where the table is wider than the console.

        Returns:
            Whether it fits without cutting words or figures.
        """
        columns = list(zip(self._kinds, self._table.columns, strict=True))
        whole = [max(map(cell_len, _lines(column)), default=0) for _, column in columns]
        available = width - _PADDING * (len(whole) - 1)
        if sum(whole) <= available:
            return True
        word = [_least_width(kind, column) for kind, column in columns]
        least = [
            max(size, min(wanted, _SHORTEST_TEXT)) if kind == "text" else size
            for kind, size, wanted in zip(self._kinds, word, whole, strict=True)
        ]
        sizes = [
            small if kind == "figure" else large
            for kind, small, large in zip(self._kinds, least, whole, strict=True)
        ]
        if not (_shrink(sizes, least, available) or _shrink(sizes, word, available)):
            return False
        for size, column in zip(sizes, self._table.columns, strict=True):
            column.width = size
        return True


def _lines(column: rich.table.Column) -> list[str]:
    """Returns heading and cells of a column, line by line."""
    return [part for cell in (column.header, *column.cells) for part in str(cell).split("\n")]


def _least_width(kind: str, column: rich.table.Column) -> int:
    """Returns the least width at which nothing is cut but names."""
    heading, *cells = _lines(column)
    if kind == "figure":
        # Headings of figures may take several lines.
        return max([*map(cell_len, heading.split()), *map(cell_len, cells)], default=0)
    if kind == "name":
        return min(max(map(cell_len, (heading, *cells))), _SHORTEST_NAME)
    words = (word for part in (heading, *cells) for word in part.split(" "))
    return max(map(cell_len, words), default=0)


def _shrink(sizes: list[int], least: Sequence[int], available: int) -> bool:
    """Shrinks the widest columns down to `least`; returns whether all fit then."""
    while sum(sizes) > available:
        place = max(range(len(sizes)), key=lambda at: (sizes[at] > least[at], sizes[at]))
        if sizes[place] <= least[place]:
            return False
        sizes[place] -= 1
    return True


def _print_trimmed(console: Console, content: RenderableType) -> None:
    """Prints without blanks at the ends of lines."""
    for segments in console.render_lines(content, pad=False):
        while segments and not segments[-1].text.strip(" "):
            segments.pop()
        if segments:
            last = segments[-1]
            segments[-1] = Segment(last.text.rstrip(" "), last.style, last.control)
        console.print(Segments([*segments, Segment.line()]), end="", crop=False)


def facts(console: Console, rows: Iterable[tuple[str, str]]) -> None:
    """Prints names and values, one pair a line; on a narrow console each value below its name."""
    pairs = list(rows)
    name_width = max((cell_len(name) for name, _ in pairs), default=0)
    word_width = max((cell_len(word) for _, value in pairs for word in value.split()), default=0)
    if name_width + _PADDING + min(word_width, _SHORTEST_TEXT) > console.width:
        for name, value in pairs:
            indent = len(name) - len(name.lstrip()) + _PADDING
            _print_trimmed(console, Text(name, style="bold", overflow="fold"))
            _print_trimmed(console, Padding(Text(value, overflow="fold"), (0, 0, 0, indent)))
        return
    table = rich.table.Table(box=None, show_header=False, pad_edge=False)
    table.add_column(style="bold", no_wrap=True)
    table.add_column(overflow="fold")
    for name, value in pairs:
        table.add_row(Text(name), Text(value))
    _print_trimmed(console, table)


# Numbers ----------------------------------------------------------------------------------------


def ms(seconds: float | None, digits: int = 3) -> str:
    """Formats a duration in milliseconds, without the unit."""
    return UNKNOWN if seconds is None else f"{1e3 * seconds:.{digits}f}"


def duration(seconds: float) -> str:
    """Formats a duration in milliseconds, from one second on in seconds."""
    return f"{seconds:.3f} s" if seconds >= 1 else f"{ms(seconds)} ms"


def interval(low_s: float, high_s: float) -> str:
    """Formats the two ends of an interval of durations."""
    return span(duration(low_s), duration(high_s))


def span(low: str, high: str) -> str:
    """Joins two quantities; a unit that both have is written once: `6.393–8.534 ms`."""
    number, _, unit = low.partition(" ")
    alike = unit and high.partition(" ")[2] == unit
    return f"{number}–{high}" if alike else f"{low} – {high}"


def gib(size_bytes: float) -> str:
    """Formats a size in GiB."""
    return f"{size_bytes / 2**30:.2f} GiB"


def size(size_bytes: float) -> str:
    """Formats a size in the largest binary unit below it."""
    for unit, power in (("GiB", 30), ("MiB", 20), ("KiB", 10)):
        if size_bytes >= 2**power:
            return f"{size_bytes / 2**power:.1f} {unit}"
    return f"{size_bytes:.0f} B"


def percent(share: float | None, digits: int = 1) -> str:
    """Formats a share."""
    return UNKNOWN if share is None else f"{100 * share:.{digits}f} %"


def probability(share: float) -> str:
    """Formats a probability; some hundred drawn times do not say more than whole percents."""
    if share >= 0.995:
        return "over 99 %"
    return "under 1 %" if share <= 0.005 else percent(share, 0)


def fit_text(fits: float) -> str:
    """Returns how likely the memory suffices; empty where that is certain or not known."""
    return f"fits with a probability of {probability(fits)}" if 0.0 < fits < 1.0 else ""


def signed_percent(share: float | None, digits: int = 1) -> str:
    """Formats a relative difference with its sign; beyond +200 % as a factor."""
    return UNKNOWN if share is None else _percent.signed_percent(share, digits)


def change(before: float, after: float) -> str:
    """Formats a relative change; empty where nothing changed or the change is not defined."""
    if before == after or before != before or after != after or before == 0:
        return ""
    return signed_percent(after / before - 1)


def heading(key: str) -> str:
    """Formats a key such as ``embedding_gib`` as people write it: ``embedding GiB``."""
    return " ".join(_WRITTEN.get(word, word) for word in key.split("_"))


def plural(count: int, noun: str) -> str:
    """Formats a count with its noun."""
    return f"{count:,} {noun}{'' if count == 1 else 's'}"


def rank_names(ranks: Sequence[int]) -> str:
    """Formats ranks, consecutive ones as first and last: ``0–3, 7``."""
    shown = rank_runs(ranks, "–")
    return ", ".join(shown[:_RANK_RUNS]) + (" …" if len(shown) > _RANK_RUNS else "")


def rank_runs(ranks: Iterable[int], to: str) -> list[str]:
    """Formats runs of consecutive ranks, in their order, as first and last with `to` between."""
    runs: list[list[int]] = []
    for rank in ranks:
        if runs and rank == runs[-1][-1] + 1:
            runs[-1].append(rank)
        else:
            runs.append([rank])
    return [str(run[0]) if len(run) == 1 else f"{run[0]}{to}{run[-1]}" for run in runs]
