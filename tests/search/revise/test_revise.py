"""Finished studies under other inputs."""

from __future__ import annotations

from collections import Counter
import math

from hypothesis import given, settings
from hypothesis import strategies as st
import pytest

from dse.errors import ConfigError, StudyError
from dse.report._decision import certificate_text
from dse.search import (
    InputFile,
    RunOptions,
    TrialStatus,
    load_study,
    mark_front,
    run,
    stored_overrides,
    stored_platform,
)
from dse.search.analyse import best_moves, conclude, decide, front_moves
from dse.search.execute import SerialExecutor
from dse.search.revise import revise_study, study_evaluator, write_revision
from dse.search.space import load_space
from tests.conftest import THOROUGH
from tests.search.revise.studies import GPT_SPACE, SPACE, study_of
from tests.search.traces import write_job


@pytest.fixture(scope="module")
def study():
    return study_of(SPACE)


@pytest.fixture(scope="module")
def gpt():
    return study_of(GPT_SPACE)


def by_number(result):
    return {record.number: record for record in result.records}


def predicted(result):
    return [record for record in result.records if record.prediction is not None]


def seconds(result):
    return {r.number: r.prediction.iteration_time_s for r in predicted(result)}


def test_nothing_moves_when_figures_keep_their_values(study):
    result = load_study(study.directory.root).result
    same = revise_study(result, ["link.bandwidth=*1", "price=+0%", "host.launch=*1.0"])
    assert same.after.records == result.records
    assert decide(same.after) == decide(result)
    assert same.kept == len(predicted(result))
    assert same.repriced == same.simulated == 0


@pytest.mark.parametrize("kind", ["study", "gpt"])
def test_a_prediction_made_again_is_the_stored_one(kind, request):
    result = request.getfixturevalue(kind).result
    evaluator = study_evaluator(result)
    for record in predicted(result)[::3]:
        again, stored = evaluator.predict(record.configuration), record.prediction
        # The order in which the solver looked at placements decides the last bit of sums.
        assert again.iteration_time_s == pytest.approx(stored.iteration_time_s, rel=1e-12)
        assert again.price_usd_per_hour == stored.price_usd_per_hour
        assert again.memory == stored.memory
        assert again.feasible == stored.feasible
        for own, other in zip(again.breakdown, stored.breakdown, strict=True):
            assert own.compute_s == pytest.approx(other.compute_s, rel=1e-9)
        # 200 samples with a stream of their own.
        assert again.iteration_time_p95_s == pytest.approx(stored.iteration_time_p95_s, rel=0.05)


@pytest.mark.parametrize("kind", ["study", "gpt"])
def test_prices_leave_times_alone(kind, request):
    result = request.getfixturevalue(kind).result
    changed = revise_study(result, ["platform.h100_sxm.price=27.52USD/h"])
    assert changed.simulated == 0
    assert seconds(changed.after) == seconds(result)
    before = by_number(result)
    for record in predicted(changed.after):
        old, new = before[record.number].prediction, record.prediction
        if record.configuration.platform == "h100_sxm":
            nodes = -(-record.configuration.world_size // 8)
            share = min(1.0, record.configuration.world_size / 8)
            assert new.price_usd_per_hour <= 27.52 * nodes
            assert new.price_usd_per_hour >= 27.52 * nodes * share
            assert new.cost_usd_per_million_samples / old.cost_usd_per_million_samples == (
                pytest.approx(new.price_usd_per_hour / old.price_usd_per_hour)
            )
        else:
            assert new == old
        assert new.breakdown == old.breakdown
        assert new.iteration_time_p5_s == old.iteration_time_p5_s


def test_the_front_and_the_limits_are_judged_again(study):
    result = study.result
    # Two H100 nodes cost 110.08 USD/h, over the limit of 100; now two A100 nodes do as well.
    assert any(record.reason.startswith("price: ") for record in result.records)
    changed = revise_study(result, ["platform.a100_sxm_80.price=51USD/h"])
    expensive = [
        record
        for record in predicted(changed.after)
        if record.configuration.platform == "a100_sxm_80" and record.configuration.world_size == 16
    ]
    assert expensive
    for record in expensive:
        assert record.status is TrialStatus.INFEASIBLE
        assert record.reason == "price: 102.00 USD/h, above the limit of 100.00 USD/h"
        assert not record.on_front
    assert changed.after.records == mark_front(changed.after.records, result.objectives)
    assert changed.newly_allowed == 0
    cheaper = revise_study(result, ["platform.h100_sxm.price=-50%"])
    rejected = [record for record in result.records if record.status is TrialStatus.REJECTED]
    assert cheaper.newly_allowed == sum("price" in record.reason for record in rejected) > 0


def test_what_no_plan_makes_fit_is_not_allowed_by_another_price(tmp_path):
    path = tmp_path / "space.yaml"
    path.write_text("""\
schema_version: 1
name: small memory
workload: {model: gpt_1_7b}
parameters:
  platform: h100_sxm
  world_size: 8
  global_batch_size: 512
  micro_batch_size: [1, 64]
  data_sharding: [none, zero1]
objectives: [{metric: cost_usd_per_million_samples, direction: minimize}]
constraints: [{metric: memory_headroom_fraction, at_least: 90 %}]
""")
    result = run(path, RunOptions(out=tmp_path / "study")).result
    rejected = [record for record in result.records if record.status is TrialStatus.REJECTED]
    assert [record for record in rejected if record.reason.startswith("memory left: ")]
    assert revise_study(result, ["price=-1%"]).newly_allowed == 0
    assert revise_study(result, ["memory=*100"]).newly_allowed > 0


def test_nothing_is_proven_about_a_front_under_other_inputs(tmp_path):
    path = tmp_path / "space.yaml"
    path.write_text("""\
schema_version: 1
name: two platforms
workload: {model: gpt_1_7b}
parameters:
  platform: [a100_sxm_80, h100_sxm]
  world_size: 8
  global_batch_size: 64
  micro_batch_size: [1, 2]
objectives: [{metric: cost_usd_per_million_samples, direction: minimize}]
""")
    study = run(path, RunOptions(out=tmp_path / "study"))
    assert study.result.certificate.complete
    assert study.result.certificate.proven_dominated
    # What was dominated because it was dear may be the cheapest now.
    revision = revise_study(study.result, ["a100_sxm_80.price=-90%"])
    assert revision.after.certificate is None
    assert "complete" not in certificate_text(revision.after).replace("not proven complete", "")
    written = write_revision(revision, study.directory, tmp_path / "new")
    assert written.result.certificate is None
    assert not written.exhausted
    resumed = run(path, RunOptions(out=tmp_path / "new", resume=True)).result
    assert resumed.certificate.complete
    assert {dict(record.parameters)["platform"] for record in resumed.front} == {"a100_sxm_80"}


BANDWIDTHS = [
    "link.bandwidth",
    "network.bandwidth",
    "device.memory.bandwidth",
    "device.peak",
    "node.host_link.bandwidth",
]


@pytest.mark.parametrize("path", BANDWIDTHS)
def test_more_is_never_slower(path):
    check_more_is_never_slower(path, 0.6, 1.7)


@pytest.mark.slow
@settings(max_examples=100 if THOROUGH else 10)
@given(
    path=st.sampled_from(BANDWIDTHS),
    low=st.floats(0.3, 3).map(lambda value: round(value, 2)),
    more=st.floats(1.01, 3).map(lambda value: round(value, 2)),
)
def test_more_of_anything_is_never_slower(path, low, more):
    check_more_is_never_slower(path, low, more)


def check_more_is_never_slower(path, low, more):
    result = study_of(SPACE).result
    slow = seconds(revise_study(result, [f"{path}=*{low}"]).after)
    fast = seconds(revise_study(result, [f"{path}=*{low * more}"]).after)
    for number, time_s in slow.items():
        assert fast[number] <= time_s * (1 + 1e-9), (number, path)


@pytest.mark.parametrize("path", ["link.bandwidth", "device.peak"])
def test_more_is_never_slower_for_transformers(gpt, path):
    old, new = seconds(gpt.result), seconds(revise_study(gpt.result, [f"{path}=*1.3"]).after)
    for number, time_s in old.items():
        assert new[number] <= time_s * (1 + 1e-9), (number, path)


@pytest.mark.slow
@settings(max_examples=100 if THOROUGH else 6)
@given(
    path=st.sampled_from([*BANDWIDTHS[:3], "device.peak"]),
    more=st.floats(1.01, 1.6).map(lambda value: round(value, 2)),
)
def test_more_of_anything_is_never_slower_for_transformers(path, more):
    result = study_of(GPT_SPACE).result
    old, new = seconds(result), seconds(revise_study(result, [f"{path}=*{more}"]).after)
    for number, time_s in old.items():
        assert new[number] <= time_s * (1 + 1e-9), (number, path)


@pytest.mark.parametrize("path", ["link.latency", "network.latency", "host.launch"])
def test_more_waiting_is_never_faster(study, path):
    old, new = seconds(study.result), seconds(revise_study(study.result, [f"{path}=*2"]).after)
    assert all(new[number] >= time_s * (1 - 1e-9) for number, time_s in old.items())
    assert any(new[number] > time_s for number, time_s in old.items())


def test_measured_links_move_too(study):
    """The links of these platforms have measured curves; those have to follow the figure."""
    platform = stored_platform(study.result, "h100_sxm")
    assert platform.links[0].calibrations
    old, new = (
        seconds(study.result),
        seconds(revise_study(study.result, ["link.bandwidth=*2"]).after),
    )
    # Others wait for their host.
    assert any(new[number] < 0.999 * time_s for number, time_s in old.items())


def test_what_a_candidate_does_not_use_leaves_it_untouched(study):
    result = study.result
    network = revise_study(result, ["network.infiniband_ndr400.bandwidth=*2"])
    before = by_number(result)
    touched = {
        record.number
        for record in predicted(network.after)
        if record.prediction != before[record.number].prediction
    }
    # Two H100 nodes are over the limit on price, so nobody uses their network between nodes.
    assert not touched
    assert network.simulated == 0
    slow = revise_study(result, ["network.slow.bandwidth=*2"])
    assert slow.simulated == sum(
        record.configuration.world_size == 16 and dict(record.parameters)["network"] == "slow"
        for record in predicted(result)
    )
    assert slow.simulated > 0
    alone = revise_study(result, ["link.bandwidth=*2"])
    assert alone.kept == sum(r.configuration.world_size == 1 for r in predicted(result))


def test_less_memory_moves_no_time(study):
    result = study.result
    changed = revise_study(result, ["memory=8GiB", "device.memory.reserved=1GiB"])
    assert seconds(changed.after) == pytest.approx(seconds(result), rel=1e-12)
    before = by_number(result)
    for record in predicted(changed.after):
        usable = 7 * 2**30
        fullest = max(memory.total_bytes for memory in record.prediction.memory)
        assert record.prediction.usable_memory_bytes == usable
        assert record.prediction.feasible == (fullest <= usable)
        assert record.prediction.memory == before[record.number].prediction.memory
    tiny = revise_study(result, ["memory=2GiB", "device.memory.reserved=1.999GiB"])
    statuses = Counter(record.status for record in predicted(tiny.after))
    assert statuses[TrialStatus.FEASIBLE] == 0
    assert all("out of memory" in record.reason for record in predicted(tiny.after))
    assert tiny.after.front == ()
    assert decide(tiny.after) is None
    assert "nothing is feasible" in conclude(tiny.after)


def test_new_plans_are_no_worse(study):
    result = study.result
    kept = revise_study(result, ["link.bandwidth=*0.2"])
    again = revise_study(result, ["link.bandwidth=*0.2"], replan=3)
    assert len(again.searched) == 3
    assert {number for number, _ in again.searched} <= {
        record.number for record in kept.after.records if record.status is TrialStatus.FEASIBLE
    }
    old, new = seconds(kept.after), seconds(again.after)
    for number, better in again.searched:
        assert new[number] <= old[number]
        assert better == (new[number] < old[number])
    others = set(old) - {number for number, _ in again.searched}
    assert all(new[number] == old[number] for number in others)


def test_no_more_workers_start_than_predictions_are_made(study, monkeypatch):
    asked = []

    def serial(name, context, jobs):
        asked.append(jobs)
        return SerialExecutor(context)

    monkeypatch.setattr("os.sched_getaffinity", lambda process: set(range(64)), raising=False)
    monkeypatch.setattr("dse.search.revise._revise._WORTH_WORKERS", 1)
    monkeypatch.setattr("dse.search.revise._revise.make_executor", serial)
    revision = revise_study(study.result, ["device.memory.bandwidth=-10%"], jobs=60, replan=2)
    assert asked == [min(60, revision.simulated), 2]


@pytest.mark.slow
def test_workers_give_the_same_answer(study, monkeypatch):
    monkeypatch.setattr("dse.search.revise._revise._WORTH_WORKERS", 1)
    told = []
    one = revise_study(study.result, ["device.memory.bandwidth=-10%"])
    two = revise_study(
        study.result,
        ["device.memory.bandwidth=-10%"],
        jobs=2,
        progress=lambda done, total: told.append((done, total)),
    )
    assert one.after.records == two.after.records
    assert told[-1] == (len(study.result.records), len(study.result.records))


def test_the_changed_study_can_be_read_and_changed_again(study, tmp_path):
    changed = revise_study(
        study.result,
        ["link.bandwidth=+20%", "network.slow.bandwidth=*4", "platform.h100_sxm.price=40USD/h"],
    )
    written = write_revision(changed, study.directory, tmp_path / "new")
    assert written.result.records == changed.after.records
    assert written.result.facts == changed.after.facts
    assert [change.text for change in stored_overrides(written.result.inputs)] == [
        "link.bandwidth=+20%",
        "network.slow.bandwidth=*4",
        "platform.h100_sxm.price=40USD/h",
    ]
    fact = next(
        fact
        for fact in written.result.facts
        if fact.subject == "h100_sxm" and fact.quantity == "links.nvswitch.bandwidth"
    )
    assert (fact.value, fact.origin) == ("540 GB/s", "changed")
    assert fact.source == "--set link.bandwidth=+20%; was 450 GB/s (datasheet)"
    names = {path.name for path in written.directory.root.iterdir()}
    assert {"study.yaml", "journal.log", "trials.csv", "pareto.csv", "plans"} <= names
    # What is computed from the stored inputs is what is stored.
    evaluator = study_evaluator(written.result)
    for record in written.result.front:
        again = evaluator.predict(record.configuration).iteration_time_s
        assert again == pytest.approx(record.prediction.iteration_time_s, rel=1e-12)
    # Changes go on from the changed figures, and back to the first ones; bends of measured curves
    # that would have made a larger message faster are gone.
    back = revise_study(
        written.result,
        [f"link.bandwidth=*{1 / 1.2!r}", "network.slow.bandwidth=*0.25"],
    )
    assert seconds(back.after) == pytest.approx(seconds(study.result), rel=2e-3)
    with pytest.raises(StudyError, match="already holds a study"):
        write_revision(changed, study.directory, tmp_path / "new")
    # The header alone already makes it a study.
    (tmp_path / "begun").mkdir()
    (tmp_path / "begun" / "study.yaml").write_text("kept: 1\n")
    with pytest.raises(StudyError, match="already holds a study"):
        write_revision(changed, study.directory, tmp_path / "begun")


@pytest.mark.parametrize("existed", [False, True])
def test_an_interrupt_leaves_no_half_of_a_study(study, tmp_path, existed):
    changed = revise_study(study.result, ["memory_bandwidth=+20%"])
    out = tmp_path / "new"
    if existed:
        out.mkdir()

    def interrupt(done, total):
        if done == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        write_revision(changed, study.directory, out, progress=interrupt)
    assert out.exists() is existed
    assert not existed or not list(out.iterdir())
    assert write_revision(changed, study.directory, out).result.records


def test_moves_of_the_front(study):
    changed = revise_study(study.result, ["platform.a100_sxm_80.price=*0.01"])
    moves = front_moves(changed.before, changed.after)
    before = [record.number for record in changed.before.front]
    after = [record.number for record in changed.after.front]
    assert [move.number for move in moves][: len(after)] == after
    for move in moves:
        assert move.rank_before == (
            before.index(move.number) + 1 if move.number in before else None
        )
        assert move.rank_after == (after.index(move.number) + 1 if move.number in after else None)
        assert bool(move.reason) == (move.rank_after is None)
    costs = {move.metric: move for move in best_moves(changed.before, changed.after)}
    cheapest = costs["cost_usd_per_million_samples"]
    assert cheapest.value_after == min(
        record.values[1]
        for record in changed.after.records
        if record.status is TrialStatus.FEASIBLE
    )
    assert cheapest.change == pytest.approx(cheapest.value_after / cheapest.value_before - 1)
    assert costs["throughput_samples_per_s"].change == 0


def test_studies_of_traces_change_their_prices_only(tmp_path):
    result = run(write_job(tmp_path), RunOptions(out=tmp_path / "study")).result
    changed = revise_study(result, ["price=+50%"])
    before = by_number(result)
    answered = [record for record in changed.after.records if record.prediction is not None]
    assert answered
    for record in answered:
        old, new = before[record.number].prediction, record.prediction
        assert new.iteration_time_s == old.iteration_time_s
        assert new.price_usd_per_hour == pytest.approx(1.5 * old.price_usd_per_hour)
        assert new.cost_usd_per_million_samples == pytest.approx(
            1.5 * old.cost_usd_per_million_samples
        )
        assert record.values == tuple(record.metrics[axis.metric] for axis in result.objectives)
    with pytest.raises(ConfigError, match="dse trace whatif"):
        revise_study(result, ["link.bandwidth=+50%"])
    with pytest.raises(ConfigError, match="leave --replan out"):
        revise_study(result, ["price=+50%"], replan=1)


def test_a_space_made_in_python_is_asked_for(study, tmp_path):
    space = load_space(study.directory.root.parent / "space.yaml")
    result = run(space, RunOptions(out=tmp_path / "study", trials=4)).result
    with pytest.raises(ConfigError, match="pass it as `space`"):
        revise_study(result, ["price=-10%"])
    changed = revise_study(result, ["price=-10%"], space=space)
    assert changed.repriced == len(predicted(result))


def test_changes_that_change_nothing_are_refused(study):
    with pytest.raises(ConfigError, match="nothing to change"):
        revise_study(study.result, [])
    with pytest.raises(ConfigError, match="nothing would change"):
        revise_study(study.result, ["links.pair_bandwidth=+10%"])
    with pytest.raises(ConfigError, match="expected 0 or more"):
        revise_study(study.result, ["price=+10%"], replan=-1)
    with pytest.raises(ConfigError, match="at least 1"):
        revise_study(study.result, ["price=+10%"], jobs=0)
    with pytest.raises(ConfigError, match="`reserved`"):
        revise_study(study.result, ["device.memory.capacity=1GiB"])


def test_no_price_stays_no_price(tmp_path):
    text = SPACE.replace("[a100_sxm_80, h100_sxm]", "[h100_pcie]").replace(
        "  - {metric: cost_usd_per_million_samples, direction: minimize}\n", ""
    )
    text = text.replace("constraints:\n  - {metric: price_usd_per_hour, at_most: 100 USD/h}\n", "")
    space = tmp_path / "space.yaml"
    space.write_text(text)
    result = run(space, RunOptions(out=tmp_path / "study", trials=2)).result
    moved = revise_study(result, ["device.memory.bandwidth=+10%"])
    for record in predicted(moved.after):
        assert record.prediction.price_usd_per_hour is None
        assert math.isnan(record.metrics["cost_usd_per_million_samples"])
    priced = revise_study(result, ["platform.h100_pcie.price=16USD/h"])
    for record in predicted(priced.after):
        nodes = math.ceil(record.configuration.world_size / 8)
        assert record.prediction.price_usd_per_hour == 16 * nodes


def test_changes_of_older_studies_are_read():
    old = (
        '{"schema_version": 1, "changes": [{"text": "link.bandwidth=+20%", "platform": "", '
        '"field": "links.bandwidth", "name": "nvswitch", "factor": 1.2, "value": null}, '
        '{"text": "price.aws=40USD/h", "platform": "h100_sxm", "field": "price", "name": "AWS", '
        '"factor": null, "value": 40.0}]}'
    )
    overrides = stored_overrides([InputFile("changes", "changes", "", "", old)])
    assert [(one.platform, one.path, one.value) for one in overrides] == [
        ("", "links.nvswitch.bandwidth", "*1.2"),
        ("h100_sxm", "prices.AWS", "40USD/h"),
    ]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("[", "changes"),
        ("{}", "schema_version"),
        ('{"schema_version": 1, "changes": [{"text": "", "platform": ""}]}', "field"),
        (
            '{"schema_version": 1, "changes": [{"text": "", "platform": "", "field": "price", '
            '"name": "", "factor": -2, "value": null}]}',
            "factor",
        ),
    ],
)
def test_damaged_changes_are_refused(text, words):
    with pytest.raises(ConfigError) as caught:
        stored_overrides([InputFile("changes", "changes", "", "", text)])
    assert words in str(caught.value)
