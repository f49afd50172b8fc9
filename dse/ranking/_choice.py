"""Cost of choosing the predicted best candidate."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dse.errors import ConfigError
from dse.ranking._values import checked

if TYPE_CHECKING:
    from numpy.typing import ArrayLike


def top1_regret(
    measured: ArrayLike, predicted: ArrayLike, *, larger_is_better: bool = False
) -> float:
    """Returns how much slower the predicted best candidate is than the measured best.

    If several candidates are predicted equally good, the worst of them counts.

    Args:
        measured: Times or rates of the candidates, shape `(n,)`, positive.
        predicted: The same quantity of the same candidates by the model, shape `(n,)`.
        larger_is_better: True for rates such as samples per second, false for times and costs.

    Returns:
        Time of the predicted best over the time of the measured best, minus 1 (for rates the
        inverse ratio, minus 1); 0 if they are the same.

    Raises:
        ConfigError: The vectors differ in length, are empty, or hold values that are not finite
            and positive.
    """
    actual, expected = checked(measured=measured, predicted=predicted)
    if larger_is_better:
        actual, expected = 1 / actual, 1 / expected
    chosen = actual[expected == expected.min()].max()
    return float(chosen / actual.min() - 1)


def success_within(
    measured: ArrayLike,
    predicted: ArrayLike,
    *,
    tolerance: float = 0.10,
    larger_is_better: bool = False,
) -> bool:
    """Returns whether the predicted best candidate is the measured best or close to it.

    The criterion of the published sharding experiment: the choice among the plans of a task is a
    success when it is the fastest, or within 10 % of the fastest (Lin et al., Towards Universal
    Performance Modeling for Machine Learning Training on Multi-GPU Platforms, TPDS 2024).

    Args:
        measured: Times or rates of the candidates, shape `(n,)`, positive.
        predicted: The same quantity of the same candidates by the model, shape `(n,)`.
        tolerance: Largest :func:`top1_regret` that still counts as a success.
        larger_is_better: True for rates such as samples per second, false for times and costs.

    Raises:
        ConfigError: The vectors differ in length, are empty, or hold values that are not finite
            and positive; or the tolerance is below 0.
    """
    if not tolerance >= 0:
        raise ConfigError(f"the tolerance is {tolerance:g}; use 0 or more, such as 0.1 for 10 %")
    return top1_regret(measured, predicted, larger_is_better=larger_is_better) <= tolerance
