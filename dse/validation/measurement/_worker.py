"""Worker of a training rank, and its commands: build, run, train, collect and drop."""

from __future__ import annotations

from dataclasses import dataclass
import gc
import time
from typing import TYPE_CHECKING, Any

from dse._torch import load_torch
from dse.calibration.microbench import keep_freed_memory
from dse.launch import RankContext

if TYPE_CHECKING:
    from dse.validation._protocol import (
        AloneTrainer,
        RunCandidate,
        Trainer,
        TrainerRank,
        WeightPiece,
    )
    from dse.validation._types import TrainerOptions


@dataclass(frozen=True, slots=True)
class Build:
    """Builds weights and batches of a candidate, unless they are there."""

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
        loss: Loss of the last iteration, read after its end.
    """

    start_s: float
    end_s: float
    processor_s: float
    loss: float

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
    """Replies with the :class:`WeightPiece` of this rank; none where the trainer has none."""

    number: int


@dataclass(frozen=True, slots=True)
class Drop:
    """Frees a candidate."""

    number: int


class TrainingWorker:
    """Worker of a rank: holds what trains on it and executes commands.

    Args:
        trainer: What trains the candidates.
        candidates: Checked candidates, referred to by their index.
        options: Seed, learning rates, batches.
        context: This rank.
    """

    def __init__(
        self,
        trainer: Trainer[Any],
        candidates: tuple[RunCandidate, ...],
        options: TrainerOptions,
        context: RankContext,
    ) -> None:
        self._torch = load_torch()
        self._trainer = trainer
        self._candidates, self._options, self._context = candidates, options, context
        self._built: dict[int, TrainerRank] = {}
        if context.device == "cpu":
            keep_freed_memory()

    def __call__(self, command: object) -> object:
        """Executes a command and returns the reply.

        Raises:
            TypeError: The command is unknown.
        """
        if isinstance(command, Build):
            if not self._built:
                # So that collections do not visit all that torch has imported.
                gc.freeze()
            if command.number not in self._built:
                self._built[command.number] = self._build(command)
            return None
        if isinstance(command, Run):
            return self._run(self._built[command.number], command)
        if isinstance(command, Train):
            rank = self._built[command.number]
            return [float(rank.step()) for _ in range(command.steps)]
        if isinstance(command, Collect):
            return self._weights(command.number)
        if isinstance(command, Drop):
            if (old := self._built.pop(command.number, None)) is not None:
                old.close()
            del old
            gc.collect()
            return None
        raise TypeError(f"rank {self._context.rank} received the unknown command {command!r}")

    def _build(self, command: Build) -> TrainerRank:
        candidate = self._candidates[command.number]
        return self._trainer.rank(candidate, self._options, self._context)

    def _weights(self, number: int) -> list[WeightPiece]:
        return list(self._built[number].weights()) if self._trainer.collects else []

    def _run(self, rank: TrainerRank, command: Run) -> Span:
        for _ in range(command.warm_up):
            rank.step()
        gc.collect()
        gc.disable()
        try:
            self._synchronize()
            if self._context.world_size > 1:
                self._torch.distributed.barrier()
            start_s, processor_s = time.perf_counter(), time.process_time()
            for _ in range(command.iterations):
                loss = rank.step()
            self._synchronize()
            end_s, processor_s = time.perf_counter(), time.process_time() - processor_s
            return Span(start_s, end_s, processor_s, float(loss))
        finally:
            gc.enable()

    def _synchronize(self) -> None:
        if self._context.device != "cpu":
            self._torch.cuda.synchronize()


@dataclass(frozen=True, slots=True)
class BuildRank(Build):
    """Builds one rank of a candidate, without the others."""

    rank: int


class AloneWorker(TrainingWorker):
    """Worker of the single process that runs all ranks in turn."""

    #: Number of the latest candidate and what its ranks receive.
    _received: tuple[int, object] = (-1, None)

    _trainer: AloneTrainer[Any]

    def __call__(self, command: object) -> object:
        if isinstance(command, BuildRank):
            super().__call__(Drop(command.number))
        return super().__call__(command)

    def _build(self, command: Build) -> TrainerRank:
        candidate = self._candidates[command.number]
        if not isinstance(command, BuildRank) or candidate.world_size == 1:
            return super()._build(command)
        if self._received[0] != command.number:
            self._received = command.number, self._trainer.received(candidate, self._options)
        context = RankContext(command.rank, candidate.world_size, self._context.device)
        return self._trainer.rank_alone(candidate, self._options, context, self._received[1])
