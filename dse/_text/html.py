"""Small tables in HTML, by which objects show themselves in notebooks."""

from __future__ import annotations

from html import escape
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence


def fields_html(title: str, fields: Iterable[tuple[str, str]]) -> str:
    """Returns names and values below each other; values that are empty are left out.

    Args:
        title: What is shown.
        fields: Name and value of each line.
    """
    rows = "".join(
        f"<tr><th style='text-align:left'>{escape(name)}</th>"
        f"<td style='text-align:left'>{escape(value)}</td></tr>"
        for name, value in fields
        if value
    )
    return f"<table><caption>{escape(title)}</caption>{rows}</table>"


def grid_html(
    title: str,
    heads: Sequence[str],
    rows: Iterable[tuple[str, Sequence[str]]],
    note: str = "",
) -> str:
    """Returns named rows of small cells; cells with a text are coloured.

    Args:
        title: What is shown.
        heads: Heading of each column.
        rows: Name and cells of each row.
        note: What is said below it.
    """
    cell = "padding:1px 5px;text-align:center"
    head = "".join(f"<th style='{cell}'>{escape(text)}</th>" for text in heads)
    lines = "".join(
        f"<tr><th style='text-align:left'>{escape(name)}</th>"
        + "".join(
            f"<td style='{cell}{';background:#0b728555' if text else ''}'>{escape(text)}</td>"
            for text in cells
        )
        + "</tr>"
        for name, cells in rows
    )
    below = f"<p>{escape(note)}</p>" if note else ""
    top = f"<caption>{escape(title)}</caption><tr><th></th>{head}</tr>"
    return f"<table>{top}{lines}</table>{below}"


def rows_html(heads: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Returns rows of text under their headings.

    Args:
        heads: Heading of each column.
        rows: Cells of each row.
    """
    top = "".join(f"<th>{escape(text)}</th>" for text in heads)
    lines = "".join(
        "<tr>" + "".join(f"<td>{escape(text)}</td>" for text in cells) + "</tr>" for cells in rows
    )
    return f"<table><tr>{top}</tr>{lines}</table>"
