"""Points that a fit is checked on: those of a quarter of the groups of like points."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from dse.errors import CalibrationError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from numpy.typing import NDArray

#: Share of the groups that is held out.
_SHARE = 0.25

#: Fewest groups: with fewer, that share would be none at all.
_LEAST = 4


def held_out_groups(
    what: str, sizes: Mapping[str, NDArray[np.float64]], by: Sequence[str], seed: int = 0
) -> NDArray[np.bool_]:
    """Returns the mask of the points that a fit does not see: whole groups of them.

    Args:
        what: What was measured.
        sizes: Sizes of the points by name.
        by: Sizes that points of a group share: a fit knows all of them or none.
        seed: Chooses the groups.

    Raises:
        CalibrationError: There are too few groups.
    """
    # Sorted, so that the split does not depend on the order of the file.
    groups, group = np.unique(
        np.stack([sizes[name] for name in by], axis=1), axis=0, return_inverse=True
    )
    if len(groups) < _LEAST:
        raise CalibrationError(
            f"{what}: {len(groups)} different ({', '.join(by)}), at least {_LEAST} are needed to "
            f"fit on some and check on others; measure more {' and '.join(by)}"
        )
    left_out = np.zeros(len(groups), dtype=bool)
    order = np.random.default_rng(seed).permutation(len(groups))
    left_out[order[: int(len(groups) * _SHARE)]] = True
    return np.asarray(left_out[group.ravel()])
