"""Evaluations that go wrong on purpose, in whichever process they run."""

from __future__ import annotations

from dataclasses import dataclass
import os
import signal
from typing import TYPE_CHECKING

from dse.search._proposals import Proposal
from dse.search._records import TrialStatus
from dse.search.evaluate._evaluator import EvaluationContext, Evaluator
from dse.search.evaluate._judge import without_answer

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from dse.workload import ParameterValue


@dataclass(frozen=True)
class Deadly(EvaluationContext):
    """Evaluations that say where they ran, and may kill their worker as memory running out does.

    Attributes:
        folder: Gains a file for each evaluation that was begun.
        lives: Evaluations that each deadly configuration survives not.
        start_fails: Whether workers cannot even start.
    """

    folder: Path
    lives: int = 0
    start_fails: bool = False

    def make_evaluator(self) -> DeadlyEvaluator:
        if self.start_fails:
            raise ModuleNotFoundError("No module named 'dse_plugin'")
        return DeadlyEvaluator(self)


class DeadlyEvaluator(Evaluator):
    def __init__(self, context: Deadly) -> None:
        super().__init__(context.space)
        self._context = context

    def reject(self, parameters: Mapping[str, ParameterValue]) -> str:
        return ""

    def _evaluate(self, number, parameters):
        begun = len(list(self._context.folder.glob(f"{number}-*")))
        (self._context.folder / f"{number}-{begun}").touch()
        if parameters["deadly"] and begun < self._context.lives:
            os.kill(os.getpid(), signal.SIGKILL)
        return without_answer(number, TrialStatus.INFEASIBLE, str(os.getpid()), parameters)


def asked(count, deadly=()):
    return [Proposal(number, (("deadly", number in deadly),)) for number in range(count)]


def begun(folder):
    """How often each number was begun."""
    counts: dict[int, int] = {}
    for path in folder.iterdir():
        number = int(path.name.split("-")[0])
        counts[number] = counts.get(number, 0) + 1
    return counts


@dataclass(frozen=True)
class Raising(EvaluationContext):
    """Evaluations that raise what the parameter `raises` names."""

    def make_evaluator(self) -> RaisingEvaluator:
        return RaisingEvaluator(self.space)


class RaisingEvaluator(Evaluator):
    def reject(self, parameters: Mapping[str, ParameterValue]) -> str:
        if parameters["raises"] == "reject":
            raise KeyError("no such key")
        return ""

    def _evaluate(self, number, parameters):
        match parameters["raises"]:
            case "division":
                return 1 // 0
            case "array":
                import numpy as np

                return np.zeros(2) + np.zeros(3)
            case "memory":
                raise MemoryError
            case "recursion":
                return self._evaluate(number, parameters)
            case "unpicklable":
                raise UnpicklableError(lambda: None)
        return without_answer(number, TrialStatus.INFEASIBLE, "as it should be", parameters)


class UnpicklableError(Exception):
    """What no process could send to another."""
