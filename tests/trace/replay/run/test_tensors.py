"""What tensors from outside the range are filled with."""

from __future__ import annotations

import pytest

from dse.indices import Uniform
from dse.trace.replay.plan import ConstraintKind, InputConstraint
from dse.trace.replay.run._memory import MemoryBudget
from dse.trace.replay.run._tensors import TensorFactory

torch = pytest.importorskip("torch")

FACTORY = TensorFactory(torch, "cpu", Uniform(), 0, MemoryBudget(0, "cpu"))


@pytest.mark.parametrize("count", [2, 1000, 2**23 + 5])
@pytest.mark.parametrize("positive", [False, True])
def test_tensors_of_any_size_are_filled_to_their_ends_with_small_numbers(count, positive):
    constraint = InputConstraint(ConstraintKind.POSITIVE) if positive else None
    tensor = torch.full((count,), torch.nan)
    FACTORY.fill(tensor, constraint, count)
    assert 0.0 < float(tensor.abs().max()) < 0.2
    assert bool(tensor[-5:].any())
    assert bool((tensor > 0).all()) == positive


@pytest.mark.parametrize(
    ("constraint", "values"),
    [
        (None, [1, 1, 1, 1, 1]),
        (InputConstraint(ConstraintKind.VALUES, values=(3, 5)), [3, 5, 3, 5, 3]),
        # Offsets of four bags with ten lookups, and where the last one ends.
        (InputConstraint(ConstraintKind.ASCENDING, 10, whole=True), [0, 2, 5, 7, 10]),
    ],
)
def test_whole_numbers_are_what_their_operator_needs(constraint, values):
    tensor = torch.full((5,), -7)
    FACTORY.fill(tensor, constraint, 5)
    assert tensor.tolist() == values
