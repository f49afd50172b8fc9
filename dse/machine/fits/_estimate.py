"""Durations with their uncertainty."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray


@dataclass(frozen=True, slots=True)
class Estimate:
    """Durations of operators or collectives of one kind.

    Attributes:
        time_s: Expected seconds, any shape.
        spread: Standard deviation of the logarithm of actual over expected time, same shape.
    """

    time_s: NDArray[np.float64]
    spread: NDArray[np.float64]
