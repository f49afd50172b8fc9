"""Fitting collectives."""

from __future__ import annotations

import numpy as np
import pytest

from dse.calibration import FitOrigin, fit_collectives, held_out_sizes
from dse.calibration.measurements import CollectiveSamples
from dse.errors import CalibrationError

ORIGIN = FitOrigin("made_up", "made-up device", "a law")


def samples(sizes: int, ranks: tuple[int, ...] = (2, 4)) -> CollectiveSamples:
    size_bytes = np.tile(2 ** np.arange(10, 10 + sizes), len(ranks))
    count = len(size_bytes)
    who = np.repeat(ranks, sizes)
    return CollectiveSamples(
        op=np.full(count, "all_reduce"),
        ranks=who,
        nodes=np.ones(count, dtype=np.int64),
        size_bytes=size_bytes,
        time_s=5e-6 * who + size_bytes / 50e9,
        source_rows=np.arange(count) + 1,
        dtype=np.full(count, ""),
    )


def test_every_other_size_is_held_out():
    marks = held_out_sizes(np.array([4, 1, 2, 8, 1]))
    np.testing.assert_array_equal(marks, [False, False, True, True, False])


def test_one_curve_for_each_operation_and_number_of_ranks():
    two, four = fit_collectives(samples(16), ORIGIN)
    assert (two.op, two.ranks, four.ranks) == ("all_reduce", 2, 4)
    assert two.held_out.points == 8
    assert two.held_out.mape < 0.02
    assert float(two.curve.at(2**20)) == pytest.approx(10e-6 + 2**20 / 50e9, rel=0.01)


def test_too_few_sizes_are_refused():
    with pytest.raises(CalibrationError, match=r"all_reduce on 2 ranks: 7 different sizes"):
        fit_collectives(samples(7), ORIGIN)
