"""Attention over jagged sequences with SiLU in place of the softmax (HSTU).

Over the positions that there are: time follows the sum of squared lengths, half of it if the
attention is causal. A kernel that keeps the scores on the chip reaches a share of the matrix rate,
which two published measurements of one such kernel, a causal one, give.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np

from dse.machine.fits import Estimate
from dse.machine.kernels._attention import FLASH_RATES, PUBLISHED_UNIT_RATE, FlashRate

if TYPE_CHECKING:
    from collections.abc import Mapping

    from numpy.typing import ArrayLike, NDArray

    from dse.machine import DeviceSpec, Precision

#: Sizes of such an attention. Positions are those of one sequence, on average.
SEQUENCE_ATTENTION_SIZES = (
    "sequences",
    "positions",
    "squared_positions",
    "heads",
    "dim",
    "value_dim",
    "causal",
    "backward",
)

#: Fitted on one measurement each: 15.72 ms forward and 65.55 ms backward for eight layers of 32
#: sequences of 4,099 positions and four heads of 256 on an H100 (NVIDIA/recsys-examples,
#: examples/hstu/training/benchmark/PERF_ANALYSIS.md). The effect of the width of heads is assumed
#: to be that of FlashAttention-2: SiLU needs an exponential for each score as well.
_HOPPER = FlashRate(
    forward=0.646, backward=0.387, half_width=FLASH_RATES["flash_attention_2"].half_width
)

#: On devices of the generations before the kernel is derived from FlashAttention-2 (the same
#: repository, corelib/hstu); its rates are assumed here, up to those of an A100.
_AMPERE = FLASH_RATES["flash_attention_2"]

#: Positions of a block of the causal mask; blocks on the diagonal are computed in full.
_BLOCK = 128

#: Standard deviation of the logarithm of actual over expected time, assumed: of other shapes on
#: the device that was measured, and for each e-fold of arithmetic per unit away from it.
_SPREAD = 0.12
_SPREAD_PER_EFOLD = 0.20
_MEASURED_UNIT_RATE = 989.4e12 / 132


def sequence_attention_estimate(
    device: DeviceSpec, sizes: Mapping[str, ArrayLike], precision: Precision
) -> Estimate:
    """Returns the duration of attention over a batch of jagged sequences.

    Args:
        device: The device.
        sizes: One value each for :data:`SEQUENCE_ATTENTION_SIZES`; they broadcast. `causal` is 1
            if a position sees those up to its own, 0 if it sees all. `backward` is 1 for the
            gradients, with the scores computed again, and 0 for the outputs.
        precision: Arithmetic.
    """
    values = np.broadcast_arrays(
        *(np.asarray(sizes[name], float) for name in SEQUENCE_ATTENTION_SIZES)
    )
    sequences, positions, squares, heads, dim, value_dim, causal, backward = values
    # A position sees those up to its own, and all of the block on the diagonal.
    up_to_own = 0.5 * (squares + np.minimum(_BLOCK, positions) * positions)
    pairs = sequences * heads * np.where(causal > 0, up_to_own, squares)
    # Scores and outputs forward; backward the scores again, and gradients of all four.
    products = np.where(backward > 0, 3.0 * dim + 2.0 * value_dim, dim + value_dim)
    unit_rate = device.peak.of(precision) / device.compute_units
    # The older kernel gains nothing from newer instructions, for which the other one was written.
    rate = device.compute_units * np.maximum(
        _share(_AMPERE, dim, backward) * min(unit_rate, PUBLISHED_UNIT_RATE),
        _share(_HOPPER, dim, backward) * unit_rate,
    )
    time_s = device.kernel_floor_s + 2.0 * pairs * products / rate
    efolds = math.log(unit_rate / _MEASURED_UNIT_RATE)
    spread = math.hypot(_SPREAD, _SPREAD_PER_EFOLD * efolds)
    some = pairs * products > 0
    return Estimate(np.where(some, time_s, 0.0), np.full(time_s.shape, spread))


def _share(
    rates: FlashRate, dim: NDArray[np.float64], backward: NDArray[np.float64]
) -> NDArray[np.float64]:
    """Returns the share of the matrix rate that a kernel reaches with heads of some width."""
    share = np.where(backward > 0, rates.backward, rates.forward)
    return np.asarray(share / (1.0 + rates.half_width / np.maximum(dim, 1.0)))
