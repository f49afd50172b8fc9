"""Fitting collectives: one curve over message size for each operation and number of ranks."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from dse.curves import CollectiveCalibration, fit_size_curve, held_out_errors, log_spread
from dse.errors import CalibrationError

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from dse.calibrate._origin import FitOrigin
    from dse.measurements import CollectiveSamples

#: Fewest different sizes of one curve: half of them are held out to check it.
_MIN_SIZES = 8


def held_out_sizes(size_bytes: NDArray[np.int64]) -> NDArray[np.bool_]:
    """Marks the points whose size is odd-indexed among the different sizes, ascending."""
    _, index = np.unique(size_bytes, return_inverse=True)
    return np.asarray(index.ravel() % 2 == 1)


def fit_collectives(
    samples: CollectiveSamples, origin: FitOrigin, fresh: NDArray[np.bool_] | None = None
) -> tuple[CollectiveCalibration, ...]:
    """Fits one curve for each operation and number of ranks.

    The error is that of a curve through every other size on the sizes between; what is returned
    goes through all sizes. With fresh points the curve goes through the others, and the error is
    that on the fresh ones. Data types at the same size are repeats: the wire does not know them.

    Args:
        samples: Measurements.
        origin: Where they come from.
        fresh: Points for checking only; shape `(points,)`.

    Raises:
        CalibrationError: Too few sizes of some operation.
    """
    fitted = []
    for op, ranks in sorted(set(zip(samples.op.tolist(), samples.ranks.tolist(), strict=True))):
        rows = (samples.op == op) & (samples.ranks == ranks)
        chosen = samples.select(rows)
        unseen = held_out_sizes(chosen.size_bytes) if fresh is None else fresh[rows]
        different = len(np.unique(chosen.size_bytes))
        if different < _MIN_SIZES:
            raise CalibrationError(
                f"{op} on {ranks} ranks: {different} different sizes are too few to fit and check "
                f"a curve; measure at least {_MIN_SIZES}, for example from 1 KiB to 512 MiB by "
                "factors of 2"
            )
        sizes = chosen.size_bytes.astype(np.float64)
        checked = fit_size_curve(sizes[~unseen], chosen.time_s[~unseen])
        predicted_s, measured_s = checked.at(sizes[unseen]), chosen.time_s[unseen]
        rule = "odd-indexed sizes" if fresh is None else "fresh points that the fit did not see"
        fitted.append(
            CollectiveCalibration(
                op=op,
                ranks=ranks,
                curve=fit_size_curve(sizes, chosen.time_s) if fresh is None else checked,
                spread=log_spread(predicted_s, measured_s),
                provenance=origin.provenance(
                    len(chosen) if fresh is None else int(np.count_nonzero(~unseen))
                ),
                held_out=held_out_errors(predicted_s, measured_s, rule),
            )
        )
    return tuple(fitted)
