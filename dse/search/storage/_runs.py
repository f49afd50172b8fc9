"""The runs of a shared study: in which order they came, and which of them are still there.

Every run is a trial of a second Optuna study beside the one of the configurations. Its number is
the order of joining. While it lives, it counts up a number there every few seconds. Others watch
that number by their own clocks, so neither the clocks of the machines nor that of the database
have to agree, and setting one of them changes nothing.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
import os
from pathlib import Path
import socket
import threading
import time
from typing import TYPE_CHECKING
import uuid

from dse.errors import DseError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from optuna.trial import FrozenTrial

    from dse.search.storage._database import StudyTables

#: Seconds between two signs of life.
BEAT_S = 10.0

#: Seconds without a sign of life after which others take over what a run was at.
LEASE_S = 60.0

_STREAM_KEY = "stream"
_PLACE_KEY = "place"
_PROCESS_KEY = "process"
_BEATS_KEY = "beats"
_TOKEN_KEY = "token"

#: Runs of this process that have not ended.
_LIVING: set[str] = set()


@dataclass(slots=True)
class _Watched:
    beats: int
    since_s: float


class Runs:
    """The runs of one study, this one among them.

    Args:
        tables: Their study.
        stream: Stream of random numbers of the sampler, to go on with that of an earlier run; None
            for a new one.

    Raises:
        StudyError: The database cannot be read or written.
    """

    def __init__(
        self,
        tables: StudyTables,
        stream: int | None,
    ) -> None:
        import optuna

        self._tables = tables
        self._watched: dict[int, _Watched] = {}
        self._streams: dict[int, int] = {}
        self._gone: set[int] = set()
        self._others_count = 0
        self._looked_s = -float("inf")
        self._token = uuid.uuid4().hex
        attributes: dict[str, str | int] = {
            _PLACE_KEY: _place(),
            _PROCESS_KEY: os.getpid(),
            _TOKEN_KEY: self._token,
            _BEATS_KEY: 0,
        }
        if stream is not None:
            attributes[_STREAM_KEY] = stream
        self._id = tables.create(
            optuna.create_trial(state=optuna.trial.TrialState.RUNNING, user_attrs=attributes)
        )
        self.number = next(
            trial.number for trial in tables.trials() if trial._trial_id == self._id
        )
        self.stream = self.number if stream is None else stream
        _LIVING.add(self._token)
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._beat, name="dse heartbeat", daemon=True)
        self._thread.start()

    @property
    def others_count(self) -> int:
        """Other runs that are there, as of the last look."""
        return self._others_count

    def of_stream(self, stream: int) -> frozenset[int]:
        """Returns the numbers of other runs that took a stream, as of the last look."""
        return frozenset(
            number
            for number, taken in self._streams.items()
            if taken == stream and number != self.number
        )

    def look(self, *, now: bool = False) -> None:
        """Looks which runs are there, unless that was done a moment ago.

        Args:
            now: Look in any case.
        """
        time_s = time.monotonic()
        if not now and time_s - self._looked_s < BEAT_S:
            return
        self._looked_s = time_s
        count = 0
        for trial in self._tables.trials():
            self._streams[trial.number] = int(trial.user_attrs.get(_STREAM_KEY, trial.number))
            if trial.number in self._gone or trial._trial_id == self._id:
                continue
            if self._is_gone(trial, time_s):
                self._gone.add(trial.number)
            else:
                count += 1
        self._others_count = count

    def is_gone(self, number: int) -> bool:
        """Returns whether a run has ended or died, as of the last look."""
        return number in self._gone

    def leave(self, finished_count: int) -> None:
        """Ends this run.

        Args:
            finished_count: Configurations that it evaluated.
        """
        import optuna

        self._stop.set()
        self._thread.join()
        _LIVING.discard(self._token)
        self._tables.finish(self._id, optuna.trial.TrialState.COMPLETE, [float(finished_count)])

    def _is_gone(self, trial: FrozenTrial, time_s: float) -> bool:
        if trial.state.is_finished():
            return True
        known = trial.user_attrs
        if known.get(_PLACE_KEY) == _place():
            process = int(known.get(_PROCESS_KEY, 0))
            if not _lives(process):
                return True
            if process == os.getpid() and known.get(_TOKEN_KEY) not in _LIVING:
                return True
        beats = int(trial.user_attrs.get(_BEATS_KEY, 0))
        watched = self._watched.get(trial.number)
        if watched is None or watched.beats != beats:
            self._watched[trial.number] = _Watched(beats, time_s)
            return False
        return time_s - watched.since_s > LEASE_S

    def _beat(self) -> None:
        for beats in _counting(self._stop, BEAT_S):
            try:
                self._tables.set_trial_attribute(self._id, _BEATS_KEY, beats)
            except DseError:
                # The run itself meets the same error and says so; until then the lease holds.
                continue
        self._tables.database.end_thread()


def _counting(stop: threading.Event, interval_s: float) -> Iterator[int]:
    beats = 0
    while not stop.wait(interval_s):
        beats += 1
        yield beats


@cache
def _place() -> str:
    """Returns what tells process numbers apart: the machine, and of containers the inner one."""
    try:
        namespace = os.readlink("/proc/self/ns/pid")
        boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
    except OSError:
        namespace = boot = ""
    return f"{socket.gethostname()} {boot} {namespace}".strip()


def _lives(process: int) -> bool:
    """Returns whether there is a process of that number here; true where that is not known."""
    if process <= 0 or os.name != "posix":
        return True
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except OSError:
        return True
    return True
