"""Files of a capture: their names, and `rank<r>.capture.json` with how they were made."""

from __future__ import annotations

from dataclasses import asdict, dataclass
import json
from typing import TYPE_CHECKING

from dse._io.reading import load_json, read_bytes
from dse._io.writing import write_atomically
from dse.errors import ConfigError
from dse.trace.capture._settings import CaptureSettings  # noqa: TC001 - records are checked by it

if TYPE_CHECKING:
    from pathlib import Path

_VERSION = 1
#: Ending of the records.
_RECORDS = ".capture.json"
#: If profiled and other iterations differ by more, a trace says little about the others.
_OVERHEAD = 0.1


@dataclass(frozen=True, slots=True)
class CapturedFile:
    """A file of a rank.

    Attributes:
        name: Name in the folder of the capture.
        size_bytes: Compressed size.
        sha256: Digest of the compressed bytes.
    """

    name: str
    size_bytes: int
    sha256: str


@dataclass(frozen=True, slots=True)
class CaptureRecord:
    """How the traces of a rank were made.

    Attributes:
        rank: Global rank.
        world_size: Ranks of the job; 0 if unknown.
        backend: Backend of the default process group; empty without one.
        host: Name of the machine.
        device: Name of the GPU, or `cpu`.
        dse: Version of this package.
        python: Version of Python.
        torch: Version of torch.
        cuda: Version of CUDA that torch was built with; empty without.
        settings: Settings of the capture.
        counted_by: What counted iterations: `step`, `steps` or `optimizer`.
        steps: Numbers of the iterations that were recorded completely.
        complete: Whether all requested iterations were recorded.
        step_s_profiled: Mean time of a recorded iteration in seconds.
        step_s_unprofiled: Mean time of an iteration without the profiler in seconds.
        files: Files of the rank, the Kineto trace first.
    """

    rank: int
    world_size: int
    backend: str
    host: str
    device: str
    dse: str
    python: str
    torch: str
    cuda: str
    settings: CaptureSettings
    counted_by: str
    steps: tuple[int, ...]
    complete: bool
    step_s_profiled: float | None
    step_s_unprofiled: float | None
    files: tuple[CapturedFile, ...]

    @property
    def overhead(self) -> float | None:
        """Slowdown of a recorded iteration, as a fraction; None if unknown."""
        if self.step_s_profiled is None or not self.step_s_unprofiled:
            return None
        return self.step_s_profiled / self.step_s_unprofiled - 1

    @property
    def distorted(self) -> bool:
        """Whether the profiler changed the time of iterations so much that others differ."""
        return self.overhead is not None and abs(self.overhead) > _OVERHEAD


def kineto_name(rank: int) -> str:
    """Returns the name of a rank's Kineto trace."""
    return f"rank{rank}.pt.trace.json.gz"


def execution_trace_name(rank: int) -> str:
    """Returns the name of a rank's execution trace."""
    return f"rank{rank}.et.json.gz"


def record_name(rank: int) -> str:
    """Returns the name of a rank's record."""
    return f"rank{rank}{_RECORDS}"


def write_record(directory: Path, record: CaptureRecord) -> None:
    """Writes the record of a rank.

    Raises:
        StudyError: The folder cannot be written.
    """
    document = {"schema_version": _VERSION, **asdict(record)}
    text = json.dumps(document, indent=1, ensure_ascii=False)
    write_atomically(directory / record_name(record.rank), text + "\n")


def read_records(source: Path) -> tuple[CaptureRecord, ...]:
    """Reads the records of a capture, if it has any.

    Args:
        source: Its folder, or an archive of it.

    Returns:
        The records in order of their ranks.

    Raises:
        ConfigError: A record cannot be read.
    """
    if source.is_file():
        # Training loops that are captured do without the readers of traces.
        from dse.trace.read import documents, file_names

        if not any(name.endswith(_RECORDS) for name in file_names(source)):
            return ()
        found = [_record(name, bytes(text)) for name, text in documents(source, (), (_RECORDS,))]
    else:
        paths = source.glob(record_name(0).replace("0", "*"))
        found = [_record(str(path), read_bytes(path)) for path in paths]
    return tuple(sorted(found, key=lambda record: record.rank))


def _record(path: str, content: bytes) -> CaptureRecord:
    from dse.config import checked_record

    try:
        document = load_json(content)
        if not isinstance(document, dict):
            raise ValueError("expected an object")  # noqa: TRY004, TRY301 - reported like others
        if document.pop("schema_version", None) != _VERSION:
            raise ConfigError(f"{path}: expected schema_version {_VERSION}; capture again")
        record = checked_record(CaptureRecord, document)
        if min(record.step_s_profiled or 0.0, record.step_s_unprofiled or 0.0) < 0:
            raise ValueError("a negative time")  # noqa: TRY301 - reported like others
    except ValueError as error:
        raise ConfigError(
            f"{path}: not the record of a capture ({error}); capture again"
        ) from error
    return record
