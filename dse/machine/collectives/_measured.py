"""Measured curves inside a node, and their use for other operations and sizes.

A curve of its own operation and rank count is used as it is. Between and above measured rank
counts, the curves' lines are continued: the latency is linear in the steps of the algorithm, the
inverse bandwidth linear in the volume through a link,

    latency(n)  = latency(b) + (latency(b) − latency(a)) · position of n by steps
    1 / rate(n) = 1 / rate(b) + (1 / rate(b) − 1 / rate(a)) · position of n by volume
    position by f = (f(n) − f(b)) / (f(b) − f(a))

and the bends about the line are those of the neighbours. Nothing is fitted there: from 2 and 4
devices the times of 8 are met within 8–9 % on A100, H100 and H200 (14 % for
`t8 = t4 · (t4 / t2)^0.6`). With one measured count, or below all, and for an operation without a
curve, the ratio of the analytical times decides.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
import math
from typing import TYPE_CHECKING

import numpy as np

from dse.machine.collectives._groups import CollectiveOp
from dse.machine.collectives._inside import (
    IN_SWITCH_RANKS,
    in_switch_time_s,
    inside_time_s,
    steps,
    switches_reduce,
    volume,
)
from dse.machine.fits import SPREAD_PER_EFOLD_OUTSIDE, CollectiveCalibration, SizeCurve

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

    from dse.machine import LinkSpec

#: Added to the standard deviation of the logarithm, as an independent error.
_SPREAD_OTHER_RANKS = 0.1
_SPREAD_OTHER_OP = 0.2

#: Operations whose curve speaks for one that has none, the most alike first.
_RELATED = {
    CollectiveOp.ALL_REDUCE: (CollectiveOp.REDUCE_SCATTER, CollectiveOp.ALL_GATHER),
    CollectiveOp.ALL_GATHER: (CollectiveOp.REDUCE_SCATTER, CollectiveOp.ALL_REDUCE),
    CollectiveOp.REDUCE_SCATTER: (CollectiveOp.ALL_GATHER, CollectiveOp.ALL_REDUCE),
    CollectiveOp.ALL_TO_ALL: (CollectiveOp.ALL_GATHER, CollectiveOp.REDUCE_SCATTER),
    CollectiveOp.BROADCAST: (CollectiveOp.ALL_GATHER, CollectiveOp.REDUCE_SCATTER),
    CollectiveOp.SEND_RECV: (CollectiveOp.ALL_TO_ALL, CollectiveOp.ALL_GATHER),
}


@dataclass(frozen=True, slots=True)
class Measured:
    """What measurements say of one operation on one number of ranks.

    Attributes:
        curve: Seconds over bytes.
        range_spread: Standard deviation of the logarithm of actual over expected time, inside the
            measured sizes.
    """

    curve: SizeCurve
    range_spread: float

    def spread(self, nbytes: NDArray[np.float64]) -> NDArray[np.float64]:
        """Returns the spread at message sizes, wider outside the measured ones."""
        outside = SPREAD_PER_EFOLD_OUTSIDE * self.curve.efolds_outside(nbytes)
        return np.asarray(np.hypot(self.range_spread, outside), dtype=np.float64)


@lru_cache(maxsize=256)
def measured(link: LinkSpec, op: CollectiveOp, ranks: int, nodes: int = 1) -> Measured | None:
    """Returns the curve for an operation among `ranks` devices, or None without calibrations.

    Args:
        link: The interconnect.
        op: The operation.
        ranks: Devices taking part.
        nodes: Nodes of a pod that they sit on.
    """
    for source in (op, *_RELATED[op]):
        known = {
            calibration.ranks: calibration
            for calibration in reversed(link.calibrations)
            if calibration.op == source
        }
        if not known:
            continue
        found = _at_ranks(link, source, known, ranks, nodes)
        if source is op:
            return found
        curve = _scaled(link, found.curve, (op, ranks), (source, ranks))
        return Measured(curve, math.hypot(found.range_spread, _SPREAD_OTHER_OP))
    return None


def _at_ranks(
    link: LinkSpec,
    op: CollectiveOp,
    known: dict[int, CollectiveCalibration],
    ranks: int,
    nodes: int,
) -> Measured:
    if ranks in known:
        return Measured(known[ranks].curve, known[ranks].spread)
    below = sorted(count for count in known if count < ranks)
    above = sorted(count for count in known if count > ranks)
    if not below or len(known) == 1:
        nearest = known[min(known)]
        curve = _scaled(link, nearest.curve, (op, ranks), (op, nearest.ranks))
        return Measured(curve, math.hypot(nearest.spread, _SPREAD_OTHER_RANKS))
    low, high = (below[-1], above[0]) if above else (below[-2], below[-1])
    curve = _continued(op, known[low], known[high], ranks, nodes)
    if high < IN_SWITCH_RANKS and switches_reduce(link, op, ranks):
        curve = _in_switch_where_faster(link, curve, ranks)
    widest = max(known[low].spread, known[high].spread)
    return Measured(curve, math.hypot(widest, _SPREAD_OTHER_RANKS))


def _continued(
    op: CollectiveOp,
    low: CollectiveCalibration,
    high: CollectiveCalibration,
    ranks: int,
    nodes: int,
) -> SizeCurve:
    """The curve between two measured rank counts, or above both."""

    def position(of: Callable[[CollectiveOp, int], float], there: float) -> float:
        apart = of(op, high.ranks) - of(op, low.ranks)
        return (there - of(op, high.ranks)) / apart if apart else 0.0

    def continued(at_low: float, at_high: float, where: float) -> float:
        # More ranks never take less time; where a measurement says so, it is noise.
        return at_high + max(at_high - at_low, 0.0) * where

    first, second = low.curve, high.curve
    latency_s = continued(
        first.latency_s, second.latency_s, position(steps, steps(op, ranks, nodes))
    )
    inverse = continued(
        1 / first.bandwidth_bytes_per_s,
        1 / second.bandwidth_bytes_per_s,
        position(volume, volume(op, ranks)),
    )
    size = np.array(second.size_bytes)
    at_low, at_high = first.at(size), second.at(size)
    weight = min(math.log(ranks / low.ranks) / math.log(high.ranks / low.ranks), 1.0)
    bend = (at_low / _line_s(first, size)) ** (1 - weight) * (
        at_high / _line_s(second, size)
    ) ** weight
    time_s = bend * (latency_s + size * inverse)
    if ranks < high.ranks:
        time_s = np.clip(time_s, np.minimum(at_low, at_high), np.maximum(at_low, at_high))
    return _monotone(latency_s, 1 / inverse, size, time_s)


def _scaled(
    link: LinkSpec, curve: SizeCurve, to: tuple[CollectiveOp, int], of: tuple[CollectiveOp, int]
) -> SizeCurve:
    """A curve of one operation and rank count as another's, by the ratio of analytical times."""
    size = np.array(curve.size_bytes)
    ratio = inside_time_s(link, to[0], size, to[1]) / inside_time_s(link, of[0], size, of[1])
    return _monotone(
        curve.latency_s * float(ratio[0]),
        curve.bandwidth_bytes_per_s / float(ratio[-1]),
        size,
        np.array(curve.time_s) * ratio,
    )


def _in_switch_where_faster(link: LinkSpec, curve: SizeCurve, ranks: int) -> SizeCurve:
    """The curve of other algorithms, or what the switches take where that is less."""
    size = np.array(curve.size_bytes)
    in_switch_s = in_switch_time_s(link, size, ranks)
    gained = float(in_switch_s[-1] / curve.time_s[-1])
    return _monotone(
        curve.latency_s,
        curve.bandwidth_bytes_per_s / min(gained, 1.0),
        size,
        np.minimum(curve.time_s, in_switch_s),
    )


def _line_s(curve: SizeCurve, size: NDArray[np.float64]) -> NDArray[np.float64]:
    return curve.latency_s + size / curve.bandwidth_bytes_per_s


def _monotone(
    latency_s: float,
    bandwidth: float,
    size: NDArray[np.float64],
    time_s: NDArray[np.float64],
) -> SizeCurve:
    return SizeCurve(
        latency_s,
        bandwidth,
        tuple(size.tolist()),
        tuple(np.maximum.accumulate(time_s).tolist()),
    )
