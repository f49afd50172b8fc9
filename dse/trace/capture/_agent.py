"""The side of `dse trace capture` that lives in the command's processes."""

from __future__ import annotations

import atexit
import os

from dse.errors import DseError
from dse.trace.capture._optimizers import OptimizerSteps
from dse.trace.capture._orders import Note, Orders
from dse.trace.capture._session import Session


def begin(orders: str) -> None:
    """Records this process from the first step of an optimizer on."""
    Agent(Orders.from_json(orders))


class Agent:
    """Records a process whose code knows nothing of it, and never stands in its way.

    Args:
        orders: What to record, and where to.
    """

    def __init__(self, orders: Orders) -> None:
        self._orders = orders
        self._messages: list[str] = []
        self._steps = 0
        self._session: Session | None = None
        self._process = os.getpid()
        self._note()
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
            self._stand_down(error)

    def _open(self) -> None:
        self._process = os.getpid()
        atexit.register(self._finish)
        self._session = Session(
            self._orders.directory,
            self._orders.settings,
            rank=None,
            overwrite=False,
            warn=self._messages.append,
            ahead=1,
        )
        self._session.open()
        # A process that is killed has at least said that it trains.
        self._note()

    def _finish(self) -> None:
        if self._session is None or os.getpid() != self._process:
            return
        session, self._session = self._session, None
        self._optimizers.silence()
        atexit.unregister(self._finish)
        try:
            session.close(failed=False)
        except Exception as error:
            self._messages.append(_in_words(error))
        self._note()

    def _stand_down(self, error: Exception) -> None:
        self._optimizers.silence()
        self._session = None
        self._messages.append(_in_words(error))
        self._note()

    def _note(self) -> None:
        Note(os.getpid(), self._steps, tuple(self._messages)).write(self._orders.notes)


def _in_words(error: Exception) -> str:
    return str(error) if isinstance(error, DseError) else f"{type(error).__name__}: {error}"
