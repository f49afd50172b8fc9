"""One rank of a plan alone on a device, with the indices that the other ranks would send it.

Collectives do not run: :class:`SilentCollectives` stands where `torch.distributed` would, and
what a rank receives is zeros of the right size. Zeros would be no lookups at all, so lengths and
indices are those of a real exchange: all ranks' samples are sorted by destination beforehand, by
the same code that sorts them in a run of all ranks.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from dse.launch import RankContext
from dse.validation._batches import local_batch
from dse.validation._inputs import InputDistribution, to_device
from dse.validation._layout import PlanLayout
from dse.validation._trainer import Trainer
from dse.validation._worker import Build, Drop, TrainingWorker

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from dse.launch import Worker
    from dse.validation._inputs import DeviceBatch, Feeding
    from dse.validation._types import Candidate, TrainerOptions


class _Done:
    """A collective that has ended."""

    def wait(self) -> None:
        """Returns at once."""


class SilentCollectives:
    """Collectives that move nothing: what is received is zeros, what is reduced stays.

    Attributes:
        sent: Last values handed to an all-to-all, and how many go to each rank.
    """

    def __init__(self) -> None:
        self.sent: tuple[Any, list[int]] = (None, [])

    def new_group(self, ranks: list[int]) -> None:
        """Makes no group."""

    def all_to_all_single(
        self, received: Any, sent: Any, back: list[int], out: list[int], **_: Any
    ) -> _Done:
        """Remembers what was sent."""
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
        """Leaves the values as they are."""
        return _Done()


class _TorchAlone:
    """The torch module with other collectives."""

    def __init__(self, torch: Any) -> None:
        self._torch = torch
        self.distributed = SilentCollectives()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._torch, name)


#: For each batch and each destination: lengths, and indices, of all sources in a row.
Inbox = list[list[tuple[Any, Any]]]


def inbox_of(torch: Any, candidate: Candidate, options: TrainerOptions) -> Inbox:
    """Returns what every rank receives in the input exchanges of every batch, on the CPU.

    Args:
        torch: The torch module.
        candidate: Checked.
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
    """Does the work of the sender, and receives what was prepared."""

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
    """One rank without the others; the dense gradients stay where they are.

    Args:
        torch: The torch module.
        candidate: What is trained; checked, for more than one rank.
        options: Seed, learning rates, batches.
        context: Which rank this is, of the candidate's, and its device.
        inbox: What it receives; see :func:`inbox_of`.
    """

    def __init__(
        self,
        torch: Any,
        candidate: Candidate,
        options: TrainerOptions,
        context: RankContext,
        inbox: Inbox,
    ) -> None:
        # The wrapper that overlaps the reduction of dense gradients needs a real group.
        software = replace(candidate.configuration.software, overlap_dense_all_reduce=False)
        configuration = replace(candidate.configuration, software=software)
        alone = _TorchAlone(torch)
        super().__init__(alone, replace(candidate, configuration=configuration), options, context)

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
    """Makes one rank of a candidate; later orders know it by the candidate's number."""

    number: int
    rank: int


def serial_worker(
    candidates: tuple[Candidate, ...], options: TrainerOptions, context: RankContext
) -> Worker:
    """Returns what answers orders on the one device.

    Args:
        candidates: What may be run; checked.
        options: Seed, learning rates, batches.
        context: Of the one process that runs all ranks in turn.
    """
    return _SerialWorker(candidates, options, context).answer


class _SerialWorker(TrainingWorker):
    #: What ranks of the latest candidate receive, with its number.
    _inbox: tuple[int, Inbox] = (-1, [])

    def answer(self, order: object) -> object:
        if not isinstance(order, BuildRank):
            return super().answer(order)
        candidate = self._candidates[order.number]
        world_size = candidate.configuration.world_size
        super().answer(Drop(order.number))
        if world_size == 1:
            return super().answer(Build(order.number))
        if self._inbox[0] != order.number:
            self._inbox = order.number, inbox_of(self._torch, candidate, self._options)
        self._trainers[order.number] = SerialTrainer(
            self._torch,
            candidate,
            self._options,
            RankContext(order.rank, world_size, self._context.device),
            self._inbox[1],
        )
        return None
