"""Worker of a training rank, and its commands: build, run, train, collect and drop."""

from __future__ import annotations

from dataclasses import dataclass
import gc
import time
from typing import TYPE_CHECKING, Any

from dse._torch import load_torch
from dse.calibration.microbench import keep_freed_memory
from dse.validation.trainer._trainer import Trainer

if TYPE_CHECKING:
    from dse.launch import RankContext, Worker
    from dse.validation._types import Candidate, TrainerOptions


@dataclass(frozen=True, slots=True)
class Build:
    """Builds tables, network and batches of a candidate."""

    number: int


@dataclass(frozen=True, slots=True)
class Run:
    """Runs iterations; the reply is a :class:`Span`."""

    number: int
    warm_up: int
    iterations: int


@dataclass(frozen=True, slots=True)
class Span:
    """Time span in which a rank ran.

    Attributes:
        start_s: Start of the first iteration, on the clock shared by all processes of a machine.
        end_s: End of the last iteration.
        processor_s: Processor time of all threads of the process in between.
    """

    start_s: float
    end_s: float
    processor_s: float

    @property
    def duration_s(self) -> float:
        """Wall-clock time."""
        return self.end_s - self.start_s


@dataclass(frozen=True, slots=True)
class Train:
    """Trains steps; the reply is the losses of this rank's samples."""

    number: int
    steps: int


@dataclass(frozen=True, slots=True)
class Collect:
    """Replies with the weights of this rank: shards of tables and dense parameters."""

    number: int


@dataclass(frozen=True, slots=True)
class Drop:
    """Frees a candidate."""

    number: int


def training_worker(
    candidates: tuple[Candidate, ...], options: TrainerOptions, context: RankContext
) -> Worker:
    """Creates the worker of a rank.

    Args:
        candidates: Checked candidates, referred to by their index.
        options: Seed, learning rates, batches.
        context: This rank.
    """
    return TrainingWorker(candidates, options, context).execute


class TrainingWorker:
    """Holds the trainers of a rank and executes commands.

    Args:
        candidates: Checked candidates, referred to by their index.
        options: Seed, learning rates, batches.
        context: This rank.
    """

    def __init__(
        self, candidates: tuple[Candidate, ...], options: TrainerOptions, context: RankContext
    ) -> None:
        self._torch = load_torch()
        self._candidates, self._options, self._context = candidates, options, context
        self._trainers: dict[int, Trainer] = {}
        if context.device == "cpu":
            keep_freed_memory()

    def execute(self, command: object) -> object:
        """Executes a command and returns the reply.

        Raises:
            TypeError: The command is unknown.
        """
        if isinstance(command, Build):
            if command.number not in self._trainers:
                candidate = self._candidates[command.number]
                self._trainers[command.number] = Trainer(
                    self._torch, candidate, self._options, self._context
                )
            return None
        if isinstance(command, Run):
            return self._run(self._trainers[command.number], command)
        if isinstance(command, Train):
            trainer = self._trainers[command.number]
            return [float(trainer.step()) for _ in range(command.steps)]
        if isinstance(command, Collect):
            return self._collect(self._trainers[command.number])
        if isinstance(command, Drop):
            self._trainers.pop(command.number, None)
            gc.collect()
            return None
        raise TypeError(f"rank {self._context.rank} received the unknown command {command!r}")

    def _run(self, trainer: Trainer, command: Run) -> Span:
        for _ in range(command.warm_up):
            trainer.step()
        gc.collect()
        gc.disable()
        try:
            self._synchronize()
            if self._context.world_size > 1:
                self._torch.distributed.barrier()
            start_s, processor_s = time.perf_counter(), time.process_time()
            for _ in range(command.iterations):
                trainer.step()
            self._synchronize()
            return Span(start_s, time.perf_counter(), time.process_time() - processor_s)
        finally:
            gc.enable()

    def _synchronize(self) -> None:
        if self._context.device != "cpu":
            self._torch.cuda.synchronize()

    def _collect(self, trainer: Trainer) -> tuple[list[tuple[int, int, int, Any]], list[Any]]:
        def array(tensor: Any) -> Any:
            return tensor.detach().to("cpu", self._torch.float64).numpy()

        pieces = [(*place, array(weights)) for *place, weights in trainer.pieces()]
        # Dense parameters are the same everywhere.
        dense = [] if self._context.rank else [array(one) for one in trainer.parameters]
        return pieces, dense
