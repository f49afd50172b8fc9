"""Measurements of candidates on real ranks, and what ends them."""

from __future__ import annotations

import json
import math
import multiprocessing
import pickle

import numpy as np
import pytest

from dse.errors import WorkerError
from dse.sharding import ShardingType
from dse.validation import BudgetError, MeasureLimits, TrainerOptions, measure, median_interval
from tests.launch.scripts import run_ranks
from tests.validation.models import candidate, model

pytest.importorskip("torch")

SPREAD = [(ShardingType.TABLE_WISE, (rank,)) for rank in (0, 1, 1, 0)]
ROWS = [(ShardingType.ROW_WISE, (0, 1))] * 4
QUICK = MeasureLimits(budget_s=20.0, sample_s=0.001, target_half_width=0.0, max_rounds=6)


def candidates():
    return [candidate("spread", model(), 2, SPREAD), candidate("rows", model(), 2, ROWS)]


@pytest.mark.slow
def test_candidates_are_measured_in_rounds():
    steps = []
    found = measure(candidates(), threads=1, limits=QUICK, on_step=steps.append)
    assert [one.name for one in found] == ["spread", "rows"]
    assert steps[:2] == ["starting candidate 1 of 2", "starting candidate 2 of 2"]
    assert steps[2:] == [f"round {number}" for number in range(1, 7)]
    for one in found:
        assert len(one.samples) == 6
        assert one.iterations_per_sample >= 2
        assert one.low_s <= one.iteration_time_s <= one.high_s
        assert (one.low_s, one.high_s) == (min(one.samples), max(one.samples))
        assert one.iteration_time_s == np.median(one.samples)
        assert len(one.rank_times_s) == len(one.rank_processor_times_s) == 2
        assert all(rank_s > 0 for rank_s in one.rank_processor_times_s)
        assert all(rank_s > 0 for rank_s in one.rank_times_s)
        assert one.converged == (one.half_width <= QUICK.target_half_width)
    assert multiprocessing.active_children() == []


@pytest.mark.slow
def test_real_training_that_diverges_is_measured_and_told():
    hot = TrainerOptions(dense_learning_rate=1e30, sparse_learning_rate=1e30)
    found = measure(candidates()[:1], threads=1, limits=QUICK, options=hot)
    assert found[0].diverged
    assert found[0].iteration_time_s > 0


@pytest.mark.slow
def test_a_rank_killed_while_measuring_is_named():
    def kill(words):
        if words != "round 2":
            return
        multiprocessing.active_children()[0].kill()

    with pytest.raises(WorkerError, match=r"rank \d was ended by SIGKILL"):
        measure(candidates(), threads=1, limits=QUICK, on_step=kill)
    assert multiprocessing.active_children() == []


@pytest.mark.slow
def test_a_budget_that_the_first_start_uses_up_ends_the_ranks():
    steps = []
    with pytest.raises(BudgetError) as error:
        measure(candidates(), threads=1, limits=MeasureLimits(budget_s=1e-6), on_step=steps.append)
    assert steps == ["starting candidate 1 of 2"]
    assert multiprocessing.active_children() == []
    sent = pickle.loads(pickle.dumps(error.value))
    assert (str(sent), sent.value, sent.needed_s) == (
        str(error.value),
        1e-6,
        error.value.needed_s,
    )


# The interpreter changes threads where one waits only, so gloo's would let go late of what they
# exchanged, see `dse.launch._torchrun`.
SCRIPT = """
import json
from tests.validation.measurement.test_measure import QUICK, candidates
from dse.validation import measure
import os
import sys
sys.setswitchinterval(100.0)
found = measure(candidates(), threads=1, limits=QUICK)
with open(os.environ["ANSWER"] + os.environ["RANK"], "w") as file:
    json.dump([[one.name, one.iteration_time_s, len(one.samples)] for one in found], file)
"""


@pytest.mark.slow
def test_ranks_of_torchrun_all_get_the_result(tmp_path):
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    run_ranks(script, ANSWER=tmp_path / "answer")
    answers = [json.loads((tmp_path / f"answer{rank}").read_text()) for rank in range(2)]
    assert answers[0] == answers[1]
    assert [name for name, *_ in answers[0]] == ["spread", "rows"]
    assert all(seconds > 0 and rounds == 6 for _, seconds, rounds in answers[0])


def test_the_interval_of_a_median_is_that_of_order_statistics():
    # 2 · P(Bin(6, ½) < 1) = 3 % lie outside the extremes; of 20 samples the 6th and 15th enclose.
    assert median_interval([3, 1, 2, 6, 5, 4]) == (1, 6)
    assert median_interval(list(range(1, 21))) == (6, 15)
    assert median_interval([1, 2, 3, 4, 5]) == (-math.inf, math.inf)


def test_the_interval_covers_the_median_as_often_as_it_says():
    rng = np.random.default_rng(0)
    covered = 0
    for _ in range(400):
        low, high = median_interval(rng.lognormal(size=12).tolist())
        covered += low <= 1.0 <= high
    assert covered / 400 >= 0.94
