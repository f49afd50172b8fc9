"""Measured curves inside a node, and their use for other operations and sizes.

A curve of its own operation and rank count is used as it is. Between and above measured rank
counts, the curves' lines are continued: the latency is linear in the steps of the algorithm, the
inverse bandwidth linear in the volume through a link,

    latency(n)  = latency(b) + (latency(b) − latency(a)) · position of n by steps
    1 / rate(n) = 1 / rate(b) + (1 / rate(b) − 1 / rate(a)) · position of n by volume
    position by f = (f(n) − f(b)) / (f(b) − f(a))

and the bends about the line are those of the neighbours. Nothing is fitted there: from 2 and 4
devices the times of 8 are met within 8–9 % on A100, H100, H200 and B200 (14 % for
`t8 = t4 · (t4 / t2)^0.6`), and from 2, 4 and 8 those of 3, 5, 6 and 7 within 4 % on A100. With one
measured count, or below all, on meshes and pairs, whose rate depends on who takes part, and for an
operation without a curve, the ratio of the analytical times to the nearest measured ones decides.

Where a figure of a measured link was changed, what was measured is that of the link as it was, and
its analytical time moves: `t · analytical(changed) / analytical(measured)`, and a message takes no
less than a smaller one. So more bandwidth or less latency is never slower, whatever the shape of
the curve.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property, lru_cache, partial
import math
from typing import TYPE_CHECKING

import numpy as np

from dse.machine import LinkKind
from dse.machine.collectives._groups import CollectiveOp
from dse.machine.collectives._inside import (
    IN_SWITCH_RANKS,
    in_switch_time_s,
    inside_ratio,
    inside_time_s,
    steps,
    switches_reduce,
    volume,
)
from dse.machine.fits import (
    NEWEST,
    SPREAD_PER_EFOLD_OUTSIDE,
    CollectiveCalibration,
    SizeCurve,
    is_version,
    version_parts,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

    from dse.machine import LinkSpec

#: Added to the standard deviation of the logarithm, as an independent error.
_SPREAD_OTHER_RANKS = 0.1
_SPREAD_OTHER_OP = 0.2
#: For each e-fold above the measured sizes: from sizes up to 64 and 128 MiB the larger ones up to
#: 512 MiB are missed by 0.02 to 0.16 an e-fold, and 94 to 100 % lie inside the 90 % interval.
_SPREAD_PER_EFOLD_LARGER = 0.05

#: What versions of NCCL differ by in published nccl-tests of one machine: 0.02 to 0.17.
_SPREAD_OTHER_VERSION = 0.1

#: Curves that begin above so many bytes do not show the latency; they begin here instead.
_LARGEST_LEAST_BYTES = 2.0**14
_BEGIN_BYTES = 512.0

#: Message sizes, dense beside the bends of any curve.
_SIZES = np.exp2(np.arange(0, 40, 1 / 16))

#: Links that give every number of devices the same rate; others have formulas of their own.
_ALIKE = (LinkKind.NVSWITCH, LinkKind.PCIE, LinkKind.SHARED_MEMORY)

#: Operations whose curve speaks for one that has none, the most alike first.
_RELATED = {
    CollectiveOp.ALL_REDUCE: (CollectiveOp.REDUCE_SCATTER, CollectiveOp.ALL_GATHER),
    CollectiveOp.ALL_GATHER: (CollectiveOp.REDUCE_SCATTER, CollectiveOp.ALL_REDUCE),
    CollectiveOp.REDUCE_SCATTER: (CollectiveOp.ALL_GATHER, CollectiveOp.ALL_REDUCE),
    CollectiveOp.ALL_TO_ALL: (CollectiveOp.ALL_GATHER, CollectiveOp.REDUCE_SCATTER),
    CollectiveOp.BROADCAST: (CollectiveOp.ALL_GATHER, CollectiveOp.REDUCE_SCATTER),
    CollectiveOp.SEND_RECV: (CollectiveOp.ALL_TO_ALL, CollectiveOp.ALL_GATHER),
}


@dataclass(frozen=True)
class Measured:
    """What measurements say of one operation on one number of ranks.

    Attributes:
        curve: Seconds over bytes.
        range_spread: Standard deviation of the logarithm of actual over expected time, inside the
            measured sizes.
        least_bytes: Smallest measured message.
        switches: Link and ranks, where its switches may form the sums of so many ranks and of no
            measured count; otherwise None.
        change: From message sizes to what a change of the link multiplies their times by; None
            without one.
    """

    curve: SizeCurve
    range_spread: float
    least_bytes: float
    switches: tuple[LinkSpec, int] | None = None
    change: Callable[[NDArray[np.float64]], NDArray[np.float64]] | None = None

    def time_s(self, nbytes: NDArray[np.float64]) -> NDArray[np.float64]:
        """Returns seconds for message sizes of any shape; they must be positive."""
        time_s = self._measured_s(nbytes)
        if self.change is None:
            return time_s
        # Between two sizes the changed time has gone as far as the measured one.
        size, before_s, after_s = self._changed
        low = np.clip(np.searchsorted(size, nbytes, side="right") - 1, 0, len(size) - 2)
        further_s = (time_s - before_s[low]) * (np.diff(after_s) / np.diff(before_s))[low]
        return np.asarray(after_s[low] + further_s, dtype=np.float64)

    def _measured_s(self, nbytes: NDArray[np.float64]) -> NDArray[np.float64]:
        time_s = self.curve.at(nbytes)
        if self.switches is None:
            return time_s
        link, ranks = self.switches
        return np.minimum(time_s, in_switch_time_s(link, nbytes, ranks))

    @cached_property
    def _changed(self) -> tuple[NDArray[np.float64], ...]:
        """Message sizes, their measured times and those after the change."""
        assert self.change is not None
        size = np.union1d(_SIZES, self.curve.size_bytes)
        before_s = self._measured_s(size)
        # A larger message never takes less time.
        after_s = np.maximum.accumulate(before_s * self.change(size))
        rising = np.append(np.diff(before_s) > 0, True)
        return size[rising], before_s[rising], after_s[rising]

    def spread(self, nbytes: NDArray[np.float64]) -> NDArray[np.float64]:
        """Returns the spread at message sizes, wider outside the measured ones."""
        below = np.log(np.maximum(self.least_bytes / nbytes, 1.0))
        above = np.log(np.maximum(nbytes / self.curve.size_bytes[-1], 1.0))
        outside = SPREAD_PER_EFOLD_OUTSIDE * below + _SPREAD_PER_EFOLD_LARGER * above
        return np.asarray(np.hypot(self.range_spread, outside), dtype=np.float64)


def curves_in_use(link: LinkSpec) -> tuple[CollectiveCalibration, ...]:
    """Returns the curve that counts for each operation and number of ranks.

    It is the first one of the wanted version of the library. What was not measured with that
    version is taken from the first other one, as is everything where no version is wanted:
    platforms list their measurements in order, and files the newest version first.
    """
    wanted = [one for one in link.calibrations if is_wanted(link, one)]
    chosen: dict[tuple[str, int], CollectiveCalibration] = {}
    for one in (*wanted, *link.calibrations):
        chosen.setdefault((one.op, one.ranks), one)
    return tuple(chosen.values())


def measured_by(link: LinkSpec) -> str:
    """Returns whose measurements answer for a link: versions of NCCL, and the device if lent.

    Returns:
        For example `NCCL 2.29.2`; `formulas` without measurements.
    """
    curves = curves_in_use(link)
    if not curves:
        return "formulas"
    versions = {one.nccl for one in curves if one.nccl}
    newest_first = sorted(versions, key=version_parts, reverse=True)
    named = f"NCCL {', '.join(newest_first)}" if versions else "measured"
    lenders = dict.fromkeys(one.provenance.device for one in curves if one.transferred)
    return f"{named}, measured on {', '.join(lenders)}" if lenders else named


def is_wanted(link: LinkSpec, calibration: CollectiveCalibration) -> bool:
    """Returns whether a curve is of the version that the link names, if it names one."""
    return link.nccl == NEWEST or is_version(calibration.nccl, link.nccl)


@lru_cache(maxsize=256)
def measured(link: LinkSpec, op: CollectiveOp, ranks: int, nodes: int = 1) -> Measured | None:
    """Returns the curve for an operation among `ranks` devices, or None without calibrations.

    Args:
        link: The interconnect.
        op: The operation.
        ranks: Devices taking part.
        nodes: Nodes of a pod that they sit on.
    """
    curves = curves_in_use(link)
    changed, link = link, link.measured_on or link
    change = None
    if changed is not link:
        change = partial(inside_ratio, changed, link, op, ranks=ranks, nodes=nodes)
    for source in (op, *_RELATED[op]):
        known = {one.ranks: one for one in curves if one.op == source}
        if not known:
            continue
        curve, spread = _at_ranks(link, source, known, ranks, nodes)
        if source is not op:
            curve = _scaled(link, curve, (op, ranks), (source, ranks))
            spread = math.hypot(spread, _SPREAD_OTHER_OP)
        least_bytes = curve.size_bytes[0]
        if least_bytes > _LARGEST_LEAST_BYTES:
            curve = _with_latency(link, curve, op, ranks, nodes)
        if source is op and max(known) < IN_SWITCH_RANKS and switches_reduce(link, op, ranks):
            return Measured(curve, spread, least_bytes, (link, ranks), change)
        return Measured(curve, spread, least_bytes, change=change)
    return None


def _at_ranks(
    link: LinkSpec,
    op: CollectiveOp,
    known: dict[int, CollectiveCalibration],
    ranks: int,
    nodes: int,
) -> tuple[SizeCurve, float]:
    """The curve of an operation, and its spread."""
    if ranks in known:
        return known[ranks].curve, _spread(link, known[ranks])
    below = sorted(count for count in known if count < ranks)
    above = sorted(count for count in known if count > ranks)
    if not below or len(known) == 1 or link.kind not in _ALIKE:
        nearest = known[min(known, key=lambda count: abs(math.log(count / ranks)))]
        curve = _scaled(link, nearest.curve, (op, ranks), (op, nearest.ranks))
        return curve, math.hypot(_spread(link, nearest), _SPREAD_OTHER_RANKS)
    low, high = (below[-1], above[0]) if above else (below[-2], below[-1])
    curve = _continued(op, known[low], known[high], ranks, nodes)
    widest = max(_spread(link, known[low]), _spread(link, known[high]))
    return curve, math.hypot(widest, _SPREAD_OTHER_RANKS)


def _spread(link: LinkSpec, calibration: CollectiveCalibration) -> float:
    """Spread of a curve, wider where it stands for that of another version of the library."""
    other = 0.0 if is_wanted(link, calibration) else _SPREAD_OTHER_VERSION
    return math.hypot(calibration.spread, other)


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
    size = np.union1d(first.size_bytes, second.size_bytes)
    size = size[(size >= second.size_bytes[0]) & (size <= second.size_bytes[-1])]
    at_low, at_high = first.at(size), second.at(size)
    weight = min(math.log(ranks / low.ranks) / math.log(high.ranks / low.ranks), 1.0)
    bend = (at_low / first.line_s(size)) ** (1 - weight) * (
        at_high / second.line_s(size)
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


def _with_latency(
    link: LinkSpec, curve: SizeCurve, op: CollectiveOp, ranks: int, nodes: int
) -> SizeCurve:
    """A curve of large messages with a beginning: below them the analytical time has the shape."""
    first = curve.size_bytes[0]
    size = np.geomspace(_BEGIN_BYTES, first, round(math.log2(first / _BEGIN_BYTES)) + 1)
    shape = inside_time_s(link, op, size, ranks, nodes)
    return SizeCurve(
        curve.latency_s,
        curve.bandwidth_bytes_per_s,
        (*size[:-1].tolist(), *curve.size_bytes),
        (*(curve.time_s[0] * shape[:-1] / shape[-1]).tolist(), *curve.time_s),
    )


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
