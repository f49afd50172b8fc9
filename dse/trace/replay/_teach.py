"""Files of a user that teach operators."""

from __future__ import annotations

import runpy
from typing import TYPE_CHECKING

from dse.errors import ConfigError, DseError

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

_taught: set[Path] = set()


def load_operators(files: Sequence[Path]) -> None:
    """Runs Python files that call `register_operator`, each once in a process.

    Args:
        files: Files that the user named; a trace cannot name any.

    Raises:
        ConfigError: A file is not there, or fails.
    """
    for file in files:
        place = file.resolve()
        if place in _taught:
            continue
        if not place.is_file():
            raise ConfigError(f"{file}: no such file of operators")
        try:
            runpy.run_path(str(place))
        except DseError:
            raise
        except Exception as error:
            raise ConfigError(f"{file}: {type(error).__name__}: {error}") from error
        _taught.add(place)
