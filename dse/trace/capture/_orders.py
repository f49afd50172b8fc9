"""What a command's processes are told, and what they answer."""

from __future__ import annotations

from dataclasses import asdict, dataclass
import json
from pathlib import Path

from dse._files import write_atomically
from dse.trace.capture._settings import CaptureSettings

#: Variable that carries the orders to all processes of a command.
VARIABLE = "DSE_CAPTURE"


@dataclass(frozen=True, slots=True)
class Orders:
    """What a command's processes are told.

    Attributes:
        directory: Folder of the traces.
        notes: Folder of the answers.
        home: Folder that this package can be imported from.
        settings: What is recorded.
    """

    directory: Path
    notes: Path
    home: Path
    settings: CaptureSettings

    def to_json(self) -> str:
        """Returns the orders as a line of text."""
        places = {name: str(getattr(self, name)) for name in ("directory", "notes", "home")}
        return json.dumps({**places, "settings": asdict(self.settings)})

    @classmethod
    def from_json(cls, text: str) -> Orders:
        """Reads what :meth:`to_json` wrote."""
        document = json.loads(text)
        return cls(
            Path(document["directory"]),
            Path(document["notes"]),
            Path(document["home"]),
            CaptureSettings(**document["settings"]),
        )


@dataclass(frozen=True, slots=True)
class Note:
    """What a process that imported torch answers.

    Attributes:
        process: Its number on its machine.
        optimizer_steps: Steps of its first optimizer that were seen.
        messages: What the user must know.
    """

    process: int
    optimizer_steps: int = 0
    messages: tuple[str, ...] = ()

    def write(self, folder: Path) -> None:
        """Writes the answer, or replaces it."""
        write_atomically(folder / f"{self.process}.json", json.dumps(asdict(self)))


def read_notes(folder: Path) -> tuple[Note, ...]:
    """Returns the answers of all processes."""
    found = [json.loads(path.read_text(encoding="utf-8")) for path in folder.glob("[0-9]*.json")]
    notes = [
        Note(item["process"], item["optimizer_steps"], tuple(item["messages"])) for item in found
    ]
    return tuple(sorted(notes, key=lambda note: note.process))
