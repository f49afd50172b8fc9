"""Studies of a captured trace."""

from __future__ import annotations

from dataclasses import asdict
import json
import math

import pandas as pd
import pytest
from typer.testing import CliRunner
import yaml

from benchmarks.folders import DATA
from dse.cli._app import app
from dse.errors import ConfigError, StudyError
from dse.machine.platforms import load_platform
from dse.report import build_view, render_report
from dse.search import RunOptions, TrialStatus, load_study, read_inputs, run, stored_steps
from dse.search.evaluate import ConfigurationEvaluator
from dse.search.space import SamplerName
from dse.trace import read_kineto
from dse.trace.whatif import captured_step, parse_optimization, read_changes
from tests.search.traces import CAPTURED_S, HALVED_S, write_job


@pytest.fixture
def space(tmp_path):
    return write_job(tmp_path)


@pytest.fixture
def study(space, tmp_path):
    return run(space, RunOptions(out=tmp_path / "study"))


def rows(study):
    return {
        (factor, optimizations): record
        for record in study.result.records
        for factor, optimizations in [
            (
                dict(record.parameters)["network_factor"],
                dict(record.parameters)["optimizations"],
            )
        ]
    }


def test_every_change_is_simulated(study, tmp_path):
    found = rows(study)
    assert len(found) == 12
    captured = found[1.0, "none"].prediction
    assert captured.iteration_time_s == pytest.approx(CAPTURED_S)
    assert captured.throughput_samples_per_s == pytest.approx(128 / CAPTURED_S)
    assert captured.metric("speedup") == 1.0
    assert captured.effects == ()
    price = captured.price_usd_per_hour
    assert captured.cost_usd_per_million_samples == pytest.approx(
        1e6 * price / 3600 / (128 / CAPTURED_S)
    )
    halved = found[1.0, "halved.yaml"].prediction
    assert halved.iteration_time_s == pytest.approx(HALVED_S)
    assert halved.metric("speedup") == pytest.approx(CAPTURED_S / HALVED_S)
    assert [effect.tasks for effect in halved.effects] == [2]
    step = captured_step(read_kineto(tmp_path / "run"))
    slower = step.what_if([parse_optimization("network=0.5x")])
    assert found[0.5, "none"].prediction.iteration_time_s == slower.after_s
    assert slower.after_s > CAPTURED_S
    lengths_s = [
        rank.compute_s + rank.exposed_communication_s + rank.host_s + rank.idle_s
        for rank in found[0.5, "none"].prediction.breakdown
    ]
    assert max(lengths_s) == pytest.approx(slower.after_s)
    assert len(lengths_s) == 2


def test_time_that_hides_behind_late_launches_is_of_the_host(study):
    def parts(optimizations):
        for rank in rows(study)[1.0, optimizations].prediction.breakdown:
            found = (rank.host_s, rank.compute_s, rank.exposed_communication_s, rank.idle_s)
            yield tuple(round(1e6 * seconds, 3) for seconds in found)

    # The device waits for launches until 220 µs, and the host returns after it for 20 µs.
    assert set(parts("none")) == {(240.0, 250.0, 200.0, 0.0)}
    # With half of the backward pass it waits for the host to the end.
    assert set(parts("halved.yaml")) == {(640.0, 0.0, 0.0, 0.0)}
    assert rows(study)[1.0, "halved.yaml"].prediction.bound_by == "host operators"


def test_changes_that_select_nothing_are_rejected_and_no_trial(study):
    rejected = [r for r in study.result.records if r.status is TrialStatus.REJECTED]
    assert len(rejected) == 3
    assert all("no task has name no such kernel" in record.reason for record in rejected)
    assert not any(record.evaluated or record.values for record in rejected)
    assert study.exhausted


def test_rejections_do_not_use_up_the_trials(space, tmp_path):
    study = run(space, RunOptions(out=tmp_path / "few", trials=9))
    assert sum(record.evaluated for record in study.result.records) == 9


def test_tables_have_only_what_is_known(study):
    table = pd.read_csv(study.directory.trials)
    assert not {"memory_headroom_fraction", "planner", "iteration_time_p5_s"} & set(table.columns)
    assert {"speedup", "throughput_samples_per_s", "mean_idle_s", "world_size"} <= set(table)
    assert table["world_size"].dropna().unique().tolist() == [2.0]
    parquet = pd.read_parquet(study.directory.root / "trials.parquet")
    assert list(parquet.columns) == list(table.columns)


@pytest.mark.parametrize("sampler", ["nsga2", "tpe", "grid"])
def test_one_seed_gives_one_front_in_whatever_order_the_answers_come(
    space, tmp_path, sampler, out_of_order
):
    fronts = []
    for folder in ("in order", "out of order"):
        out = tmp_path / folder
        run(space, RunOptions(out=out, trials=6, sampler=SamplerName(sampler)))
        fronts.append(((out / "pareto.csv").read_bytes(), (out / "trials.csv").read_bytes()))
        out_of_order()
    assert fronts[0] == fronts[1]


def test_resume_evaluates_nothing_twice(space, study, tmp_path, monkeypatch):
    out = tmp_path / "cut"
    run(space, RunOptions(out=out, trials=4))
    known = {record.parameters for record in load_study(out).result.records}
    evaluated = []
    original = ConfigurationEvaluator.evaluate

    def counting(self, number, parameters):
        evaluated.append(tuple(parameters.items()))
        return original(self, number, parameters)

    monkeypatch.setattr(ConfigurationEvaluator, "evaluate", counting)
    run(space, RunOptions(out=out, trials=50, resume=True))
    assert evaluated
    assert not known & set(evaluated)
    assert (out / "pareto.csv").read_bytes() == study.directory.pareto.read_bytes()


def test_resume_refuses_other_traces(space, study, tmp_path):
    options = RunOptions(out=study.directory.root, resume=True)
    second = tmp_path / "run" / "rank1.json"
    text = second.read_text()
    second.write_text(text.replace("sgemm_fw", "sgemm_FW"))
    with pytest.raises(StudyError, match=r"the trace `rank1\.json` has changed"):
        run(space, options)
    second.unlink()
    with pytest.raises(StudyError, match=r"the trace `rank1\.json` .* is gone"):
        run(space, options)
    second.write_text(text)
    (tmp_path / "halved.yaml").write_text((tmp_path / "nothing.yaml").read_text())
    with pytest.raises(StudyError, match=r"the steps `halved\.yaml` has changed"):
        run(space, options)


def test_a_study_loads_without_its_traces(study, space, tmp_path):
    (tmp_path / "run" / "rank0.json").unlink()
    space.unlink()
    loaded = load_study(study.directory.root).result
    # Unknown figures are NaN, which equals nothing.
    assert repr(asdict(loaded)) == repr(asdict(study.result))
    assert loaded.model_name == "run"
    assert loaded.trace.path == "run"
    assert loaded.trace.step == "profiler step 1"
    digests = {file.name: file.text for file in loaded.inputs if file.role == "trace"}
    assert digests == {"rank0.json": "", "rank1.json": ""}


def test_all_rejected_ends_with_1_and_the_reason(space, tmp_path):
    text = space.read_text()
    for unwanted in ("    - []\n", "    - [halved.yaml]\n", "    - [network=2x, halved.yaml]\n"):
        text = text.replace(unwanted, "")
    space.write_text(text)
    result = CliRunner().invoke(app, ["run", str(space), "--out", str(tmp_path / "none")])
    assert result.exit_code == 1
    words = " ".join(result.output.split())
    assert "nothing is feasible; most often" in words
    assert "no task has name no such kernel" in words


def test_other_devices_and_links(space, tmp_path):
    text = space.read_text().replace(
        "  network_factor: [0.5x, 1x, 2x]\n",
        "  platform: [same, h100_sxm]\n  link: [default, pcie, none_such]\n",
    )
    space.write_text(text.replace("    - [nothing.yaml]\n", ""))
    study = run(space, RunOptions(out=tmp_path / "other"))
    status = {}
    for record in study.result.records:
        chosen = dict(record.parameters)
        status[chosen["platform"], chosen["link"], chosen["optimizations"]] = record
    assert "none_such" in status["same", "none_such", "none"].reason
    other = status["h100_sxm", "default", "none"]
    assert other.configuration.platform == "h100_sxm"
    expected = captured_step(read_kineto(tmp_path / "run")).what_if(
        [parse_optimization("gpu=h100_sxm")]
    )
    assert other.prediction.iteration_time_s == expected.after_s
    assert other.prediction.price_usd_per_hour != study.result.trace.baseline.price_usd_per_hour
    assert {fact.subject for fact in study.result.facts} == {"v100_dgx1", "h100_sxm"}


def test_the_captured_platform_may_be_named(space, tmp_path):
    """`same` and the platform's own name are one: one answer, and nothing to export."""
    text = space.read_text().replace(
        "  network_factor: [0.5x, 1x, 2x]\n", "  platform: [same, v100_dgx1]\n"
    )
    space.write_text(text.replace("    - [nothing.yaml]\n", ""))
    evaluator = ConfigurationEvaluator(read_inputs(space).context)
    same, named = (
        {"platform": name, "optimizations": "halved.yaml"} for name in ("same", "v100_dgx1")
    )
    assert evaluator.outcome(same) == evaluator.outcome(named)
    other = {**same, "optimizations": "none"}
    assert evaluator.outcome(same) != evaluator.outcome(other)
    study = run(space, RunOptions(out=tmp_path / "study"))
    assert len(study.result.records) == 3
    named_only = text.replace("[same, v100_dgx1]", "v100_dgx1").replace(
        "    - [nothing.yaml]\n", ""
    )
    space.write_text(named_only)
    study = run(space, RunOptions(out=tmp_path / "named"))
    found = {dict(one.parameters)["optimizations"]: one for one in study.result.records}
    assert found["none"].prediction.iteration_time_s == pytest.approx(CAPTURED_S)
    assert found["none"].prediction.effects == ()
    assert found["halved.yaml"].prediction.iteration_time_s == pytest.approx(HALVED_S)
    assert found["halved.yaml"].prediction.price_usd_per_hour is not None
    steps = tmp_path / "steps.yaml"
    steps.write_text(stored_steps(study.result, found["halved.yaml"]))
    assert len(read_changes(steps)) == 1
    with pytest.raises(ConfigError):
        stored_steps(study.result, found["none"])


def test_without_a_price_nothing_costs(tmp_path):
    space = write_job(tmp_path, devices=[{"id": 0, "name": "unheard of"}])
    study = run(space, RunOptions(out=tmp_path / "study"))
    assert not study.result.front
    reasons = {record.reason for record in study.result.records}
    assert all("what the trace was captured on is not known" in reason for reason in reasons)
    space.write_text(
        space.read_text().replace(
            "  - {metric: cost_usd_per_million_samples, direction: minimize}\n", ""
        )
    )
    study = run(space, RunOptions(out=tmp_path / "second"))
    assert study.result.trace.baseline.price_usd_per_hour is None
    assert {rows(study)[1.0, "halved.yaml"].status} == {TrialStatus.FEASIBLE}
    # Another network needs to know the present one.
    assert "what the trace was captured on" in rows(study)[2.0, "none"].reason


def test_what_is_not_known_comes_back_as_not_known(tmp_path):
    space = write_job(tmp_path, devices=[{"id": 0, "name": "unheard of"}])
    text = space.read_text().replace(", samples_per_step: 128", "")
    text = text.replace("throughput_samples_per_s", "speedup")
    space.write_text(
        text.replace("  - {metric: cost_usd_per_million_samples, direction: minimize}\n", "")
    )
    study = run(space, RunOptions(out=tmp_path / "study"))
    loaded = load_study(study.directory.root).result
    assert repr(asdict(loaded)) == repr(asdict(study.result))
    assert loaded.front[0].values == (pytest.approx(CAPTURED_S / HALVED_S),)
    for prediction in (loaded.trace.baseline, loaded.front[0].prediction):
        assert prediction.price_usd_per_hour is None
        assert prediction.cost_usd_per_million_samples is None
        assert math.isnan(prediction.throughput_samples_per_s)
        assert math.isnan(prediction.iteration_time_p95_s)


def test_a_change_may_move_the_step_to_another_machine(space, tmp_path):
    space.write_text(space.read_text().replace("[nothing.yaml]", "[gpu=h100_sxm]"))
    found = rows(run(space, RunOptions(out=tmp_path / "study")))
    captured, moved = found[1.0, "none"], found[1.0, "gpu=h100_sxm"]
    assert captured.configuration.platform == "v100_dgx1"
    assert moved.configuration.platform == "h100_sxm"
    assert moved.prediction.price_usd_per_hour == load_platform("h100_sxm").quote(2).usd_per_hour
    assert moved.prediction.price_usd_per_hour != captured.prediction.price_usd_per_hour


def test_constraints_hold(space, tmp_path):
    limit = "constraints:\n  - {metric: speedup, at_least: 1.05}\nsearch:"
    space.write_text(space.read_text().replace("search:", limit))
    study = run(space, RunOptions(out=tmp_path / "study"))
    record = rows(study)[1.0, "none"]
    assert record.status is TrialStatus.INFEASIBLE
    assert record.reason == "speed-up: 1.000 ×, below the limit of 1.050 ×"
    assert all(record.metrics["speedup"] >= 1.05 for record in study.result.front)


def test_ranks_are_added_to_a_job_of_one_only(space, tmp_path):
    several = space.read_text().replace("network_factor: [0.5x, 1x, 2x]", "world_size: [2, 4]")
    space.write_text(several)
    with pytest.raises(ConfigError, match="is of a job of 2 ranks"):
        read_inputs(space)
    single = write_job(tmp_path / "single", ranks=1)
    text = single.read_text().replace("network_factor: [0.5x, 1x, 2x]", "world_size: [1, 4]")
    given = "['data_parallel=4,gradients=1MiB']"
    single.write_text(text.replace("[network=2x, halved.yaml]", given))
    study = run(single, RunOptions(out=tmp_path / "study"))
    found = {
        (dict(record.parameters)["world_size"], dict(record.parameters)["optimizations"]): record
        for record in study.result.records
    }
    assert found[1, "none"].prediction.effects == ()
    # Without shapes nobody knows how much the ranks would exchange, unless it is said.
    assert "how large gradients are" in found[4, "none"].reason
    four = found[1, "data_parallel=4,gradients=1MiB"]
    assert four.configuration.world_size == 4
    four = four.prediction
    assert four.throughput_samples_per_s == pytest.approx(4 * 128 / four.iteration_time_s)


# --- export -------------------------------------------------------------------------------


def test_export_gives_steps_that_can_be_applied(study, tmp_path):
    root = str(study.directory.root)
    record = rows(study)[2.0, "network=2x + halved.yaml"]
    for kind in ("yaml", "json"):
        out = tmp_path / f"steps.{kind}"
        command = ["export", root, "--candidate", str(record.number), "--format", kind]
        result = CliRunner().invoke(app, [*command, "--out", str(out)])
        assert result.exit_code == 0, result.output
        answer = captured_step(read_kineto(tmp_path / "run")).what_if(read_changes(out))
        assert answer.after_s == record.prediction.iteration_time_s
    document = yaml.safe_load(stored_steps(study.result, record))
    assert document["steps"][:2] == [
        {"optimization": "network", "factor": "2"},
        {"optimization": "network", "factor": "2x"},
    ]


def test_what_cannot_be_exported(study):
    root = str(study.directory.root)

    def refusal(record, *options):
        command = ["export", root, "--candidate", str(record.number), *options]
        with pytest.raises((ConfigError, StudyError)) as caught:
            CliRunner().invoke(app, command, catch_exceptions=False)
        return str(caught.value)

    found = rows(study)
    assert "has no sharding plan" in refusal(found[2.0, "none"], "--format", "torchrec")
    assert "as captured" in refusal(found[1.0, "none"])
    assert "rejected" in refusal(found[1.0, "nothing.yaml"])


# --- page ---------------------------------------------------------------------------------


def test_the_page_starts_from_the_captured_step(study):
    view = build_view(study.result)
    assert view.baseline == (pytest.approx(128 / CAPTURED_S, rel=1e-5), view.baseline[1])
    assert view.memory_purposes == ()
    assert view.breakdown_parts == ("Compute", "Exposed communication", "Host", "Idle")
    assert view.details[-1].number == -1
    assert view.details[-1].changes == ()
    halved = next(
        detail
        for detail in view.details
        if detail.number == rows(study)[1.0, "halved.yaml"].number
    )
    assert (halved.changes[0].before_ms, halved.changes[0].after_ms) == (0.69, 0.64)
    assert {trial.group for trial in view.trials} == {
        "none",
        "halved.yaml",
        "network=2x + halved.yaml",
        "nothing.yaml",
    }
    page = render_report(study.result)
    assert "run · profiler step 1 on 2 × Tesla V100-SXM2-32GB" in page
    assert "0.690 ms" in page
    assert 'id="changes-table"' in page
    assert 'id="memory"' not in page
    assert 'id="heatmap"' not in page


def test_the_terminal_names_changes(space, tmp_path):
    command = ["run", str(space), "--out", str(tmp_path / "shown")]
    result = CliRunner().invoke(app, command, env={"COLUMNS": "200"})
    assert result.exit_code == 0
    assert "as captured: profiler step 1" in result.output
    assert "plans" not in result.output
    assert "halved.yaml" in result.output
    as_json = CliRunner().invoke(app, [*command[:-1], str(tmp_path / "json"), "--json"])
    assert json.loads(as_json.stdout)["counts"]["rejected"] == 3


# --- a published trace --------------------------------------------------------------------

FOLDER = DATA / "traces"

REAL_SPACE = f"""\
schema_version: 1
name: dlrm
workload: {{trace: {FOLDER / "dlrm_kineto.tar.gz"}}}
parameters:
  platform: [same, a100_sxm_80]
  network_factor: [0.25x, 1x]
objectives:
  - {{metric: speedup, direction: maximize}}
  - {{metric: price_usd_per_hour, direction: minimize}}
search: {{trials: 10, sampler: grid}}
"""


@pytest.mark.skipif(
    not FOLDER.is_dir(),
    reason=f"no published traces in {FOLDER}; name the folder above in DSE_MEASUREMENTS",
)
def test_networks_and_devices_of_a_captured_dlrm(tmp_path):
    space = tmp_path / "space.yaml"
    space.write_text(REAL_SPACE)
    study = run(space, RunOptions(out=tmp_path / "study"))
    assert study.result.trace.world_size == 8
    found = {}
    for record in study.result.records:
        chosen = dict(record.parameters)
        assert record.prediction is not None, record.reason
        found[chosen["platform"], chosen["network_factor"]] = record
    assert len(found) == 4
    assert found["same", 1.0].prediction.metric("speedup") == 1.0
    assert found["same", 1.0].configuration.platform == "v100_dgx1"
    for platform in ("same", "a100_sxm_80"):
        slow, usual = (found[platform, factor].prediction for factor in (0.25, 1.0))
        assert math.isnan(slow.throughput_samples_per_s)
        # Four times less bandwidth: transfers take longer, kernels do not.
        exposed = [
            sum(rank.exposed_communication_s for rank in one.breakdown) for one in (slow, usual)
        ]
        assert exposed[0] > exposed[1]
    compute = [
        sum(rank.compute_s for rank in found[name, 1.0].prediction.breakdown)
        for name in ("same", "a100_sxm_80")
    ]
    assert compute[1] < compute[0]


def test_machines_of_ones_own(tmp_path):
    """A step moves to a derived platform as to the one it is derived from, at another price."""
    path = write_job(tmp_path)
    own = "{from: h100_sxm, name: mine, price: 2.10 USD/GPU/h}"
    slow = "{from: h100_sxm, name: slow, link: {bandwidth: 10 GB/s}}"
    text = path.read_text()
    start, end = text.index("  network_factor"), text.index("objectives")
    choices = f"  platform: [same, h100_sxm, {own}, {slow}]\n"
    path.write_text(text[:start] + choices + text[end:])
    study = run(path, RunOptions(out=tmp_path / "study", executor="serial"))
    found = {dict(one.parameters)["platform"]: one for one in study.result.records}
    times = {name: one.prediction.iteration_time_s for name, one in found.items()}
    assert times["mine"] == times["h100_sxm"] != times["same"]
    assert times["slow"] > times["h100_sxm"]
    assert found["mine"].prediction.price_usd_per_hour == pytest.approx(2 * 2.10)
    # What is exported makes the same step.
    for name in ("mine", "slow"):
        steps = tmp_path / f"{name}.yaml"
        steps.write_text(stored_steps(study.result, found[name]))
        answer = captured_step(read_kineto(tmp_path / "run")).what_if(read_changes(steps))
        assert answer.after_s == times[name]


def test_prices_of_a_step_can_be_set(tmp_path):
    path = write_job(tmp_path)
    options = RunOptions(
        out=tmp_path / "study", executor="serial", overrides=("price=3 USD/GPU/h",)
    )
    study = run(path, options)
    prices = {one.prediction.price_usd_per_hour for one in study.result.records if one.evaluated}
    assert prices == {6.0}
    with pytest.raises(ConfigError, match="only prices"):
        run(path, RunOptions(out=tmp_path / "other", overrides=("link.bandwidth=+20%",)))
