"""A wall clock that jumps: nothing but dates depends on it."""

from __future__ import annotations

from datetime import datetime, timedelta
import random
import sys
import time

import pytest

from dse.search import RunOptions, load_study, run
from tests.search.runs import QUICK_SPACE


@pytest.fixture
def space(tmp_path):
    path = tmp_path / "quick.yaml"
    path.write_text(QUICK_SPACE)
    return path


@pytest.fixture
def jumping_clock(monkeypatch):
    """Every look at the clock of the machine is up to an hour too early or too late."""
    chance = random.Random(1)
    looks = []
    now_s = time.time

    def wrong_s():
        looks.append(chance.uniform(-3600.0, 3600.0))
        return now_s() + looks[-1]

    class Jumping(datetime):
        @classmethod
        def now(cls, tz=None):
            return datetime.fromtimestamp(now_s(), tz) + timedelta(seconds=wrong_s() - now_s())

    monkeypatch.setattr(time, "time", wrong_s)
    for name, module in list(sys.modules.items()):
        if name.startswith(("dse", "optuna")) and getattr(module, "datetime", None) is datetime:
            monkeypatch.setattr(module, "datetime", Jumping)
    return looks


@pytest.mark.parametrize("jobs", [1, pytest.param(2, marks=pytest.mark.slow)])
def test_a_clock_that_jumps_changes_nothing(space, tmp_path, request, jobs):
    whole = run(space, RunOptions(out=tmp_path / "whole"))
    looks = request.getfixturevalue("jumping_clock")
    out = tmp_path / "study"
    run(space, RunOptions(out=out, trials=8, jobs=jobs))
    jumped = run(space, RunOptions(out=out, trials=16, jobs=jobs, resume=True))
    # It was looked at: for the dates of trials and of the study.
    assert len(looks) > 16
    assert jumped.result.records == whole.result.records
    assert load_study(out).result.front == whole.result.front
    assert jumped.directory.pareto.read_bytes() == whole.directory.pareto.read_bytes()


def test_a_lock_that_a_killed_run_left_is_not_waited_for(space, tmp_path, monkeypatch):
    def sleep(duration_s):
        raise AssertionError("waits for the lock")

    out = tmp_path / "study"
    run(space, RunOptions(out=out, trials=8))
    (out / "journal.log.lock").touch()
    monkeypatch.setattr(time, "sleep", sleep)
    assert run(space, RunOptions(out=out, trials=12, resume=True)).result.front
