"""Fitting collectives: one curve over sizes for each operation, number of ranks and version.

Data types at the same size are repeats, as the wire does not know them, but for reductions:
switches add floating-point values only, so integers take another and slower way. Training reduces
floating-point values; where both were measured, integers are left out.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from dse.calibration.measurements import check_units
from dse.errors import CalibrationError
from dse.machine.collectives import CollectiveOp, inside_time_s, nccl_protocols
from dse.machine.fits import (
    CollectiveCalibration,
    fit_size_curve,
    held_out_errors,
    log_spread,
    version_parts,
)

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from dse.calibration._origin import FitOrigin
    from dse.calibration.measurements import CollectiveSamples
    from dse.machine import Cluster, LinkSpec

#: Median of measured time over the link's own from which on the unit is wrong; a link may well be
#: ten times slower than its data sheet, not a hundred times.
_FAR_OFF = 100.0

#: Where a link would take so many times as long for the largest sizes of a curve as for the
#: smallest, bytes take time; from a rise of so little, or a fall of so much, they cannot have.
_RISE_OF_LINK = 10.0
_LEAST_RISE = 1.25
_MOST_FALL = 0.8

#: Fewest different sizes of one curve: half of them are held out to check it.
_MIN_SIZES = 8


def _times_of_link(link: LinkSpec, samples: CollectiveSamples) -> NDArray[np.float64]:
    bare = replace(link, calibrations=())
    expected_s = np.empty(len(samples))
    for op, ranks in set(zip(samples.op.tolist(), samples.ranks.tolist(), strict=True)):
        rows = (samples.op == op) & (samples.ranks == ranks)
        expected_s[rows] = inside_time_s(
            bare, CollectiveOp(op), samples.size_bytes[rows].astype(np.float64), ranks
        )
    return expected_s


def held_out_sizes(size_bytes: NDArray[np.int64]) -> NDArray[np.bool_]:
    """Marks the points whose size is odd-indexed among the different sizes, ascending."""
    _, index = np.unique(size_bytes, return_inverse=True)
    return np.asarray(index.ravel() % 2 == 1)


def check_one_domain(samples: CollectiveSamples, cluster: Cluster) -> None:
    """Refuses collectives over several nodes: their times say nothing of the link inside one.

    Args:
        samples: Measurements.
        cluster: Machine whose link was measured; its number of ranks does not matter.

    Raises:
        CalibrationError: Some rows have more hosts or ranks than the link joins.
    """
    most = cluster.devices_per_node * cluster.nodes_per_pod
    beyond = (samples.nodes > cluster.nodes_per_pod) | (samples.ranks > most)
    if beyond.any():
        first = int(np.argmax(beyond))
        place = samples.origin.place(int(samples.source_rows[first]))
        hosts = f" on {samples.nodes[first]} hosts" if samples.nodes[first] else ""
        raise CalibrationError(
            f"{place}: {samples.ranks[first]} ranks{hosts} ({beyond.sum()} of {len(samples)} "
            f"rows); a link of {cluster.name} joins {most} devices of {cluster.nodes_per_pod} "
            "nodes; fit collectives over several nodes with `dse fit network`"
        )


def fit_collectives(
    samples: CollectiveSamples,
    origin: FitOrigin,
    held_out: NDArray[np.bool_] | None = None,
    *,
    link: LinkSpec | None = None,
) -> tuple[CollectiveCalibration, ...]:
    """Fits one curve for each operation, number of ranks and version of the library.

    The error is that of a curve through every other size on the sizes between; what is returned
    goes through all sizes. With held-out points the curve goes through the others, and the
    error is that on the held-out ones.

    Args:
        samples: Measurements.
        origin: Where they come from.
        held_out: Points for checking only; shape `(points,)`.
        link: Interconnect that was measured: times are compared with its own, without
            calibrations, and refused when their unit must be another one; curves jump where
            NCCL changes its protocol on it.

    Raises:
        CalibrationError: Times that cannot be seconds on that link, that do not grow with the
            size, or too few sizes of some operation.
    """
    if link is not None:
        # Half a link's time is fast, not impossible: switches reduce, and data sheets round.
        expected_s = _times_of_link(link, samples)
        check_units(samples, expected_s, fast_share=None, most_ratio=_FAR_OFF)
    unused = _unused_integers(samples)
    fitted = []
    for op, ranks, nccl in sorted(set(_keys(samples)), key=_order):
        rows = (samples.op == op) & (samples.ranks == ranks) & (samples.nccl == nccl)
        rows &= ~unused
        chosen = samples.select(rows)
        unseen = held_out_sizes(chosen.size_bytes) if held_out is None else held_out[rows]
        different = len(np.unique(chosen.size_bytes))
        if different < _MIN_SIZES:
            raise CalibrationError(
                f"{op} on {ranks} ranks: {different} different sizes are too few to fit and check "
                f"a curve; measure at least {_MIN_SIZES}, for example from 1 KiB to 512 MiB by "
                "factors of 2"
            )
        if link is not None:
            _check_growth(chosen, expected_s[rows])
        sizes = chosen.size_bytes.astype(np.float64)
        protocols = None if link is None else nccl_protocols(link, CollectiveOp(op), ranks)
        checked = fit_size_curve(sizes[~unseen], chosen.time_s[~unseen], protocols)
        predicted_s, measured_s = checked.at(sizes[unseen]), chosen.time_s[unseen]
        rule = "odd-indexed sizes" if held_out is None else "held-out points of the session"
        fitted.append(
            CollectiveCalibration(
                op=op,
                ranks=ranks,
                curve=checked
                if held_out is not None
                else fit_size_curve(sizes, chosen.time_s, protocols),
                spread=log_spread(predicted_s, measured_s),
                provenance=origin.provenance(
                    len(chosen) if held_out is None else int(np.count_nonzero(~unseen))
                ),
                held_out=held_out_errors(predicted_s, measured_s, rule),
                nccl=nccl,
            )
        )
    return tuple(fitted)


def _keys(samples: CollectiveSamples) -> list[tuple[str, int, str]]:
    columns = (samples.op.tolist(), samples.ranks.tolist(), samples.nccl.tolist())
    return list(zip(*columns, strict=True))


def _order(key: tuple[str, int, str]) -> tuple[str, int, tuple[int, ...]]:
    """By operation and ranks, the newest version first."""
    op, ranks, nccl = key
    return op, ranks, tuple(-part for part in version_parts(nccl)) or (0,)


def _check_growth(curve: CollectiveSamples, expected_s: NDArray[np.float64]) -> None:
    """Refuses times of one operation that fall with the size, or stay where bytes take time.

    Args:
        curve: Its measurements on one number of ranks.
        expected_s: Times of the link; shape `(points,)`.

    Raises:
        CalibrationError: The median time of the largest quarter of sizes is not above that of the
            smallest.
    """
    few, many = np.quantile(np.unique(curve.size_bytes), (0.25, 0.75))
    small, large = curve.size_bytes <= few, curve.size_bytes >= many
    rise, of_link = (
        float(np.median(time_s[large]) / np.median(time_s[small]))
        for time_s in (curve.time_s, expected_s)
    )
    if rise >= _LEAST_RISE or (of_link < _RISE_OF_LINK and rise > _MOST_FALL):
        return
    first, last = int(np.argmin(curve.size_bytes)), int(np.argmax(curve.size_bytes))
    here, there = (curve.origin.place(int(curve.source_rows[at])) for at in (first, last))
    raise CalibrationError(
        f"{here}: times of {curve.op[0]} on {curve.ranks[0]} ranks do not grow with the size: "
        f"{curve.time_s[first]:.3g} s for {curve.size_bytes[first]} bytes here, "
        f"{curve.time_s[last]:.3g} s for {curve.size_bytes[last]} bytes at {there}; the largest "
        f"quarter of sizes takes {rise:.3g} times as long as the smallest, by the link's data "
        f"{of_link:.3g} times; check the columns, and name others with --column size=NAME and "
        "--column time=NAME"
    )


def notes_on_integers(samples: CollectiveSamples) -> tuple[str, ...]:
    """Returns what :func:`fit_collectives` leaves out of a table, as a sentence if anything."""
    unused = _unused_integers(samples)
    if not unused.any():
        return ()
    types = ", ".join(np.unique(samples.dtype[unused]).tolist())
    first = samples.origin.place(int(samples.source_rows[int(np.argmax(unused))]))
    return (
        f"{int(unused.sum())} of {len(samples)} rows left out, first {first}: reductions of "
        f"{types}, which switches do not add; training reduces floating-point values, and those "
        "were measured too",
    )


def _unused_integers(samples: CollectiveSamples) -> NDArray[np.bool_]:
    """Marks reductions of integers where those of floating-point values were measured, too."""
    integers = np.char.startswith(samples.dtype, "int") | np.char.startswith(samples.dtype, "uint")
    reduces = np.isin(samples.op, (CollectiveOp.ALL_REDUCE, CollectiveOp.REDUCE_SCATTER))
    keys = _keys(samples)
    floats = {key for key, integer in zip(keys, integers.tolist(), strict=True) if not integer}
    return np.asarray(integers & reduces & np.array([key in floats for key in keys]))
