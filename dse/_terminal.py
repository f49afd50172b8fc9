"""Text from files on a terminal: shown, never obeyed.

Names of kernels, tables or studies come from files of others. A terminal would take control
characters in them for orders (colours, a new title, a moved cursor) and let text run backwards.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import rich.console
from rich.segment import Segment

if TYPE_CHECKING:
    from collections.abc import Iterable

_UNSEEN = "\N{REPLACEMENT CHARACTER}"
#: Signs for C0 and DEL; C1, changes of direction and separators of lines have none.
_SIGNS = {
    **{code: chr(0x2400 + code) for code in range(32) if chr(code) not in "\n\t"},
    127: "\N{SYMBOL FOR DELETE}",
    **dict.fromkeys(range(0x80, 0xA0), _UNSEEN),
    **dict.fromkeys((0x61C, 0x200E, 0x200F, 0x2028, 0x2029), _UNSEEN),
    **dict.fromkeys(range(0x202A, 0x202F), _UNSEEN),
    **dict.fromkeys(range(0x2066, 0x206A), _UNSEEN),
    **dict.fromkeys(range(0xD800, 0xE000), _UNSEEN),
}


def visible(text: str) -> str:
    """Returns text in which signs stand for everything that a terminal would act on.

    Line ends and tabulators stay.
    """
    return text.translate(_SIGNS)


class Console(rich.console.Console):
    """A console of Rich that takes text as it is, and writes signs for its control characters.

    Args:
        **options: Those of Rich's own console.
    """

    def __init__(self, **options: Any) -> None:
        # Names are no markup; what is styled says so by a `Text` or a `style`.
        super().__init__(**{"markup": False, "emoji": False, **options})
        self.push_render_hook(_Visible())


class _Visible(rich.console.RenderHook):
    """Puts every renderable behind :func:`visible`; what Rich itself adds comes after it."""

    def process_renderables(
        self, renderables: list[rich.console.ConsoleRenderable]
    ) -> list[rich.console.ConsoleRenderable]:
        """Wraps what is about to be printed."""
        return [_Shown(one) for one in renderables]


class _Shown:
    """A renderable whose text is made visible."""

    def __init__(self, renderable: rich.console.ConsoleRenderable) -> None:
        self._renderable = renderable

    def __rich_console__(
        self, console: rich.console.Console, options: rich.console.ConsoleOptions
    ) -> Iterable[Segment]:
        for segment in console.render(self._renderable, options):
            if segment.control:
                yield segment
            else:
                yield Segment(visible(segment.text), segment.style)
