"""What a task costs, and what tasks that run at the same time take from each other."""

from __future__ import annotations

from typing import NamedTuple

#: What a second of a collective and a second of kernels beside it take from each other: both use
#: multiprocessors, cache and memory. Collectives were measured to be 34 % slower beside kernels
#: (Zhu et al., Daydream, USENIX ATC 2020); the same is assumed of the kernels.
CONTENTION = 0.34


class Cost(NamedTuple):
    """Seconds of a task by the model that they come from; they follow one another.

    Attributes:
        product_s: Products of matrices.
        attention_s: Fused attention and batched products.
        stream_s: Kernels that move bytes.
        host_s: Time in which the device waits for the host's launches.
        inside_s: Transfers inside a node that nothing hides.
        network_s: Transfers between nodes that nothing hides.
    """

    product_s: float = 0.0
    attention_s: float = 0.0
    stream_s: float = 0.0
    host_s: float = 0.0
    inside_s: float = 0.0
    network_s: float = 0.0

    @property
    def compute_s(self) -> float:
        """Time with a kernel running."""
        return self.product_s + self.attention_s + self.stream_s

    @property
    def transfer_s(self) -> float:
        """Time with only a transfer running."""
        return self.inside_s + self.network_s

    @property
    def total_s(self) -> float:
        """Duration of the task."""
        return sum(self)

    def slowed(self, factor: float) -> Cost:
        """Returns the same task with slower kernels."""
        return self._replace(
            product_s=self.product_s * factor,
            attention_s=self.attention_s * factor,
            stream_s=self.stream_s * factor,
        )


def total_of(*costs: Cost) -> Cost:
    """Returns tasks that run one after the other."""
    return Cost(*(sum(values) for values in zip(*costs, strict=True)))


def slowed_by(transfer: Cost, beside_s: float) -> Cost:
    """Slows a transfer by the kernels beside it."""
    if not transfer.transfer_s:
        return transfer
    overlap_s = min(transfer.transfer_s, beside_s)
    share = 1.0 + CONTENTION * overlap_s / transfer.transfer_s
    return Cost(inside_s=transfer.inside_s * share, network_s=transfer.network_s * share)


def kernels_beside(cost: Cost, transfer: Cost) -> Cost:
    """Slows kernels by a transfer that runs at the same time."""
    if not transfer.transfer_s or not cost.compute_s:
        return cost
    overlap_s = min(transfer.transfer_s, cost.compute_s)
    return cost.slowed(1.0 + CONTENTION * overlap_s / cost.compute_s)


def hidden_behind(transfer: Cost, beside_s: float) -> Cost:
    """What a transfer adds to kernels beside it: its rest, and what it takes from them."""
    if not transfer.transfer_s:
        return transfer
    overlap_s = min(transfer.transfer_s, beside_s)
    visible_s = transfer.transfer_s - (1.0 - CONTENTION) * overlap_s
    share = visible_s / transfer.transfer_s
    return Cost(inside_s=transfer.inside_s * share, network_s=transfer.network_s * share)
