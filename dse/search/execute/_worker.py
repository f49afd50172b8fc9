"""Worker side of an executor: evaluates chunks and returns their records.

`worker_main` runs in the processes that `_process` starts.
"""

from __future__ import annotations

from dataclasses import dataclass
from importlib import import_module
from multiprocessing.reduction import ForkingPickler
import signal
import time
from typing import TYPE_CHECKING

from dse._process.memory import collect_rarely
from dse._process.starting import end_with_starter

if TYPE_CHECKING:
    from collections.abc import Sequence
    from multiprocessing.connection import Connection

    from dse.search._proposals import Proposal
    from dse.search._records import TrialRecord
    from dse.search.evaluate._evaluator import EvaluationContext, Evaluator


@dataclass(frozen=True, slots=True)
class Listening:
    """A process runs and waits for what evaluations need."""


@dataclass(frozen=True, slots=True)
class Started:
    """A worker is there, or could not be made.

    Attributes:
        problem: Why not; empty when it is.
    """

    problem: str = ""


@dataclass(frozen=True, slots=True)
class Answer:
    """What evaluating a chunk brought, and how long it took."""

    records: tuple[TrialRecord, ...]
    duration_s: float


def ready_evaluator(context: EvaluationContext) -> Evaluator:
    """Returns the evaluator of a process that does nothing else, with all that it imports."""
    for name in context.preloaded:
        import_module(name)
    evaluator = context.make_evaluator()
    collect_rarely()
    return evaluator


def evaluate_chunk(evaluator: Evaluator, chunk: Sequence[Proposal]) -> Answer:
    """Evaluates a chunk."""
    start = time.perf_counter()
    records = tuple(evaluator.answer(proposal) for proposal in chunk)
    return Answer(records, time.perf_counter() - start)


def worker_main(pipe: Connection) -> None:
    """Answers chunks until the pipe is closed.

    What evaluations need besides the parameters comes through the pipe too. If it were an argument
    of the process, and the process died before it had read all of it, the starter would wait
    forever.

    Args:
        pipe: To the starter. The first answer says that the worker listens, the second that it
            is there.
    """
    _leave_signals_to_the_starter()
    end_with_starter()
    try:
        pipe.send(Listening())
        content = pipe.recv_bytes()
        try:
            context: EvaluationContext = ForkingPickler.loads(content)
            evaluator = ready_evaluator(context)
        except Exception as error:  # whatever it is, the starter must know
            pipe.send(Started(f"{type(error).__name__}: {error}"))
            return
        pipe.send(Started())
        while True:
            pipe.send(evaluate_chunk(evaluator, pipe.recv()))
    except (EOFError, OSError):
        return  # The starter has closed its end, or is gone.


def _leave_signals_to_the_starter() -> None:
    """Ctrl-C reaches the whole process group; only the starter reacts to it."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    # Held back while the process started.
    if hasattr(signal, "pthread_sigmask"):
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT, signal.SIGTERM})
