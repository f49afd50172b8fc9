"""Agent of `dse trace capture` in the processes of a command: its request and its report."""

from __future__ import annotations

import atexit
from dataclasses import asdict, dataclass
import json
import os
from pathlib import Path

from dse._io.writing import write_atomically
from dse.errors import DseError
from dse.trace.capture._optimizers import OptimizerSteps
from dse.trace.capture._session import Session
from dse.trace.capture._settings import CaptureSettings

#: Environment variable that carries the request to all processes of a command.
VARIABLE = "DSE_CAPTURE"


@dataclass(frozen=True, slots=True)
class CaptureRequest:
    """What the processes of a command have to record.

    Attributes:
        directory: Folder of the traces.
        reports: Folder of the processes' reports.
        home: Folder from which this package can be imported.
        settings: What to record.
    """

    directory: Path
    reports: Path
    home: Path
    settings: CaptureSettings

    def to_json(self) -> str:
        """Returns the request as a line of text."""
        return json.dumps(asdict(self), default=str)

    @classmethod
    def from_json(cls, text: str) -> CaptureRequest:
        """Parses the text of :meth:`to_json`."""
        document = json.loads(text)
        settings = CaptureSettings(**document.pop("settings"))
        return cls(settings=settings, **{name: Path(path) for name, path in document.items()})


@dataclass(frozen=True, slots=True)
class ProcessReport:
    """Report of a process that imported torch.

    Attributes:
        process: Its id on its machine.
        optimizer_steps: Observed steps of its first optimizer.
        messages: Problems, for the user.
    """

    process: int
    optimizer_steps: int = 0
    messages: tuple[str, ...] = ()

    def write(self, folder: Path) -> None:
        """Writes the report, replacing an earlier one."""
        write_atomically(folder / f"{self.process}.json", json.dumps(asdict(self)))


def read_reports(folder: Path) -> tuple[ProcessReport, ...]:
    """Returns the reports of all processes, in order of process ids."""
    found = [json.loads(path.read_text(encoding="utf-8")) for path in folder.glob("[0-9]*.json")]
    reports = [ProcessReport(**{**item, "messages": tuple(item["messages"])}) for item in found]
    return tuple(sorted(reports, key=lambda report: report.process))


def begin(request: str) -> None:
    """Records this process from the first step of an optimizer on."""
    Agent(CaptureRequest.from_json(request))


class Agent:
    """Records a process that knows nothing about it, and never disturbs it.

    Args:
        request: What to record.
    """

    def __init__(self, request: CaptureRequest) -> None:
        self._request = request
        self._messages: list[str] = []
        self._steps = 0
        self._session: Session | None = None
        self._process = os.getpid()
        self._report()
        self._optimizers = OptimizerSteps(self._stepped)

    def _stepped(self) -> None:
        try:
            self._steps += 1
            if self._session is None:
                self._open()
            else:
                self._session.end_step()
                if self._session.finished:
                    self._finish()
        except Exception as error:
            self._optimizers.silence()
            self._session = None
            self._fail(error)
            self._report()

    def _open(self) -> None:
        self._process = os.getpid()
        atexit.register(self._finish)
        self._session = Session(
            self._request.directory,
            self._request.settings,
            rank=None,
            overwrite=False,
            warn=self._messages.append,
            ahead=1,
        )
        self._session.open()
        # Even if the process is killed, the report shows that it trained.
        self._report()

    def _finish(self) -> None:
        if self._session is None or os.getpid() != self._process:
            return
        session, self._session = self._session, None
        self._optimizers.silence()
        atexit.unregister(self._finish)
        try:
            session.close(failed=False)
        except Exception as error:
            self._fail(error)
        self._report()

    def _fail(self, error: Exception) -> None:
        known = isinstance(error, DseError)
        self._messages.append(str(error) if known else f"{type(error).__name__}: {error}")

    def _report(self) -> None:
        report = ProcessReport(os.getpid(), self._steps, tuple(self._messages))
        report.write(self._request.reports)
