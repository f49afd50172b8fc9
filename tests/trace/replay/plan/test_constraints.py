"""Values with which operators stay inside of their memory."""

from __future__ import annotations

import pytest

from dse.trace.replay.plan import ConstraintKind, InputConstraint

torch = pytest.importorskip("torch")

ROWS = InputConstraint(ConstraintKind.RANGE, 10)
#: Offsets of bags with ten lookups together, without and with the end of the last bag.
STARTS = InputConstraint(ConstraintKind.ASCENDING, 10)
WHOLE = InputConstraint(ConstraintKind.ASCENDING, 10, whole=True)
EXACT = InputConstraint(ConstraintKind.VALUES, values=(3, 5))


@pytest.mark.parametrize(
    ("constraint", "values", "inside"),
    [
        (ROWS, [0, 9, 4], True),
        (ROWS, [0, 10], False),
        (ROWS, [-1, 4], False),
        (STARTS, [0, 4, 4, 10], True),
        (STARTS, [0, 4, 11], False),
        (STARTS, [1, 4], False),
        (STARTS, [0, 6, 5, 10], False),
        (WHOLE, [0, 4, 10], True),
        (WHOLE, [0, 4, 9], False),
        (EXACT, [3, 5, 1], True),
        (EXACT, [5, 3], False),
        (ROWS, [], True),
    ],
)
def test_values_that_keep_an_operator_inside_of_its_memory(constraint, values, inside):
    assert constraint.holds_for(torch.tensor(values, dtype=torch.int64)) == inside


def test_numbers_that_are_no_places_have_no_limit():
    assert ROWS.holds_for(torch.tensor([-1.0, 1e9]))
