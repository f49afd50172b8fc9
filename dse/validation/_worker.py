"""What a rank of a run is asked: to build a candidate, to run it, to train it, to forget it."""

from __future__ import annotations

from dataclasses import dataclass
import gc
import time
from typing import TYPE_CHECKING, Any

from dse.calibration.microbench import keep_freed_memory
from dse.launch import load_torch
from dse.validation._trainer import Trainer

if TYPE_CHECKING:
    from dse.launch import RankContext, Worker
    from dse.validation._types import Candidate, TrainerOptions


@dataclass(frozen=True, slots=True)
class Build:
    """Makes tables, network and batches of a candidate."""

    number: int


@dataclass(frozen=True, slots=True)
class Run:
    """Runs iterations; the answer is a :class:`Span`."""

    number: int
    warm_up: int
    iterations: int


@dataclass(frozen=True, slots=True)
class Span:
    """When a rank ran.

    Attributes:
        start_s: Begin of the first iteration, on the clock that the processes of a machine share.
        end_s: End of the last one.
        processor_s: Processor time of all threads of the process in between.
    """

    start_s: float
    end_s: float
    processor_s: float


@dataclass(frozen=True, slots=True)
class Train:
    """Trains some steps; the answer is the losses of this rank's samples."""

    number: int
    steps: int


@dataclass(frozen=True, slots=True)
class Collect:
    """The answer is the weights of this rank: pieces of tables, and the dense parameters."""

    number: int


@dataclass(frozen=True, slots=True)
class Drop:
    """Forgets a candidate."""

    number: int


def training_worker(
    candidates: tuple[Candidate, ...], options: TrainerOptions, context: RankContext
) -> Worker:
    """Returns what answers a rank's orders.

    Args:
        candidates: What may be run; checked.
        options: Seed, learning rates, batches.
        context: Which rank this is.
    """
    return TrainingWorker(candidates, options, context).answer


class TrainingWorker:
    """Keeps the trainers of a rank and answers orders.

    Args:
        candidates: What may be run; checked.
        options: Seed, learning rates, batches.
        context: Which rank this is.
    """

    def __init__(
        self, candidates: tuple[Candidate, ...], options: TrainerOptions, context: RankContext
    ) -> None:
        self._torch = load_torch()
        self._candidates, self._options, self._context = candidates, options, context
        self._trainers: dict[int, Trainer] = {}
        if context.device == "cpu":
            keep_freed_memory()

    def answer(self, order: object) -> object:
        """Does what a rank is asked.

        Raises:
            TypeError: It is no order that a rank knows.
        """
        if isinstance(order, Build):
            if order.number not in self._trainers:
                candidate = self._candidates[order.number]
                self._trainers[order.number] = Trainer(
                    self._torch, candidate, self._options, self._context
                )
            return None
        if isinstance(order, Run):
            return self._run(self._trainers[order.number], order)
        if isinstance(order, Train):
            trainer = self._trainers[order.number]
            return [float(trainer.step()) for _ in range(order.steps)]
        if isinstance(order, Collect):
            return self._collect(self._trainers[order.number])
        if isinstance(order, Drop):
            self._trainers.pop(order.number, None)
            gc.collect()
            return None
        raise TypeError(f"rank {self._context.rank} does not know what to do with {order!r}")

    def _run(self, trainer: Trainer, order: Run) -> Span:
        for _ in range(order.warm_up):
            trainer.step()
        gc.collect()
        gc.disable()
        try:
            self._settle()
            if self._context.world_size > 1:
                self._torch.distributed.barrier()
            start_s, processor_s = time.perf_counter(), time.process_time()
            for _ in range(order.iterations):
                trainer.step()
            self._settle()
            return Span(start_s, time.perf_counter(), time.process_time() - processor_s)
        finally:
            gc.enable()

    def _settle(self) -> None:
        if self._context.device != "cpu":
            self._torch.cuda.synchronize()

    def _collect(self, trainer: Trainer) -> tuple[list[tuple[int, int, int, Any]], list[Any]]:
        def array(tensor: Any) -> Any:
            return tensor.detach().to("cpu", self._torch.float64).numpy()

        pieces = [(*place, array(weights)) for *place, weights in trainer.pieces()]
        # Dense parameters are the same everywhere.
        dense = [] if self._context.rank else [array(one) for one in trainer.parameters]
        return pieces, dense
