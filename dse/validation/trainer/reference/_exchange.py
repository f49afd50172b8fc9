"""Collectives of pooled vectors and of their gradients.

* POOLED (whole rows on a rank): all-to-all; each rank sends its columns by sample.
* ROW (rows over all ranks): reduce-scatter of partial sums, all-gather of gradients.
* NODE (rows over a node): reduce-scatter within the node, then all-to-all among equal local ranks
  of all nodes; gradients by all-to-all and all-gather.
* REPLICATED: no communication.

Outputs are *leaves* of the autograd graph of the dense part: the gradient of a leaf has the layout
of the output, so it is sent back unchanged.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any

from dse.validation.trainer.reference._layout import places_of
from dse.workload.dlrm import ExchangeGroup

if TYPE_CHECKING:
    from collections.abc import Callable

    from dse.validation.trainer.reference._layout import Place, PlanLayout


@dataclass(frozen=True, slots=True)
class NodeGroups:
    """Process groups of hierarchical collectives.

    Attributes:
        inside: Ranks of this rank's node.
        between: Ranks with the same local rank on all nodes.
    """

    inside: Any
    between: Any


@cache
def node_groups(torch: Any, world_size: int, local_size: int, rank: int) -> NodeGroups:
    """Creates the groups; all ranks must call this together. Cached."""
    dist = torch.distributed
    nodes = range(0, world_size, local_size)
    inside = [dist.new_group(list(range(node, node + local_size))) for node in nodes]
    between = [
        dist.new_group(list(range(one, world_size, local_size))) for one in range(local_size)
    ]
    return NodeGroups(inside[rank // local_size], between[rank % local_size])


class Exchange:
    """Vectors of one exchange group between tables and dense part; here without communication.

    Args:
        torch: The torch module.
        layout: Layout of the plan.
        rank: This rank.
        group: Exchange group.
        wire: Torch type of values under way.
        compute: Torch type of the dense part's input.
    """

    def __init__(
        self,
        torch: Any,
        layout: PlanLayout,
        rank: int,
        group: ExchangeGroup,
        wire: Any,
        compute: Any,
    ) -> None:
        self._torch, self._layout, self._rank, self._group = torch, layout, rank, group
        self._dist = torch.distributed
        self._wire, self._compute = wire, compute
        self._samples = layout.local_batch_size
        self._width = layout.width(rank, group)

    def prepare(self) -> None:
        """Creates resources that all ranks must create together."""

    def sources(self) -> list[int]:
        """Returns the ranks whose columns are concatenated in the leaf."""
        return [self._rank]

    def places(self) -> list[tuple[Place, int]]:
        """Returns the place and width of each part of the leaf, in order."""
        shards = [self._layout.of(source, self._group) for source in self.sources()]
        return [place for own in shards for place in places_of(own)]

    def parts(self, leaf: Any) -> list[Any]:
        """Splits a leaf into the parts of :meth:`places`, each of shape `(samples, columns)`."""
        widths = [self._layout.width(source, self._group) for source in self.sources()]
        parts = []
        blocks = leaf.split([self._samples * width for width in widths])
        for source, width, block in zip(self.sources(), widths, blocks, strict=True):
            columns = [one for _, one in places_of(self._layout.of(source, self._group))]
            if columns:
                parts += block.view(self._samples, width).split(columns, dim=1)
        return parts

    def send(self, outputs: Any) -> Callable[[], Any]:
        """Starts to send pooled vectors.

        Args:
            outputs: Of this rank's pieces; shape `(samples, columns)`.

        Returns:
            A function that waits for the leaf: flat, of the dense part's type.
        """
        return lambda: outputs.reshape(-1).to(self._compute)

    def send_back(self, gradient: Any) -> Callable[[], Any]:
        """Starts to send gradients.

        Args:
            gradient: Of the leaf.

        Returns:
            A function that waits for the gradients of this rank's outputs; `(samples, columns)`.
        """
        return lambda: gradient.view(self._samples, self._width)


class CollectiveExchange(Exchange, ABC):
    """Vectors of all ranks' samples, sent by collectives in the type of the wire."""

    def send(self, outputs: Any) -> Callable[[], Any]:
        """Starts the collective of pooled vectors; `outputs` has the samples of all ranks."""
        finish = self._send(outputs.to(self._wire))
        return lambda: finish().to(self._compute)

    def send_back(self, gradient: Any) -> Callable[[], Any]:
        """Starts the collective of gradients; what comes back has the samples of all ranks."""
        finish = self._send_back(gradient.to(self._wire))
        held = self._samples * self._layout.world_size
        return lambda: finish().view(held, self._width)

    @abstractmethod
    def _send(self, outputs: Any) -> Callable[[], Any]:
        """Starts to send vectors of the wire's type; returns a function that waits for them."""

    @abstractmethod
    def _send_back(self, gradient: Any) -> Callable[[], Any]:
        """Starts to send gradients of the wire's type; returns a function that waits for them."""

    def _sizes(self) -> tuple[list[int], list[int]]:
        """Returns how many values of its own this rank sends to each source, and gets from it."""
        widths = [self._layout.width(source, self._group) for source in self.sources()]
        own = [self._samples * self._width] * len(widths)
        return own, [self._samples * width for width in widths]

    def _all_to_all(
        self, sent: Any, out: list[int], back: list[int], group: Any = None
    ) -> Callable[[], Any]:
        """Sends `out` values of `sent` to each rank and receives `back` values from each."""
        received = sent.new_empty(sum(back))
        work = self._dist.all_to_all_single(
            received, sent.reshape(-1), back, out, group=group, async_op=True
        )
        return _finish(work, received)

    def _reduce_scatter(self, sent: Any, ranks: int, group: Any = None) -> Callable[[], Any]:
        flat = sent.reshape(-1)
        received = flat.new_empty(flat.shape[0] // ranks)
        dist = self._dist
        # The second name is that of older releases.
        scatter = getattr(dist, "reduce_scatter_single", None) or dist.reduce_scatter_tensor
        work = scatter(received, flat, group=group, async_op=True)
        return _finish(work, received)

    def _all_gather(self, sent: Any, ranks: int, group: Any = None) -> Callable[[], Any]:
        flat = sent.reshape(-1)
        received = flat.new_empty(flat.shape[0] * ranks)
        dist = self._dist
        gather = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor
        work = gather(received, flat, group=group, async_op=True)
        return _finish(work, received)


def _finish(work: Any, received: Any) -> Callable[[], Any]:
    """Returns a function that waits for a collective and returns what it received."""

    def finish() -> Any:
        work.wait()
        return received

    return finish


class PooledExchange(CollectiveExchange):
    """All-to-all of whole pooled vectors."""

    def sources(self) -> list[int]:
        """Returns all ranks."""
        return list(range(self._layout.world_size))

    def _send(self, outputs: Any) -> Callable[[], Any]:
        own, theirs = self._sizes()
        return self._all_to_all(outputs, own, theirs)

    def _send_back(self, gradient: Any) -> Callable[[], Any]:
        own, theirs = self._sizes()
        return self._all_to_all(gradient, theirs, own)


class RowExchange(CollectiveExchange):
    """Partial sums of all ranks, which have the same columns."""

    def _send(self, outputs: Any) -> Callable[[], Any]:
        return self._reduce_scatter(outputs, self._layout.world_size)

    def _send_back(self, gradient: Any) -> Callable[[], Any]:
        return self._all_gather(gradient, self._layout.world_size)


class NodeExchange(CollectiveExchange):
    """Partial sums within the node, then whole vectors between nodes.

    Outputs come in the order of :attr:`PlanLayout.by_local_rank`.
    """

    _nodes = NodeGroups(None, None)

    def prepare(self) -> None:
        """Creates the process groups; all ranks do so together."""
        layout = self._layout
        if layout.node_count > 1:
            self._nodes = node_groups(
                self._torch, layout.world_size, layout.local_size, self._rank
            )

    def sources(self) -> list[int]:
        """Returns the rank of each node that this rank receives from."""
        layout = self._layout
        return list(range(self._rank % layout.local_size, layout.world_size, layout.local_size))

    def _send(self, outputs: Any) -> Callable[[], Any]:
        layout, groups = self._layout, self._nodes
        own, theirs = self._sizes()
        inside = None
        # A node without such tables does not reduce.
        if layout.local_size > 1 and self._width:
            inside = self._reduce_scatter(outputs, layout.local_size, groups.inside)
        if layout.node_count == 1:
            assert inside is not None
            return inside

        def finish() -> Any:
            reduced = outputs if inside is None else inside()
            return self._all_to_all(reduced, own, theirs, groups.between)()

        return finish

    def _send_back(self, gradient: Any) -> Callable[[], Any]:
        layout, groups = self._layout, self._nodes
        own, theirs = self._sizes()
        between = None
        if layout.node_count > 1:
            between = self._all_to_all(gradient, theirs, own, groups.between)

        def finish() -> Any:
            whole = gradient if between is None else between()
            if layout.local_size == 1 or not self._width:
                return whole
            return self._all_gather(whole, layout.local_size, groups.inside)()

        return finish


_EXCHANGES = {
    ExchangeGroup.POOLED: PooledExchange,
    ExchangeGroup.ROW: RowExchange,
    ExchangeGroup.NODE: NodeExchange,
}


def make_exchange(
    torch: Any, layout: PlanLayout, rank: int, group: ExchangeGroup, wire: Any, compute: Any
) -> Exchange:
    """Creates the collectives of a group; all ranks must call this together."""
    # One rank alone sends nothing, nor does a group in which every rank has whole tables.
    kind = Exchange if layout.world_size == 1 else _EXCHANGES.get(group, Exchange)
    exchange = kind(torch, layout, rank, group, wire, compute)
    exchange.prepare()
    return exchange
