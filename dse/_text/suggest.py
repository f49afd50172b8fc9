"""Suggestions of near names: `did you mean …?`."""

from __future__ import annotations

from difflib import get_close_matches
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable


def nearest(word: str, names: Iterable[str]) -> str | None:
    """Returns the name that `word` was probably meant to be, or None.

    Spelling decides first; otherwise the only name that contains the word is taken.
    """
    offered = list(names)
    near = get_close_matches(word, offered, n=1)
    if near:
        return near[0]
    containing = [name for name in offered if word and word in name]
    return containing[0] if len(containing) == 1 else None


def hint(word: str, names: Iterable[str]) -> str:
    """Returns a half sentence: the probable name, or what there is."""
    offered = list(names)
    near = nearest(word, offered)
    return f"did you mean `{near}`?" if near else f"there are {', '.join(offered)}"
