"""Validation of paired vectors."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from dse.errors import ConfigError

if TYPE_CHECKING:
    from numpy.typing import ArrayLike, NDArray


def checked(**vectors: ArrayLike) -> list[NDArray[np.float64]]:
    """Returns the vectors as arrays of equal length.

    Args:
        vectors: Vectors by the name used in messages.

    Raises:
        ConfigError: A vector is empty, has more than one axis or another length than the first,
            or holds a value that is not finite and positive.
    """
    arrays = {name: np.asarray(values, dtype=np.float64) for name, values in vectors.items()}
    first, reference = next(iter(arrays.items()))
    for name, values in arrays.items():
        if values.ndim != 1 or not values.size:
            raise ConfigError(
                f"{name} values must be a list of at least one number, not an array of shape "
                f"{values.shape}"
            )
        if len(values) != len(reference):
            raise ConfigError(
                f"{len(values)} {name} values do not match {len(reference)} {first} ones; give "
                "one of each for every candidate"
            )
        wrong = ~(np.isfinite(values) & (values > 0))
        if wrong.any():
            at = int(np.flatnonzero(wrong)[0])
            raise ConfigError(
                f"{name} value {at} is {values[at]:g}; times and rates are finite and above 0, "
                "so leave out candidates that have none"
            )
    return list(arrays.values())
