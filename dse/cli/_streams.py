"""Standard streams that are closed, or whose encoding lacks characters."""

from __future__ import annotations

import codecs
import io
import os
import sys

_ERRORS = "dse.plain"

#: Number of standard error.
_LAST_STANDARD_HANDLE = 2

#: Signs of our own output, and what stands for them.
_PLAIN = {
    "×": "x",
    "−": "-",
    "–": "-",
    "…": "...",
    "→": "->",
    "↔": "<->",
    "·": "*",
    "µ": "u",
    "μ": "u",
    "±": "+-",
    "≤": "<=",
    "≥": ">=",
    "²": "^2",
    "½": "1/2",
    "█": "#",
}


def replace_closed_streams() -> None:
    """Opens the null device in place of standard streams that a shell has closed.

    Files would get their numbers, and what libraries write on standard error would end in them;
    and Python prints on standard output what is meant for a standard error that is not there.
    """
    while (handle := os.open(os.devnull, os.O_RDWR)) <= _LAST_STANDARD_HANDLE:
        pass
    os.close(handle)
    for handle, name in ((1, "stdout"), (2, "stderr")):
        if getattr(sys, name) is None:
            setattr(sys, name, os.fdopen(handle, "w", closefd=False))


def accept_any_encoding() -> None:
    """Makes standard output and standard error take every text, whatever their encoding is."""
    codecs.register_error(_ERRORS, _replaced)
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        # Tests and notebooks put others in their place, which take everything.
        if not isinstance(stream, io.TextIOWrapper):
            continue
        own = stream is getattr(sys, f"__{name}__")
        if own and isinstance(stream.buffer, io.RawIOBase):
            # `python -u` has no buffer: what a full disk does not take would be lost silently.
            buffer = io.BufferedWriter(stream.buffer)
            whole = io.TextIOWrapper(buffer, stream.encoding, _ERRORS, line_buffering=True)
            setattr(sys, name, whole)
        else:
            stream.reconfigure(errors=_ERRORS)


def _replaced(error: UnicodeError) -> tuple[str, int]:
    """Returns what to write in place of signs that an encoding lacks.

    What is not ours, such as the name of a table, is escaped: nothing of it is lost.
    """
    if not isinstance(error, UnicodeEncodeError):
        raise error
    signs = error.object[error.start : error.end]
    plain = (_PLAIN.get(s) or s.encode("ascii", "backslashreplace").decode() for s in signs)
    return "".join(plain), error.end
