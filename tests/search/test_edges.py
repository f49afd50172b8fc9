"""Clean edges of a run: seeds of any size, and more jobs than there is to do."""

from __future__ import annotations

from importlib import metadata
import logging

import pytest

import dse
from dse.errors import ConfigError, StudyError
from dse.search import RunOptions, load_study, run
from dse.search._loop import stream_seed
from dse.search.execute import useful_jobs
from tests.search.runs import QUICK_SPACE


@pytest.fixture
def space(tmp_path):
    path = tmp_path / "quick.yaml"
    path.write_text(QUICK_SPACE)
    return path


@pytest.mark.parametrize("seed", [2**32, 99_999_999_999, 10**100])
def test_a_seed_of_any_size(space, tmp_path, seed):
    study = run(space, RunOptions(out=tmp_path / "study", seed=seed, trials=5))
    assert load_study(tmp_path / "study").result.seed == study.result.seed == seed


@pytest.mark.parametrize("sampler", ["tpe", "random", "grid"])
def test_every_sampler_takes_a_large_seed(space, tmp_path, sampler):
    text = space.read_text().replace("nsga2", sampler)
    space.write_text(text.replace("search: {", f"search: {{seed: {2**64 - 1}, "))
    assert run(space, RunOptions(out=tmp_path / "study", trials=5)).result.records


def test_a_study_of_another_version_is_not_continued(space, tmp_path, caplog):
    """Its answers and ours would be one front."""
    out = tmp_path / "study"
    run(space, RunOptions(out=out, trials=4))
    header = out / "study.yaml"
    text = header.read_text()
    version = metadata.version("dse")
    for package in ("dse", "numpy"):
        old = f"package: {package}\n  version: {metadata.version(package)}"
        assert old in text
        header.write_text(text.replace(old, f"package: {package}\n  version: 0.0.7"))
        caplog.clear()
        if package == "dse":
            with pytest.raises(StudyError, match=f"dse 0.0.7, and this is {version}"):
                run(space, RunOptions(out=out, resume=True))
        else:
            assert run(space, RunOptions(out=out, resume=True)).result.records
            assert "numpy 0.0.7" in caplog.text
        assert load_study(out).result.records


def test_small_seeds_are_those_of_the_sampler():
    assert stream_seed(7, 0) == 7
    assert stream_seed(2**32 - 1, 0) == 2**32 - 1
    found = {stream_seed(2**32 + offset, 0) for offset in range(100)}
    assert len(found) == 100
    assert all(0 <= seed < 2**32 for seed in found)


def test_a_negative_seed_is_refused(space):
    with pytest.raises(ConfigError, match="from 0"):
        run(space, RunOptions(seed=-1))


@pytest.mark.parametrize(
    ("name", "address", "cores", "at_once", "expected"),
    [
        ("process", "", 64, 20, 20),
        ("process", "", 4, 20, 4),
        ("process", "", 200, 1000, 60),
        ("ray", "", 4, 20, 4),
        ("ray", "local", 4, 20, 4),
        ("ray", "10.0.0.1:6379", 4, 20, 20),
        ("serial", "", 4, 20, 60),
    ],
)
def test_no_more_jobs_than_are_of_use(
    monkeypatch, caplog, name, address, cores, at_once, expected
):
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    monkeypatch.setattr("os.sched_getaffinity", lambda process: set(range(cores)), raising=False)
    with caplog.at_level(logging.WARNING, "dse.search"):
        assert useful_jobs(name, 60, address, at_once) == expected
    assert bool(caplog.records) == (expected < 60)


def test_a_hundred_thousand_jobs_start_no_more_than_there_is_to_do(space, tmp_path, monkeypatch):
    started = []
    monkeypatch.setattr("os.sched_getaffinity", lambda process: {0}, raising=False)
    monkeypatch.setattr(
        "multiprocessing.context.SpawnProcess.start", lambda self: started.append(self)
    )
    study = run(space, RunOptions(out=tmp_path / "study", jobs=100_000, trials=5))
    assert study.result.records
    assert not started


@pytest.mark.parametrize("batch", [2**40, 2**53])
def test_batches_beyond_any_machine_neither_overflow_nor_warn(batch):
    """Warnings are errors in the tests."""
    found = dse.predict("dlrm_tiny", platform="h100_sxm", world_size=2, global_batch_size=batch)
    assert not found.feasible
    assert 0 < found.iteration_time_s < float("inf")
