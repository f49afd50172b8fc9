"""Files of measured rows: one JSON document a line, written whole or not at all."""

from __future__ import annotations

import json
import os
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path


def append(path: Path, row: Mapping[str, Any]) -> None:
    """Adds a row; it is on the disk when this returns."""
    with path.open("a", encoding="utf-8") as file:
        file.write(json.dumps(row) + "\n")
        file.flush()
        os.fsync(file.fileno())


def read_log(path: Path) -> list[dict[str, Any]]:
    """Returns the rows; a last one that was cut off is removed from the file."""
    if not path.is_file():
        return []
    text = path.read_text(encoding="utf-8")
    whole, newline, rest = text.rpartition("\n")
    if rest:
        path.write_text(whole + newline, encoding="utf-8")
    return [json.loads(line) for line in whole.splitlines() if line]
