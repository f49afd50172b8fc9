"""Names of arguments in signatures, also with types that torch's parser does not know."""

from __future__ import annotations


def argument_names(schema: str) -> list[str]:
    """Returns the names of the arguments of `library::operator(Type name, …) -> …`, in order."""
    inside = schema.partition("(")[2].rpartition(") -> ")[0]
    words = [part.strip().partition("=")[0].split() for part in _outer(inside) if part.strip()]
    return [found[-1] for found in words if found and found != ["*"]]


def _outer(text: str) -> list[str]:
    """Splits at commas outside of brackets."""
    parts, depth, start = [], 0, 0
    for at, letter in enumerate(text):
        depth += (letter in "([") - (letter in ")]")
        if letter == "," and not depth:
            parts.append(text[start:at])
            start = at + 1
    return [*parts, text[start:]]
