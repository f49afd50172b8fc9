"""kill -9 at any moment: nothing that was said to be finished is lost or done again."""

from __future__ import annotations

from pathlib import Path
import random
import re
import time

import pytest

from tests.conftest import THOROUGH
from tests.search.files import check_files, journaled, unfinished
from tests.search.runs import (
    QUICK_SPACE,
    Run,
    name_of,
    needs_proc,
    needs_ray,
    nothing_left,
    session_members,
    wait_until_alone,
)

pytestmark = pytest.mark.slow

KILLS = 50 if THOROUGH else 20

#: Upper ends of the delays after each step at which a run is killed, in seconds: about as long as
#: the step takes. Writing the report takes longer than its delay on a slow machine.
STEPS = {"start": 0.3, "trial": 0.05, "tables": 0.2, "report": 0.8}

#: Kills after which a study may end, so that one whose steps are slow does end.
KILLS_OF_A_STUDY = 10


@pytest.fixture(scope="module")
def space(tmp_path_factory):
    path = tmp_path_factory.mktemp("space") / "quick.yaml"
    path.write_text(QUICK_SPACE)
    return path


@pytest.fixture(scope="module")
def uninterrupted(space, tmp_path_factory):
    """Bytes of the front that a run without a kill ends with."""
    out = tmp_path_factory.mktemp("whole") / "study"
    assert Run(space, out=out).join() == 0
    return (out / "pareto.csv").read_bytes()


def test_kills_lose_nothing_and_repeat_nothing(space, uninterrupted, tmp_path):
    chance = random.Random(8)
    kills = studies = 0
    steps_killed = dict.fromkeys(STEPS, 0)
    while kills < KILLS:
        studies += 1
        out = tmp_path / str(studies)
        known: list = []
        killed = True
        kills_before = kills
        while killed:
            step = chance.choice(list(STEPS))
            resume = (out / "study.yaml").exists()
            process = Run(space, out=out, resume=resume)
            process.wait_for(chance.randrange(1, 16) if step == "trial" else step)
            time.sleep(chance.uniform(0.0, STEPS[step]))
            if kills - kills_before < KILLS_OF_A_STUDY:
                killed = process.kill(group=chance.random() < 0.5)
            else:
                killed = False
                assert process.join() == 0
            if killed:
                kills += 1
                steps_killed[step] += 1
            assert killed or process.process.exitcode == 0
            found = journaled(out)
            assert found[: len(known)] == known
            assert len(found) == len(set(found)), "a trial was finished twice"
            assert set(process.finished) <= set(found), "a finished trial was lost"
            known = found
            check_files(out)
        assert (out / "pareto.csv").read_bytes() == uninterrupted
        assert not unfinished(out)
    assert min(steps_killed.values()) >= 2, steps_killed


@needs_proc
@pytest.mark.parametrize(
    ("executor", "group"),
    [("process", False), ("process", True), pytest.param("ray", False, marks=needs_ray)],
    ids=["the asking process", "all at once", "the asking process, Ray"],
)
def test_workers_end_with_the_run_that_asked_them(space, uninterrupted, tmp_path, executor, group):
    out = tmp_path / "study"
    process = Run(space, out=out, jobs=2, executor=executor)
    session = process.process.pid
    with nothing_left(session):
        assert process.wait_for(10)  # some of them are rejected before there are workers
        members = session_members(session)
        assert len(members) >= 3
        folders = set(re.findall(r"/[\w/.-]*dse-ray-\w+", " ".join(map(name_of, members))))
        assert len(folders) == (executor == "ray")
        assert process.kill(group=group)
        assert not wait_until_alone(session)
        assert not any(Path(folder).exists() for folder in folders)
        assert set(process.finished) <= set(journaled(out))
        check_files(out)
        again = Run(space, out=out, jobs=2, resume=True)
        assert again.join() == 0
    assert not wait_until_alone(again.process.pid)
    assert len(journaled(out)) == len(set(journaled(out)))
    assert (out / "pareto.csv").read_bytes() == uninterrupted
