"""Static SVG for pages: pictures of labelled panels with ticks, lines and markers, in pixels."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

#: Colours of lines that say something, of words beside axes, of grids and of frames.
INK, FAINT, GRID, FRAME = "#1a1d21", "#5b6470", "#d9dee4", "#9aa5b1"

_FONT = "system-ui, -apple-system, 'Segoe UI', Roboto, Helvetica, Arial, sans-serif"


def element(name: str, *content: str, **attributes: object) -> str:
    """Returns an element with its attributes in their order.

    Args:
        name: Of the element.
        content: What is in it, as SVG.
        attributes: Their names, with `_` for `-`.
    """
    given = "".join(f' {key.replace("_", "-")}="{value}"' for key, value in attributes.items())
    inside = "".join(content)
    return f"<{name}{given}>{inside}</{name}>" if content else f"<{name}{given}/>"


def text(words: str, **attributes: object) -> str:
    """Returns words, whatever characters they have."""
    return element("text", escaped(words), **attributes)


def path(steps: str, **attributes: object) -> str:
    """Returns a line, or an area."""
    return element("path", d=steps, **attributes)


def titled(words: str, parts: Iterable[str], **attributes: object) -> str:
    """Returns parts that show words when a pointer is over them."""
    title = element("title", escaped(words))
    return element("g", title, "\n", "\n".join(parts), **attributes)


def below(words: str, x_px: float, y_px: float) -> str:
    """Returns the label of a tick of the axis across."""
    return text(words, x=x_px, y=y_px, text_anchor="middle", fill=FAINT)


def left(words: str, x_px: float, y_px: float) -> str:
    """Returns the label of a tick of the axis upwards, whose height is that of the tick."""
    return text(words, x=x_px, y=y_px + 4, text_anchor="end", fill=FAINT)


def upwards(words: str, x_px: float, y_px: float) -> str:
    """Returns the name of the axis upwards."""
    place = f"translate({x_px} {y_px}) rotate(-90)"
    return text(words, transform=place, text_anchor="middle")


def panel(x_px: float, y_px: float, parts: Iterable[str]) -> str:
    """Returns parts whose pixels count from a corner of their own."""
    inside = "".join(f"{part}\n" for part in parts)
    return element("g", "\n", inside, transform=f"translate({x_px} {y_px})")


def frame(width: float, height: float) -> str:
    """Returns the border of a panel."""
    return element("rect", width=width, height=height, fill="none", stroke=FRAME)


def picture(title: str, size: tuple[float, float], parts: Iterable[str], font_px: int = 12) -> str:
    """Returns a picture on white.

    Args:
        title: For readers that cannot see it.
        size: Its width and height.
        parts: What is on it.
        font_px: Height of words that state none.
    """
    width, height = size
    head = {"xmlns": "http://www.w3.org/2000/svg", "viewBox": f"0 0 {width} {height}"}
    paper = [element("title", escaped(title))]
    paper.append(element("rect", width=width, height=height, fill="#ffffff"))
    inside = "".join(f"{part}\n" for part in (*paper, *parts))
    named = {"width": width, "height": height, "font_family": _FONT, "font_size": font_px}
    return element("svg", "\n", inside, **head, **named, fill=INK)


def escaped(words: str) -> str:
    """Returns words that nothing in SVG takes for its own."""
    from markupsafe import escape

    return str(escape(words))
