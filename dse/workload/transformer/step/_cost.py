"""The cost of a task of a training step, and what tasks that overlap add to each other."""

from __future__ import annotations

from typing import NamedTuple

from dse.machine import contention_factors


class Cost(NamedTuple):
    """Seconds of a task by the model that they come from.

    Kernels and exposed transfers follow one another on the device. The host dispatches the
    kernels meanwhile.

    Attributes:
        product_s: Products of matrices.
        attention_s: Fused attention and batched products.
        elementwise_s: Kernels that move bytes.
        dispatch_s: Time of the host to dispatch the kernels.
        inside_s: Exposed transfers inside a node.
        network_s: Exposed transfers between nodes.
        host_link_s: Exposed copies to and from host memory, and updates there.
    """

    product_s: float = 0.0
    attention_s: float = 0.0
    elementwise_s: float = 0.0
    dispatch_s: float = 0.0
    inside_s: float = 0.0
    network_s: float = 0.0
    host_link_s: float = 0.0

    @property
    def compute_s(self) -> float:
        """Time with a kernel running."""
        return self.product_s + self.attention_s + self.elementwise_s

    @property
    def transfer_s(self) -> float:
        """Time with only a transfer running."""
        return self.inside_s + self.network_s + self.host_link_s

    @property
    def device_s(self) -> float:
        """Time of the device: kernels and exposed transfers."""
        return self.compute_s + self.transfer_s

    def times(self, count: float) -> Cost:
        """Returns as many of these tasks, one after the other."""
        return Cost(*(count * seconds for seconds in self))

    def scaled(self, kernels: float = 1.0, transfers: float = 1.0) -> Cost:
        """Returns the same task with longer kernels and transfers."""
        return Cost(
            self.product_s * kernels,
            self.attention_s * kernels,
            self.elementwise_s * kernels,
            self.dispatch_s,
            self.inside_s * transfers,
            self.network_s * transfers,
            self.host_link_s * transfers,
        )


def total_cost(*costs: Cost) -> Cost:
    """Returns tasks that run one after the other."""
    return Cost(*(sum(values) for values in zip(*costs, strict=True)))


def transfer_next_to(transfer: Cost, kernels_s: float) -> Cost:
    """Returns a transfer, slowed down by the kernels that it overlaps."""
    return transfer.scaled(transfers=contention_factors(kernels_s, transfer.transfer_s)[1])


def kernels_next_to(cost: Cost, transfer: Cost) -> Cost:
    """Returns kernels, slowed down by a transfer that they overlap."""
    return cost.scaled(kernels=contention_factors(cost.compute_s, transfer.transfer_s)[0])


def exposed(transfer: Cost, kernels_s: float) -> Cost:
    """Returns what a transfer that overlaps kernels adds to their time.

    That is its remainder after the kernels, and what it slows them down.
    """
    if not transfer.transfer_s:
        return transfer
    slower, longer = contention_factors(kernels_s, transfer.transfer_s)
    whole_s = max(kernels_s * slower, transfer.transfer_s * longer)
    return transfer.scaled(transfers=(whole_s - kernels_s) / transfer.transfer_s)
