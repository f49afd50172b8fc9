from __future__ import annotations

from io import StringIO
import re

import pandas as pd
import pytest
from rich.console import Console

import dse
from dse.report import build_view
from dse.report.terminal.studies import print_study
from dse.search import RunOptions, TrialStatus, load_study, read_inputs, run
from dse.search.analyse import decide, recommended_trial
from dse.search.revise import study_evaluator
from dse.search.storage._journal import Journal
from dse.workload.dlrm import DlrmJob
from tests.search.files import without_checksums


@pytest.fixture(scope="module")
def study(tmp_path_factory):
    from tests.conftest import SMALL_SPACE

    folder = tmp_path_factory.mktemp("bounds")
    path = folder / "small.yaml"
    path.write_text(SMALL_SPACE)
    return run(path, RunOptions(out=folder / "study"))


def test_every_plan_on_the_front_has_a_bound_that_holds(study):
    assert study.result.front
    for record in study.result.front:
        assert 0 < record.lower_bound_s <= record.prediction.iteration_time_s * (1 + 1e-9)
        ratio = record.prediction.iteration_time_s / record.lower_bound_s
        assert record.plan_gap == pytest.approx(max(0.0, ratio - 1))
    others = [record for record in study.result.records if not record.on_front]
    assert others
    assert all(record.lower_bound_s is None and record.plan_gap is None for record in others)


def test_what_is_recommended_has_the_bound_of_shard(study):
    taken = recommended_trial(study.result)
    evaluator = study_evaluator(study.result)
    for record in study.result.front:
        job = evaluator.job(record.configuration)
        quick_s = job.lower_bound_s()
        assert record.lower_bound_s >= quick_s * (1 - 1e-9)
        if record != taken:
            assert record.lower_bound_s == quick_s
            continue
        parameters = {
            name: value
            for name, value in record.configuration.parameters
            if name not in ("platform", "sharding_types")
        }
        solved = dse.shard(
            "dlrm_tiny",
            record.configuration.platform,
            allowed_types=dict(record.configuration.parameters)["sharding_types"].split("+"),
            **parameters,
        )
        assert solved.lower_bound_s == pytest.approx(record.lower_bound_s, rel=1e-9)


def test_a_continued_run_refines_what_it_recommends_itself(small_space, tmp_path):
    out = tmp_path / "study"
    run(small_space, RunOptions(out=out, trials=4))
    result = run(small_space, RunOptions(out=out, trials=8, resume=True)).result
    taken = recommended_trial(result)
    job = study_evaluator(result).job(taken.configuration)
    assert taken.lower_bound_s == job.lower_bound_s(taken.prediction.iteration_time_s)
    assert recommended_trial(load_study(out).result) == taken


def test_bounds_hold_off_the_front_as_well(study, small_space):
    evaluator = read_inputs(small_space).context.make_evaluator()
    feasible = [r for r in study.result.records if r.status is TrialStatus.FEASIBLE]
    assert len(feasible) > len(study.result.front)
    for record in feasible:
        bound_s = evaluator.least_time_s(dict(record.parameters), closer=True)
        assert 0 < bound_s <= record.prediction.iteration_time_s * (1 + 1e-9)


def test_equal_problems_are_bounded_once(small_space, monkeypatch):
    made = []
    original = DlrmJob.lower_bound_s

    def counting(self, incumbent_s=None):
        made.append(self.allowed_types)
        return original(self, incumbent_s)

    monkeypatch.setattr(DlrmJob, "lower_bound_s", counting)
    context = read_inputs(small_space).context
    evaluator = context.make_evaluator()
    first = {parameter.name: parameter.choices[0] for parameter in context.space.parameters}
    other = {**first, "sharding_types": "table_wise+row_wise"}
    narrow = evaluator.least_time_s(first, closer=True)
    wide = evaluator.least_time_s(other, closer=True)
    assert evaluator.least_time_s(dict(first), closer=True) == narrow
    assert len(made) == 2
    assert wide <= narrow * (1 + 1e-9)  # more types allow at least the same plans


def test_tables_hold_the_bounds(study):
    trials = pd.read_csv(study.directory.trials)
    parquet = pd.read_parquet(study.directory.root / "trials.parquet")
    for frame in (trials, parquet):
        assert (frame["lower_bound_s"].notna() == frame["on_front"]).all()
        assert frame["lower_bound_s"].dtype == frame["plan_gap"].dtype == "float64"
        known = frame[frame["on_front"]]
        ratio = known["iteration_time_s"] / known["lower_bound_s"] - 1
        assert known["plan_gap"].to_numpy() == pytest.approx(ratio.clip(lower=0).to_numpy())


def test_page_and_terminal_say_how_good_plans_are(study):
    best = recommended_trial(study.result)
    words = f"at most {100 * best.plan_gap:.1f} % slower than the best possible"
    if best.plan_gap < 5e-4:
        words = "as fast as the best possible"
    assert decide(study.result).take.plan_gap == best.plan_gap
    out = StringIO()
    print_study(study.result, Console(file=out, width=1000), [])
    assert words in out.getvalue()
    details = {detail.number: dict(detail.summary) for detail in build_view(study.result).details}
    assert details[best.number]["Plan"] == f"{words} plan under this model"
    off = next(
        number for number in details if number not in {r.number for r in study.result.front}
    )
    assert "Plan" not in details[off]


def test_bounds_come_back_with_the_study(study):
    loaded = load_study(study.directory.root).result
    assert [r.lower_bound_s for r in loaded.records] == [
        r.lower_bound_s for r in study.result.records
    ]
    assert decide(loaded) == decide(study.result)


def test_studies_of_former_versions_load_and_resume(study, small_space, tmp_path):
    old = tmp_path / "old"
    old.mkdir()
    for name in ("study.yaml", "journal.log"):
        content = without_checksums((study.directory.root / name).read_bytes()).decode()
        lines = content.splitlines(keepends=True)
        kept = [line for line in lines if "lower_bounds_s" not in line]
        assert (len(kept) < len(lines)) == (name == "journal.log")
        (old / name).write_text(re.sub(r',"lower_bound_s":[^,]+', "", "".join(kept)))
    assert "lower_bound" not in (old / "journal.log").read_text()
    loaded = load_study(old).result
    assert loaded.front
    assert all(record.plan_gap is None for record in loaded.records)
    assert decide(loaded).take.plan_gap is None
    resumed = run(small_space, RunOptions(out=old, resume=True))
    assert resumed.directory.pareto.read_bytes() == study.directory.pareto.read_bytes()


def test_a_resumed_run_ends_with_the_same_bounds(study, small_space, tmp_path):
    out = tmp_path / "cut"
    run(small_space, RunOptions(out=out, trials=5))
    resumed = run(small_space, RunOptions(out=out, trials=12, resume=True))
    assert resumed.directory.pareto.read_bytes() == study.directory.pareto.read_bytes()
    # Bounds of those that left the front stay in the journal and are not shown.
    stored = Journal(resumed.directory.journal, resumed.result.objectives, ()).bounds()
    assert set(stored) >= {record.parameters for record in resumed.result.front}
