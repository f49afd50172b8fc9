"""Time over message size: latency and bandwidth, bent where measurements bend.

Collective libraries switch protocols and algorithms with the size, which one latency and one
bandwidth cannot follow (14 % mean error on measured curves, against 4 % here). The residuals of
that line in log-log space are interpolated by a monotone cubic (PCHIP), through points made
monotone first: a smaller message never takes longer, so sizes whose times fall are measurements of
one time, as repeats are (isotonic regression). Noise of timings is one-sided, others only ever add
time; that is why repeats count by a time just below their median.

Where the sizes are known at which the library changes its protocol, each protocol has a curve of
its own, and the time may jump between them. From the last measured size to the switch a byte takes
as long as between the last two, and no less than the protocol's rate allows; a protocol of which
one size was measured goes on to the next measured one as if there were no switch. Libraries use
fewer channels for short messages, so the first protocol's time hardly grows until all are in use.

Large messages go through in pieces, one after the other: beyond the measured sizes the time grows
by a constant rate, that of the last measured ones,

    t(S) = t(S_last) + (S − S_last) / rate

so the bandwidth still rises where it does at the end of the measurements, and tends to the rate.
From sizes up to 64 MiB this meets 128–512 MiB within 4–15 %, a constant bandwidth within 13–23 %.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property, partial
import math
from typing import TYPE_CHECKING

import numpy as np

from dse.errors import CalibrationError

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import ArrayLike, NDArray
    from scipy.interpolate import PchipInterpolator

    _Base = Callable[[NDArray[np.float64]], NDArray[np.float64]]

#: Fewest different sizes that distinguish a curve from a line.
MIN_SIZES = 4

#: Points between two measured sizes on which the interpolation is evaluated.
_POINTS_BETWEEN = 3

#: Largest distance of the curve from the interpolation: knots that it does not need are left out.
#: Repeated measurements differ by five to ten times as much.
_LEAST_BEND = 0.005

#: The rate of large messages is that of sizes from this share of the largest on.
_TAIL_SHARE = 1 / 4

#: Share of the time of the largest message that its bytes must take for the rate to be known.
_LEAST_BYTES_SHARE = 0.5

#: How far below the median the time of repeats lies, in places of their order: of two, which may
#: both be late, near the earlier one. Chosen on NCCL 2.26 to 2.29, where 1/4 to 1/2 are alike.
_BELOW_MEDIAN = 0.4

#: Residual of the logarithm from which on a point counts less in the fit of the line.
_OUTLIER = 0.05


#: Half the width of a jump between protocols, as a share of the size.
_JUMP = 1e-3


@dataclass(frozen=True, slots=True)
class Protocols:
    """Protocols of a library that follow one another as messages grow.

    Attributes:
        bytes_per_s: Bytes of the message that each one moves in a second at most.
        switch_bytes: Sizes from which the next one is used, ascending; one fewer than protocols.
        certain: Whether the library is sure to switch there; otherwise a switch counts only where
            the measurements show a step.
        flat_bytes: Size from which all channels are used; below it the time hardly grows. Zero
            where that is not known.
    """

    bytes_per_s: tuple[float, ...]
    switch_bytes: tuple[float, ...] = ()
    certain: bool = True
    flat_bytes: float = 0.0


@dataclass(frozen=True)
class SizeCurve:
    """Seconds over message size, never falling.

    Attributes:
        latency_s: Time that messages below the smallest knot tend to.
        bandwidth_bytes_per_s: Rate of the bytes of a message beyond the largest knot.
        size_bytes: Sizes of the curve's knots, ascending; shape `(knots,)`.
        time_s: Their times, not descending; shape `(knots,)`.
    """

    latency_s: float
    bandwidth_bytes_per_s: float
    size_bytes: tuple[float, ...] = field(repr=False)
    time_s: tuple[float, ...] = field(repr=False)

    def at(self, nbytes: ArrayLike) -> NDArray[np.float64]:
        """Returns seconds for message sizes of any shape; they must be positive.

        Below its range the curve keeps its ratio to the line of latency and rate; above it, every
        further byte takes the time of one at the rate.
        """
        size = np.asarray(nbytes, dtype=np.float64)
        inside = np.clip(size, self.size_bytes[0], self.size_bytes[-1])
        time_s = np.exp(self._log_time(np.log(inside)))
        below = self.line_s(np.minimum(size, inside)) / self.line_s(inside)
        further_s = np.maximum(size - self.size_bytes[-1], 0.0) / self.bandwidth_bytes_per_s
        return np.asarray(time_s * below + further_s, dtype=np.float64)

    def line_s(self, size: NDArray[np.float64]) -> NDArray[np.float64]:
        """Returns the time of messages by latency and rate alone."""
        return self.latency_s + size / self.bandwidth_bytes_per_s

    @cached_property
    def _log_time(self) -> PchipInterpolator:
        from scipy.interpolate import PchipInterpolator

        return PchipInterpolator(np.log(self.size_bytes), np.log(self.time_s))


def fit_size_curve(
    size_bytes: NDArray[np.float64],
    time_s: NDArray[np.float64],
    protocols: Protocols | None = None,
) -> SizeCurve:
    """Fits a curve to measurements.

    Args:
        size_bytes: Message sizes, positive; repeats count by a time just below their median.
        time_s: Their times, positive.
        protocols: What the library uses at which size; by default the same at all.

    Raises:
        CalibrationError: Fewer than :data:`MIN_SIZES` different sizes.
    """
    sizes, monotone = _never_falling(size_bytes, np.log(time_s))
    if len(sizes) < MIN_SIZES:
        raise CalibrationError(
            f"{len(sizes)} different message sizes are too few for a curve; measure at least "
            f"{MIN_SIZES}"
        )
    line = _fit_line(np.log(sizes), monotone)
    points, log_time = _points_of_parts(sizes, monotone, line, protocols or Protocols((math.inf,)))
    knots = _needed_knots(points, log_time)
    return SizeCurve(
        latency_s=math.exp(line[0]),
        bandwidth_bytes_per_s=_rate_of_large(sizes, np.exp(monotone), math.exp(line[1])),
        size_bytes=tuple(float(size) for size in np.exp(points[knots])),
        time_s=tuple(float(seconds) for seconds in np.exp(log_time[knots])),
    )


def _points_of_parts(
    sizes: NDArray[np.float64],
    log_time: NDArray[np.float64],
    line: tuple[float, float],
    protocols: Protocols,
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Logarithms of sizes, measured and between, and of their times; a part for each protocol."""
    time_s = np.exp(log_time)
    switches, rates = _switches_in_use(sizes, time_s, protocols)
    part = np.searchsorted(switches, sizes, side="right")
    points: list[NDArray[np.float64]] = []
    log_times: list[NDArray[np.float64]] = []
    for number in np.unique(part).tolist():
        own = np.flatnonzero(part == number)
        first, last = int(own[0]), int(own[-1])
        slope_below, slope_above = _slopes(sizes, time_s, first, last, 1 / rates[number])
        if first > 0:
            size = _up_to(sizes[first], switches[number - 1], 1 + _JUMP)[::-1]
            time = time_s[first] - (sizes[first] - size) * slope_below
            points.append(np.log(size))
            log_times.append(np.log(np.maximum(time, time_s[first - 1])))
        log_size = np.log(sizes[own])
        base = partial(_log_line, line)
        if sizes[first] < protocols.flat_bytes:
            base = partial(_log_flat_then_line, time_s[own], sizes[own], protocols)
        points.append(_between(log_size, protocols.flat_bytes))
        log_times.append(_interpolated(log_size, log_time[own], base, points[-1]))
        if last + 1 < len(sizes):
            size = _up_to(sizes[last], switches[number], 1 - _JUMP)
            time = time_s[last] + (size - sizes[last]) * slope_above
            points.append(np.log(size))
            log_times.append(np.log(np.minimum(time, time_s[last + 1])))
    # What is continued from below may lie above what is continued from above.
    return np.concatenate(points), np.maximum.accumulate(np.concatenate(log_times))


def _switches_in_use(
    sizes: NDArray[np.float64], time_s: NDArray[np.float64], protocols: Protocols
) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Sizes where the protocol changes, and the rates of the protocols before and after them.

    A switch that is not certain shows in a time that rises less across it than on both sides.
    """
    rates, switches = [protocols.bytes_per_s[0]], []
    for switch, rate in zip(protocols.switch_bytes, protocols.bytes_per_s[1:], strict=True):
        if not protocols.certain:
            after = int(np.searchsorted(sizes, switch, side="right"))
            near = slice(after - 2, after + 2)
            if after < 2 or after + 2 > len(sizes):
                continue
            before_it, across, beyond = np.diff(time_s[near]) / np.diff(sizes[near])
            if across >= min(before_it, beyond):
                continue
        switches.append(switch)
        rates.append(rate)
    return tuple(switches), tuple(rates)


def _slopes(
    sizes: NDArray[np.float64], time_s: NDArray[np.float64], first: int, last: int, least: float
) -> tuple[float, float]:
    """Seconds a byte below and above the measured sizes of a protocol, at least those of its rate.

    Of one measured size nothing is known but the next protocol's smallest, which cannot be far off
    the line: at the switch the library takes both for equally fast.
    """
    rise = np.diff(time_s) / np.diff(sizes)
    if first == last:
        alone = float(rise[first]) if first < len(rise) else least
        return alone, alone
    return max(float(rise[first]), least), max(float(rise[last - 1]), least)


def _up_to(size: float, switch: float, jump: float) -> NDArray[np.float64]:
    """Sizes from a measured one, which is left out, to the jump at a switch.

    The last two lie as near to each other as both sides of the jump, whose slope would otherwise
    bend the cubic before it.
    """
    if (switch * jump**2 - size) * (switch - size) <= 0:
        return np.empty(0)
    return np.append(np.geomspace(size, switch * jump**2, _POINTS_BETWEEN + 2)[1:], switch * jump)


def _between(log_size: NDArray[np.float64], flat_bytes: float) -> NDArray[np.float64]:
    """Logarithms of measured sizes and of some between them, with that of the bend."""
    steps = np.arange(_POINTS_BETWEEN + 1) / (_POINTS_BETWEEN + 1)
    between = log_size[:-1, None] + steps * np.diff(log_size)[:, None]
    points = np.append(between.ravel(), log_size[-1])
    if not math.exp(log_size[0]) < flat_bytes < math.exp(log_size[-1]):
        return points
    return np.unique(np.append(points, math.log(flat_bytes)))


def _interpolated(
    log_size: NDArray[np.float64],
    log_time: NDArray[np.float64],
    base: _Base,
    at: NDArray[np.float64],
) -> NDArray[np.float64]:
    """Times between measured ones: a rough model, and its residuals by a monotone cubic."""
    from scipy.interpolate import PchipInterpolator

    residual = log_time - base(log_size)
    if len(residual) == 1:
        return log_time
    between = base(at) + np.asarray(PchipInterpolator(log_size, residual)(at))
    # The residual may fall faster than the model rises; the sum of both must not, nor must it pass
    # the next measured time.
    following = log_time[np.searchsorted(log_size, at)]
    return np.minimum(np.maximum.accumulate(between), following)


def _log_flat_then_line(
    time_s: NDArray[np.float64],
    sizes: NDArray[np.float64],
    protocols: Protocols,
    log_size: NDArray[np.float64],
) -> NDArray[np.float64]:
    """Logarithm of the short messages' time, and of the rate's from the bend on."""
    short = np.searchsorted(sizes, protocols.flat_bytes, side="right")
    latency_s = np.median(time_s[: max(short, 1)])
    more_bytes = np.maximum(np.exp(log_size) - protocols.flat_bytes, 0.0)
    return np.asarray(np.log(latency_s + more_bytes / protocols.bytes_per_s[0]), dtype=np.float64)


def _never_falling(
    size_bytes: NDArray[np.float64], log_time: NDArray[np.float64]
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Different sizes, ascending, and the time that counts of each one; none above a later one.

    Neighbours whose times fall are pooled until none do (pool adjacent violators).
    """
    sizes, index = np.unique(size_bytes, return_inverse=True)
    order = np.argsort(index, kind="stable")
    repeats = np.split(log_time[order], np.cumsum(np.bincount(index))[:-1])
    pools: list[tuple[int, NDArray[np.float64], float]] = []
    for times in repeats:
        count, pooled, time = 1, times, _below_median(times)
        while pools and pools[-1][2] > time:
            earlier_count, earlier, _ = pools.pop()
            count, pooled = earlier_count + count, np.concatenate([earlier, pooled])
            time = _below_median(pooled)
        pools.append((count, pooled, time))
    return sizes, np.repeat([time for *_, time in pools], [count for count, *_ in pools])


def _below_median(log_times: NDArray[np.float64]) -> float:
    """The time that counts of measurements of one time."""
    place = max((len(log_times) - 1) / 2 - _BELOW_MEDIAN, 0.0)
    return float(np.interp(place, np.arange(len(log_times)), np.sort(log_times)))


def _needed_knots(x: NDArray[np.float64], y: NDArray[np.float64]) -> NDArray[np.int64]:
    """Places of the points through which a monotone cubic meets all of them.

    Those of jumps, then the worst first.
    """
    from scipy.interpolate import PchipInterpolator

    jumps = np.flatnonzero(np.diff(x) < 3 * _JUMP)
    chosen = np.unique(np.concatenate([jumps, jumps + 1, [0, len(x) - 1]]))
    while True:
        missed = np.abs(PchipInterpolator(x[chosen], y[chosen])(x) - y)
        worst = int(np.argmax(missed))
        if missed[worst] <= _LEAST_BEND:
            return chosen
        chosen = np.sort(np.append(chosen, worst))


def _rate_of_large(
    sizes: NDArray[np.float64], time_s: NDArray[np.float64], of_line: float
) -> float:
    """Rate of the bytes of large messages: one latency and one rate through the last sizes.

    It is never below the bandwidth of the largest message. Where the latency still takes most of
    the time, the rate of the line over all sizes is the better known one.
    """
    last = sizes >= _TAIL_SHARE * sizes[-1] * (1 - 1e-9)
    size, time = sizes[last], time_s[last]
    whole = sizes[-1] / time_s[-1]
    if len(size) < 2:
        return float(max(of_line, whole))
    # Relative errors count: (latency + size / rate) / time is fitted to one.
    unknowns = np.stack([1 / time, size / time], axis=1)
    (_, inverse), *_ = np.linalg.lstsq(unknowns, np.ones(len(size)), rcond=None)
    if inverse * sizes[-1] < _LEAST_BYTES_SHARE * time_s[-1]:
        return float(max(of_line, whole))
    return float(max(1 / inverse, whole))


def _fit_line(log_size: NDArray[np.float64], log_time: NDArray[np.float64]) -> tuple[float, float]:
    """Logarithms of latency and bandwidth, robust against the bends."""
    from scipy.optimize import least_squares

    def misses(parameters: NDArray[np.float64]) -> NDArray[np.float64]:
        return _log_line((parameters[0], parameters[1]), log_size) - log_time

    start = np.array([log_time[0], log_size[-1] - log_time[-1]])
    solved = least_squares(misses, start, loss="soft_l1", f_scale=_OUTLIER)
    return float(solved.x[0]), float(solved.x[1])


def _log_line(line: tuple[float, float], log_size: NDArray[np.float64]) -> NDArray[np.float64]:
    return np.asarray(np.logaddexp(line[0], log_size - line[1]), dtype=np.float64)
