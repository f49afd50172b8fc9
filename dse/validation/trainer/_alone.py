"""Trainer of a single rank without the others, with the indices that they would send.

Collectives do not run: :class:`SilentCollectives` replaces `torch.distributed`, and a rank
receives zeros of the right size. Zero lengths would mean no lookups, so lengths and indices are
those of a real run: the samples of all ranks are sorted by destination beforehand, by the same
code as in a run of all ranks.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from dse.launch import RankContext
from dse.validation.measurement._worker import Build, Drop, TrainingWorker
from dse.validation.trainer._batches import local_batch
from dse.validation.trainer._inputs import InputDistribution, to_device
from dse.validation.trainer._layout import PlanLayout
from dse.validation.trainer._trainer import Trainer

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from dse.launch import Worker
    from dse.validation._types import Candidate, TrainerOptions
    from dse.validation.trainer._inputs import DeviceBatch, Feeding


class _Done:
    """A completed collective."""

    def wait(self) -> None:
        """Returns immediately."""


class SilentCollectives:
    """Collectives without communication: received values are zero, reduced ones unchanged.

    Attributes:
        sent: Last input of an all-to-all, and the number of values for each rank.
    """

    def __init__(self) -> None:
        self.sent: tuple[Any, list[int]] = (None, [])

    def new_group(self, ranks: list[int]) -> None:
        """Does nothing."""

    def all_to_all_single(
        self, received: Any, sent: Any, back: list[int], out: list[int], **_: Any
    ) -> _Done:
        """Records the input."""
        self.sent = sent, out
        received.zero_()
        return _Done()

    def reduce_scatter_single(self, received: Any, sent: Any, **_: Any) -> _Done:
        """Receives zeros."""
        received.zero_()
        return _Done()

    def all_gather_single(self, received: Any, sent: Any, **_: Any) -> _Done:
        """Receives zeros."""
        received.zero_()
        return _Done()

    def all_reduce(self, values: Any, **_: Any) -> _Done:
        """Leaves the values unchanged."""
        return _Done()


class _TorchAlone:
    """The torch module with silent collectives."""

    def __init__(self, torch: Any) -> None:
        self._torch = torch
        self.distributed = SilentCollectives()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._torch, name)


#: Concatenated lengths and indices of all sources, for each batch and destination.
Inbox = list[list[tuple[Any, Any]]]


def received_inputs(torch: Any, candidate: Candidate, options: TrainerOptions) -> Inbox:
    """Returns the inputs that each rank receives in each batch, on the CPU.

    Args:
        torch: The torch module.
        candidate: Checked candidate.
        options: Seed and number of batches.
    """
    alone = _TorchAlone(torch)
    layout = PlanLayout(candidate)
    samples, ranks = layout.local_batch_size, layout.world_size
    found: Inbox = []
    for number in range(options.batches):
        lengths: list[list[Any]] = [[] for _ in range(ranks)]
        indices: list[list[Any]] = [[] for _ in range(ranks)]
        for source in range(ranks):
            made = local_batch(candidate.model, options.seed, number, source * samples, samples)
            batch = to_device(torch, made, torch.float32, "cpu")
            feeding = InputDistribution(alone, layout, source).send_lengths(batch)
            if feeding.sent_counts is None:
                continue
            sent, out = alone.distributed.sent
            for to, (part, rows) in enumerate(
                zip(sent.split(out), feeding.sent.split(feeding.sent_counts), strict=True)
            ):
                lengths[to].append(part)
                indices[to].append(rows)
        found.append(
            [
                (torch.cat(own), torch.cat(rows)) if own else (None, None)
                for own, rows in zip(lengths, indices, strict=True)
            ]
        )
    return found


class _DeliveredInputs(InputDistribution):
    """Does the work of sending, and receives prepared inputs."""

    def __init__(
        self, torch: Any, layout: PlanLayout, rank: int, inbox: Callable[[DeviceBatch], Any]
    ) -> None:
        super().__init__(torch, layout, rank)
        self._inbox = inbox

    def send_lengths(self, batch: DeviceBatch) -> Feeding:
        feeding = super().send_lengths(batch)
        if feeding.sent_counts is not None:
            feeding.lengths = self._inbox(batch)[0]
        return feeding

    def send_indices(self, feeding: Feeding) -> Feeding:
        super().send_indices(feeding)
        if feeding.sent_counts is not None:
            feeding.indices = self._inbox(feeding.batch)[1]
        return feeding


class SerialTrainer(Trainer):
    """One rank without the others; dense gradients are not reduced.

    Args:
        torch: The torch module.
        candidate: Checked candidate for more than one rank.
        options: Seed, learning rates, batches.
        context: One of the candidate's ranks, and its device.
        inbox: Inputs that the rank receives; see :func:`received_inputs`.
    """

    def __init__(
        self,
        torch: Any,
        candidate: Candidate,
        options: TrainerOptions,
        context: RankContext,
        inbox: Inbox,
    ) -> None:
        # DistributedDataParallel needs a real process group.
        software = replace(candidate.problem.software, overlap_dense_all_reduce=False)
        problem = replace(candidate.problem, software=software)
        alone = _TorchAlone(torch)
        super().__init__(alone, replace(candidate, problem=problem), options, context)

        def moved(values: Any) -> Any:
            return None if values is None else values.to(context.device)

        own = [tuple(map(moved, batch[context.rank])) for batch in inbox]
        by_batch = {id(batch): got for batch, got in zip(self._batches, own, strict=True)}
        self._inputs = _DeliveredInputs(
            alone, self._layout, context.rank, lambda batch: by_batch[id(batch)]
        )

    def _reduce_dense(self) -> Iterator[Callable[[], None]]:
        return iter(())


@dataclass(frozen=True, slots=True)
class BuildRank:
    """Builds one rank of a candidate; later commands refer to it by the candidate's number."""

    number: int
    rank: int


def serial_worker(
    candidates: tuple[Candidate, ...], options: TrainerOptions, context: RankContext
) -> Worker:
    """Creates the worker of the single process that runs all ranks in turn.

    Args:
        candidates: Checked candidates, referred to by their index.
        options: Seed, learning rates, batches.
        context: The single process.
    """
    return _SerialWorker(candidates, options, context).execute


class _SerialWorker(TrainingWorker):
    #: Number of the latest candidate and the inputs of its ranks.
    _inbox: tuple[int, Inbox] = (-1, [])

    def execute(self, command: object) -> object:
        if not isinstance(command, BuildRank):
            return super().execute(command)
        candidate = self._candidates[command.number]
        world_size = candidate.world_size
        super().execute(Drop(command.number))
        if world_size == 1:
            return super().execute(Build(command.number))
        if self._inbox[0] != command.number:
            self._inbox = command.number, received_inputs(self._torch, candidate, self._options)
        self._trainers[command.number] = SerialTrainer(
            self._torch,
            candidate,
            self._options,
            RankContext(command.rank, world_size, self._context.device),
            self._inbox[1],
        )
        return None
