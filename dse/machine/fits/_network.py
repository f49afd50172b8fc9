"""Networks between nodes: shares of the line rate, latencies, and what was fitted to measurements.

All figures are relative to the network's own card bandwidth and latency, so a fit moves with them:
a faster card or a shorter latency is never slower.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from dse.machine.fits._calibrations import SPREAD_PER_EFOLD_OUTSIDE

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from dse.machine.fits._calibrations import HeldOut, Provenance


@dataclass(frozen=True, slots=True)
class NetworkModel:
    """What collectives reach of a network's line rate, and how often they wait for its latency.

    Attributes:
        relayed_share: Share of the cards' line rate that rings reach, and exchanges of two nodes,
            where every message is received and sent on.
        branched_share: Share that trees over more than two nodes reach, where a node serves a
            parent and two children at the same time.
        direct_share: Share that exchanges of every rank with every other reach.
        message_hops: Network latencies of a launch, and of each message that waits for another.
        low_latency_share: Share of its full rate that the low-latency protocol reaches.
        full_rate_factor: Multiple of the latency that the protocol of the full rate takes.
    """

    relayed_share: float
    branched_share: float
    direct_share: float
    message_hops: float = 1.0
    low_latency_share: float = 0.4
    full_rate_factor: float = 3.0


@dataclass(frozen=True, slots=True)
class NetworkCalibration:
    """A network model that was fitted to measured collectives over several nodes.

    Attributes:
        model: The fitted shares and latencies.
        ops: Collectives that were measured, by the names of `Platform.collective_time`.
        size_bytes: Smallest and largest message that was measured.
        nodes: Fewest and most nodes that were measured.
        spread: Standard deviation of the logarithm of held-out measured over predicted time.
        provenance: Where it comes from.
        held_out: Its error.
        transferred: Why it may serve for a network it was not measured on; empty for its own.
    """

    model: NetworkModel
    ops: tuple[str, ...]
    size_bytes: tuple[float, float]
    nodes: tuple[int, int]
    spread: float
    provenance: Provenance
    held_out: HeldOut
    transferred: str = ""

    def spread_at(self, nbytes: NDArray[np.float64], nodes: int) -> NDArray[np.float64]:
        """Returns the spread for message sizes on a number of nodes, wider outside the measured.

        Args:
            nbytes: Message sizes, any shape; empty messages count as the smallest.
            nodes: Number of nodes.
        """
        low, high = self.size_bytes
        size = np.where(nbytes > 0, nbytes, low)
        efolds = np.abs(np.log(size / np.clip(size, low, high)))
        fewest, most = self.nodes
        efolds = efolds + abs(np.log(nodes / min(max(nodes, fewest), most)))
        outside = SPREAD_PER_EFOLD_OUTSIDE * efolds
        return np.asarray(np.hypot(self.spread, outside), dtype=np.float64)
