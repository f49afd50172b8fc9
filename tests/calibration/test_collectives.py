"""Fitting collectives."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from dse.calibration import FitOrigin, fit_collectives, held_out_sizes, notes_on_integers
from dse.calibration.measurements import CollectiveSamples
from dse.errors import CalibrationError
from dse.machine.platforms import load_platform

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
        nccl=np.full(count, ""),
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


def test_each_version_of_the_library_has_its_curve_the_newest_first():
    given = samples(16, ranks=(2, 2, 2))
    nccl = np.repeat(["2.9.1", "2.10.3", ""], 16)
    given = replace(given, nccl=nccl, time_s=given.time_s * np.repeat([2.0, 1.0, 3.0], 16))
    fitted = fit_collectives(given, ORIGIN)
    assert [one.nccl for one in fitted] == ["2.10.3", "2.9.1", ""]
    times = [float(one.curve.at(2**20)) for one in fitted]
    assert times == pytest.approx([times[0], 2 * times[0], 3 * times[0]], rel=0.01)


@pytest.mark.parametrize(("op", "share"), [("all_reduce", 1.0), ("all_gather", 2**0.1)])
def test_integers_do_not_speak_for_reductions_of_floats(op, share):
    """Switches add floats only: integers, here twice as slow, take another way."""
    given = samples(16, ranks=(2, 2))
    given = replace(
        given,
        op=np.full(32, op),
        dtype=np.repeat(["fp16", "int8"], 16),
        time_s=given.time_s * np.repeat([1.0, 2.0], 16),
    )
    (fitted,) = fit_collectives(given, ORIGIN)
    assert float(fitted.curve.at(2**20)) == pytest.approx(share * given.time_s[10], rel=0.01)
    assert [note[:22] for note in notes_on_integers(given)] == ["16 of 32 rows left out"][
        : op == "all_reduce"
    ]


def test_integers_speak_where_nothing_else_was_measured():
    given = samples(16, ranks=(2,))
    given = replace(given, dtype=np.full(16, "int8"))
    assert notes_on_integers(given) == ()
    (fitted,) = fit_collectives(given, ORIGIN)
    assert float(fitted.curve.at(2**20)) == pytest.approx(given.time_s[10], rel=0.01)


def test_too_few_sizes_are_refused():
    with pytest.raises(CalibrationError, match=r"all_reduce on 2 ranks: 7 different sizes"):
        fit_collectives(samples(7), ORIGIN)


@pytest.mark.parametrize(
    ("time_s", "refused"),
    [
        (lambda size: 5e-5 + size / 5e10, False),
        (lambda size: np.full(len(size), 5e-5), True),
        (lambda size: 2e-3 - size / 2e11, True),
        (lambda size: 1e-3 / np.sqrt(size), True),
    ],
)
def test_times_that_do_not_grow_with_the_size_are_refused(time_s, refused):
    given = samples(18, ranks=(8,))
    given = replace(given, time_s=time_s(given.size_bytes))
    link = load_platform("h100_sxm").cluster(8).link
    if not refused:
        assert len(fit_collectives(given, ORIGIN, link=link)) == 1
        return
    with pytest.raises(CalibrationError, match=r"row 1.*row 18"):
        fit_collectives(given, ORIGIN, link=link)


def test_short_messages_may_all_take_the_latency():
    given = samples(8, ranks=(8,))
    given = replace(given, size_bytes=given.size_bytes // 128, time_s=np.full(8, 2e-5))
    link = load_platform("h100_sxm").cluster(8).link
    assert len(fit_collectives(given, ORIGIN, link=link)) == 1
