"""Terminal output without control characters.

Names of kernels, tables or studies come from untrusted files. Control characters in them could
change colours, the title, the cursor or the direction of text.
"""

from __future__ import annotations

import errno
import os
from typing import TYPE_CHECKING, Any

import rich.console
from rich.segment import Segment

if TYPE_CHECKING:
    from collections.abc import Iterable

#: Columns of the narrowest terminal that is printed for, and those where none is known.
_NARROWEST = 20
_USUAL = 80

_HIDDEN = "\N{REPLACEMENT CHARACTER}"
#: Symbols for C0 and DEL; C1, bidirectional controls and line separators have none.
_SYMBOLS = {
    **{code: chr(0x2400 + code) for code in range(32) if chr(code) not in "\n\t"},
    127: "\N{SYMBOL FOR DELETE}",
    **dict.fromkeys(range(0x80, 0xA0), _HIDDEN),
    **dict.fromkeys((0x61C, 0x200E, 0x200F, 0x2028, 0x2029), _HIDDEN),
    **dict.fromkeys(range(0x202A, 0x202F), _HIDDEN),
    **dict.fromkeys(range(0x2066, 0x206A), _HIDDEN),
    **dict.fromkeys(range(0xD800, 0xE000), _HIDDEN),
}


def visible(text: str) -> str:
    """Replaces control characters by visible symbols; keeps newlines and tabs."""
    return text.translate(_SYMBOLS)


class Console(rich.console.Console):
    """A Rich console without markup that makes control characters visible.

    Empty lines before everything else are left out, so that a table with a title may come first.

    Args:
        **options: Options of :class:`rich.console.Console`.
    """

    _has_printed = False

    def print(self, *objects: Any, **options: Any) -> None:
        """Prints like Rich."""
        if objects or self._has_printed:
            self._has_printed = True
            super().print(*objects, **options)

    def __init__(self, **options: Any) -> None:
        # Names must not be parsed as markup; styled text uses `Text` or `style`.
        super().__init__(**{"markup": False, "emoji": False, **options})
        if self.width < _NARROWEST:
            # Nothing can be read on less, and nothing is printed on none: `COLUMNS=0`, which
            # editors and remote shells set where they do not know the width.
            self.width = _NARROWEST if self.width else _USUAL
        self.push_render_hook(_Visible())

    def on_broken_pipe(self) -> None:
        """Raises what the system said; Rich would end with the exit code of a failed command."""
        raise BrokenPipeError(errno.EPIPE, os.strerror(errno.EPIPE))


class _Visible(rich.console.RenderHook):
    """Applies :func:`visible` to every renderable, before Rich adds its own control codes."""

    def process_renderables(
        self, renderables: list[rich.console.ConsoleRenderable]
    ) -> list[rich.console.ConsoleRenderable]:
        """Wraps the renderables."""
        return [_Shown(renderable) for renderable in renderables]


class _Shown:
    """A renderable with visible control characters."""

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
