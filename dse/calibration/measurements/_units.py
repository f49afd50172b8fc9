"""Plausibility of units: measured times against the shortest possible ones."""

from __future__ import annotations

import logging
import math
from typing import TYPE_CHECKING

import numpy as np

from dse.calibration.measurements._names import TIME_UNITS
from dse.errors import CalibrationError

if TYPE_CHECKING:
    from numpy.typing import ArrayLike

    from dse.calibration.measurements._samples import Samples

_LOGGER = logging.getLogger("dse.calibration")

#: Medians of measured over possible time that a right unit cannot have.
_MOST_RATIO = 300.0
_LEAST_RATIO = 0.003

#: Rows below this share of the possible time are faster than the hardware.
_TOO_FAST = 0.5


def check_units(
    samples: Samples,
    reference_s: ArrayLike,
    *,
    most_ratio: float = _MOST_RATIO,
    fast_share: float | None = 0.01,
) -> None:
    """Compares measured times with the shortest physically possible ones.

    Rows that are too fast, but few, are logged as a warning.

    Args:
        samples: Measurements.
        reference_s: Shortest possible time of each row in seconds; shape `(points,)`.
        most_ratio: Median of measured over possible time from which on the unit is wrong.
        fast_share: Share of rows that may be faster than half the possible time; None where
            such rows are not impossible.

    Raises:
        CalibrationError: The unit is probably wrong, or too many rows are impossible.
        ValueError: The reference does not have one positive number a row.
    """
    reference = np.asarray(reference_s, dtype=np.float64)
    if reference.shape != samples.time_s.shape or not np.all(
        np.isfinite(reference) & (reference > 0)
    ):
        raise ValueError("reference_s needs one positive, finite number for each sample")
    ratio = samples.time_s / reference
    median = float(np.median(ratio))
    if median >= most_ratio or median <= _LEAST_RATIO:
        raise CalibrationError(
            f"{_file(samples)}the median of measured over shortest possible time is {median:.3g}; "
            f"plausible is {_LEAST_RATIO:g} to {most_ratio:g}; {_likely(samples, median)}"
        )
    fast = np.flatnonzero(ratio < _TOO_FAST)
    if fast_share is None or not len(fast):
        return
    first = int(fast[0])
    place = samples.origin.place(int(samples.source_rows[first]))
    what = (
        f"{len(fast)} of {len(samples)} times are below half of what the hardware can do, first "
        f"{place}: {samples.time_s[first]:.3g} s where {reference[first]:.3g} s are possible"
    )
    if len(fast) > fast_share * len(samples):
        raise CalibrationError(
            f"{_file(samples)}{what}; {fast_share:.0%} may be: "
            "check the device, the precision and the sizes"
        )
    _LOGGER.warning("%s%s", _file(samples), what)


def _file(samples: Samples) -> str:
    return f"{samples.origin.file}: " if samples.origin.file else ""


def _likely(samples: Samples, median: float) -> str:
    """Returns a half sentence: the unit in which the times would be plausible."""
    # Measured times are a few times the possible ones, hence the 3.
    steps = round(math.log10(median / 3) / 3) or (1 if median > 1 else -1)
    names = list(TIME_UNITS)
    read_as = samples.origin.time_unit
    if read_as is not None:
        at = names.index(read_as) + steps
        if 0 <= at < len(names):
            likely = {
                "s": "seconds",
                "ms": "milliseconds",
                "us": "microseconds",
                "ns": "nanoseconds",
            }
            name = names[at]
            return (
                f"read as {read_as}, the times look like {likely[name]}; pass --time-unit {name}"
            )
    wrong = "long" if median > 1 else "short"
    return f"the times are about {1000.0 ** abs(steps):.0e} times too {wrong}: check their unit"
