"""A single rank without the others, with the indices that they would send.

Collectives do not run: :class:`SilentCollectives` replaces `torch.distributed`, and a rank
receives zeros of the right size. Zero lengths would mean no lookups, so lengths and indices are
those of a real run: the samples of all ranks are sorted by destination beforehand, by the same
code as in a run of all ranks.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from dse.validation.dlrm import local_batch
from dse.validation.trainer.reference._inputs import InputDistribution, to_device
from dse.validation.trainer.reference._layout import PlanLayout
from dse.validation.trainer.reference._rank import ReferenceRank

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from dse.launch import RankContext
    from dse.validation._types import TrainerOptions
    from dse.validation.dlrm import Candidate
    from dse.validation.trainer.reference._inputs import DeviceBatch, Feeding


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


class SilentRank(ReferenceRank):
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
