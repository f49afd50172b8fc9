"""What the page shows of candidates: points, time lines, plans and figures side by side."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest

from dse.graph import Stream
from dse.report import build_view, render_report
from dse.report.page._details import _runs
from dse.report.page._front import front_view
from dse.report.page._timeline import (
    TICKS,
    BarKind,
    _Bar,
    _chosen_ranks,
    _drawn,
    _joined,
    _Schedule,
    _spread_out,
    timeline_view,
)
from dse.search import RunOptions, TrialStatus, ValidationMode, run
from dse.search.analyse import decide
from tests.report.test_report import OBJECTIVES, make_record, make_study
from tests.search.revise.studies import GPT_SPACE, SPACE, study_of
from tests.search.traces import write_job
from tests.validation.studies import VALIDATION


@pytest.fixture(scope="module", params=[SPACE, GPT_SPACE], ids=["dlrm", "gpt"])
def result(request):
    return study_of(request.param).result


@pytest.fixture(scope="module")
def view(result):
    return build_view(result)


def schedule(tasks, *, ranks=1):
    """A schedule of one stream a rank; tasks are `(rank, start_s, end_s, kind)`."""
    rank, start_s, end_s, kind = (np.array(column) for column in zip(*tasks, strict=True))
    return _Schedule(
        streams=tuple(Stream(number, "compute") for number in range(ranks)),
        names=tuple(f"t{number}" for number in range(len(tasks))),
        stream=rank.astype(np.int32),
        kind=kind.astype(np.int64),
        alike=False,
        start_s=start_s[:, None].astype(float),
        end_s=end_s[:, None].astype(float),
    )


# Time lines ---------------------------------------------------------------------------------


def test_a_time_line_is_the_predicted_iteration(result, view):
    found = {one.number: one for one in view.timeline.candidates}
    assert view.timeline.note == ""
    assert set(found) == {record.number for record in result.front}
    for record in result.front:
        one = found[record.number]
        assert one.iteration_ms == pytest.approx(
            1e3 * record.prediction.iteration_time_s, rel=1e-9
        )
        assert max(stream.start[-1] + stream.duration[-1] for stream in one.streams) == TICKS


def test_bars_of_a_stream_never_overlap(view):
    for one in view.timeline.candidates:
        for stream in one.streams:
            assert (
                len(stream.start)
                == len(stream.duration)
                == len(stream.name)
                == len(stream.kind)
                > 0
            )
            assert min(stream.duration) > 0
            assert stream.start[0] >= 0
            bars = [
                (at, at + ticks) for at, ticks in zip(stream.start, stream.duration, strict=True)
            ]
            assert all(before[1] <= after[0] for before, after in pairwise(bars))
            assert bars[-1][1] <= TICKS
            assert max(stream.name) < len(view.timeline.names)
            assert max(stream.kind) < len(view.timeline.kinds)


def test_bars_take_the_time_of_the_breakdown(result, view):
    """Compute and embedding bars together are at least the compute part of the breakdown."""
    record = result.front[0]
    one = next(one for one in view.timeline.candidates if one.number == record.number)
    word = "stage" if view.rank_word == "Stage" else "rank"
    kinds = {BarKind.COMPUTE, BarKind.EMBEDDING, BarKind.MEMORY}
    for rank, parts in enumerate(record.prediction.breakdown):
        mine = [
            stream
            for stream in one.streams
            if stream.title.startswith((f"{word} {rank}:", f"{word} {rank} ("))
        ]
        if not mine:
            continue
        covered = np.zeros(TICKS, dtype=bool)
        for stream in mine:
            for start, length, kind in zip(
                stream.start, stream.duration, stream.kind, strict=True
            ):
                if kind in kinds:
                    covered[start : start + length] = True
        # What late launches hide is drawn, but is time of the host.
        length_s = record.prediction.iteration_time_s
        least, most = parts.compute_s, parts.compute_s + parts.host_s
        assert least / length_s - 1e-3 <= covered.mean() <= most / length_s + 1e-3


def test_the_slowest_rank_is_the_one_that_ends_the_iteration():
    # Rank 1 computes longest, but rank 3 ends last.
    tasks = [(0, 0, 4, 0), (1, 0, 6, 0), (2, 0, 1, 0), (3, 8, 10, 0), (4, 0, 3, 0)]
    chosen, words = _chosen_ranks(schedule(tasks, ranks=5), 10.0, "rank")
    assert chosen == [(3, "slowest"), (0, "median"), (2, "fastest")]
    assert "Three of 5 ranks" in words


def test_ranks_that_do_the_same_are_shown_once():
    tasks = [(rank, 0, 2, 0) for rank in range(6)]
    chosen, words = _chosen_ranks(schedule(tasks, ranks=6), 2.0, "rank")
    assert chosen == [(0, "")]
    assert "All 6 ranks" in words


def test_few_ranks_are_all_shown():
    tasks = [(0, 0, 1, 0), (1, 0, 2, 0)]
    assert _chosen_ranks(schedule(tasks, ranks=2), 2.0, "rank")[0] == [(0, ""), (1, "")]


def test_neighbours_of_a_kind_are_joined():
    compute, send = BarKind.COMPUTE, BarKind.COMMUNICATION
    bars = [
        _Bar(0, 10, compute, ("a",)),
        _Bar(12, 20, compute, ("b",)),
        _Bar(20, 30, send, ("c",)),
        _Bar(30, 40, compute, ("a",)),
        _Bar(43, 50, compute, ("a",)),
    ]
    assert _joined(bars, 2) == [
        _Bar(0, 20, compute, ("a", "b")),
        _Bar(20, 30, send, ("c",)),
        _Bar(30, 40, compute, ("a",)),
        _Bar(43, 50, compute, ("a",)),
    ]


def test_a_long_time_line_is_joined_until_it_fits():
    # A hundred tasks of 9 ms, each followed by a pause of 1 ms.
    tasks = [(0, 0.01 * i, 0.01 * i + 0.009, 0) for i in range(100)]
    whole = _drawn(schedule(tasks), 7, {}, "rank", 100)
    assert (len(whole.streams[0].start), whole.joined_ms) == (100, 0.0)
    joined = _drawn(schedule(tasks), 7, {}, "rank", 99)
    assert len(joined.streams[0].start) == 1
    # The pause of 1 ms is closed, but no more than the next power of two above it.
    assert 1.0 <= joined.joined_ms <= 2.1
    assert joined.streams[0].start[0] + joined.streams[0].duration[0] == TICKS


def test_of_a_large_front_both_ends_are_kept():
    records = [make_record(number, 1e6 + number, 0.1) for number in range(100)]
    kept = [record.number for record in _spread_out(records)]
    assert len(kept) == 12
    assert (kept[0], kept[-1]) == (0, 99)
    assert max(after - before for before, after in pairwise(kept)) == 9


# Points -------------------------------------------------------------------------------------


def test_the_interval_of_time_is_that_of_what_follows_from_it():
    study = make_study([make_record(0, 4e6, 0.5)])
    # 1 ms, 0.9 to 1.2 ms: rates are divided by 0.9 and 1.2, costs multiplied.
    (point,) = front_view(study).points
    assert point.predicted[0] == pytest.approx((4.0 / 1.2, 4.0 / 0.9), rel=1e-5)
    assert point.predicted[1] == pytest.approx((500 * 0.9, 500 * 1.2), rel=1e-5)
    assert point.measured == (None, None)


def test_an_axis_that_does_not_follow_from_time_has_no_interval():
    record = make_record(0, 4e6, 0.5)
    objectives = (OBJECTIVES[0], replace(OBJECTIVES[1], metric="memory_headroom_fraction"))
    study = replace(make_study([record]), objectives=objectives)
    (point,) = front_view(study).points
    assert point.predicted[0] is not None
    assert point.predicted[1] is None


def test_the_recommended_one_is_the_one_that_the_decision_takes():
    records = [
        make_record(number, speed * 1e6, cost)
        for number, (speed, cost) in enumerate([(1, 0.10), (9, 0.90), (8, 0.20), (4, 0.19)])
    ]
    study = make_study(records)
    assert decide(study).take.number == 2
    view = front_view(study)
    assert (view.recommended, view.second) == (2, 1)


def validated(mode, run_batch_size=64):
    """Two configurations of one study, of which a run of 1.1 ms stands for both."""
    first = make_record(1, 4e6, 0.5)
    platform = first.configuration.platform
    other = replace(make_record(2, 3e6, 0.6), configuration=first.configuration)
    candidate = replace(VALIDATION.candidates[0], run_batch_size=run_batch_size)
    setting = replace(VALIDATION.setting, mode=mode, platform=platform)
    found = VALIDATION.model_copy(update={"candidates": (candidate,), "setting": setting})
    return replace(make_study([first, other]), validation=found)


def test_a_run_of_the_configuration_itself_is_on_the_axes():
    points = {point.number: point for point in front_view(validated(ValidationMode.REAL)).points}
    # Predicted 1 ms and 4 M samples/s; measured 1.1 ms, its interval open to one side.
    low, value, high = points[1].measured[0]
    assert (low, high) == (None, None)
    assert value == pytest.approx(4.0 / 1.1, rel=1e-5)
    assert points[1].measured[1][1] == pytest.approx(500 * 1.1, rel=1e-5)
    assert "measured 1.100 ms" in points[1].note
    # The second is the same on the machine, so the run counts for it too, though it is dominated.
    assert points[2].measured[0][1] == pytest.approx(3.0 / 1.1, rel=1e-5)


@pytest.mark.parametrize(
    "study",
    [validated(ValidationMode.SCALED), validated(ValidationMode.REAL, run_batch_size=32)],
    ids=["scaled", "smaller batch"],
)
def test_a_run_of_something_smaller_is_told_in_words_only(study):
    point = front_view(study).points[0]
    assert point.measured == (None, None)
    assert "measured 1.100 ms" in point.note


# Plans --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("ranks", "words"),
    [
        ((3,), "3"),
        (tuple(range(128)), "0-127"),
        ((1, 5), "1,5"),
        ((0, 1, 2, 8, 9), "0-2,8-9"),
        ((4, 3), "4,3"),
    ],
)
def test_ranks_are_written_as_runs(ranks, words):
    assert _runs(ranks) == words
    read = []
    for run_ in words.split(","):
        first, _, last = run_.partition("-")
        read += range(int(first), int(last or first) + 1)
    assert tuple(read) == ranks


def test_sizes_of_tables():
    view = build_view(study_of(SPACE).result)
    assert {table.name for table in view.tables} == {t.name for t in view.details[0].tables}
    for table in view.tables:
        assert table.size_bytes in (4 * table.rows * table.dim, 2 * table.rows * table.dim)


# Side by side -------------------------------------------------------------------------------


def test_figures_are_those_of_the_prediction(result, view):
    titles = [figure.title for figure in view.figures.figures]
    assert {number for number, _ in view.figures.values} == {one.number for one in view.details}
    values = dict(view.figures.values)
    column = titles.index("Memory of the fullest rank (GiB)")
    for record in result.front:
        row = values[record.number]
        assert len(row) == len(titles)
        fullest = max(memory.total_bytes for memory in record.prediction.memory)
        assert row[column] == pytest.approx(fullest / 2**30, rel=1e-5)
    # What is a parameter already is not repeated.
    assert not {"Devices", "Global batch (samples)"} & set(titles)


# Nothing to show ----------------------------------------------------------------------------


def test_nothing_feasible():
    study = make_study([make_record(0, 1e6, 0.5, status=TrialStatus.INFEASIBLE, reason="full")])
    view = build_view(study)
    assert view.timeline.candidates == ()
    assert "No configuration is feasible" in view.timeline.note
    assert (view.front.recommended, view.front.second) == (None, None)
    render_report(study)


def test_one_candidate_on_the_front():
    study = make_study([make_record(0, 1e6, 0.5)])
    view = front_view(study)
    assert (view.recommended, view.second) == (0, None)
    render_report(study)


def test_a_study_without_its_inputs_says_why_there_is_no_time_line():
    # The inputs of this study are not files of a space and a model.
    view = timeline_view(make_study([make_record(0, 1e6, 0.5)]))
    assert view.candidates == ()
    assert view.note.startswith("The iteration cannot be predicted again: ")


def test_a_study_of_a_trace_names_the_command_that_draws_it(tmp_path):
    study = run(write_job(tmp_path), RunOptions(out=tmp_path / "study")).result
    view = build_view(study)
    assert view.timeline.candidates == ()
    assert "dse trace whatif" in view.timeline.note
    assert view.front.points == ()
    captured = dict(view.figures.values)[-1]
    titles = [figure.title for figure in view.figures.figures]
    assert captured[titles.index("Speed-up (×)")] == 1.0
    assert "Memory of the fullest rank (GiB)" not in titles
