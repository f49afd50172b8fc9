"""Two studies beside each other."""

from __future__ import annotations

from dataclasses import replace

import pytest

from dse.errors import ConfigError
from dse.search import RunOptions, run
from dse.search.analyse._outcomes import outcome_key
from dse.search.compare import compare_studies
from dse.search.revise import revise_study, write_revision
from dse.search.space import Objective
from tests.search.analyse.studies import study_of_trials, trial
from tests.search.revise.studies import SPACE, study_of


@pytest.fixture(scope="module")
def study():
    return study_of(SPACE)


def test_a_study_is_like_itself(study):
    same = compare_studies(study.result, study.result)
    assert same.differences == ()
    assert same.same_objectives
    assert same.hypervolume_ratio == 1.0
    evaluated = {outcome_key(record) for record in study.result.records if record.evaluated}
    assert len(same.common) == len(evaluated)
    assert all(one.first == one.second for one in same.common)
    assert not any(one.moved or one.reasons for one in same.common)
    assert same.conclusion == "both reach the same best values; the second's front covers as much"


def test_what_moved_and_why(study, tmp_path):
    changed = revise_study(
        study.result, ["network.slow.bandwidth=*0.1", "device.memory.bandwidth=*2"]
    )
    written = write_revision(changed, study.directory, tmp_path / "new")
    found = compare_studies(study.result, written.result)
    words = [difference.text for difference in found.differences]
    assert "platform h100_sxm device.memory.bandwidth: 3.35 TB/s → 6.7 TB/s" in words
    assert any(word.startswith("space networks: slow 1 × 6.25e+09") for word in words)
    assert len(found.differences) == 3
    before = {record.number: record for record in study.result.records}
    after = {record.number: record for record in written.result.records}
    for one in found.common:
        assert one.first == one.second
        assert one.same_plan
        old, new = before[one.first].prediction, after[one.second].prediction
        assert one.time_ratio == pytest.approx(new.iteration_time_s / old.iteration_time_s)
        platform = before[one.first].configuration.platform
        if one.moved:
            assert any(f"platform {platform} device.memory.bandwidth" in r for r in one.reasons)
            other = "a100_sxm_80" if platform == "h100_sxm" else "h100_sxm"
            assert not any(other in reason for reason in one.reasons)
    assert "common candidates are predicted differently" in found.conclusion
    for move, axis in zip(found.best, study.result.objectives, strict=True):
        values = [record.metrics[axis.metric] for record in written.result.front]
        assert move.value_after == (max if axis.maximize else min)(values)


def test_another_provider_may_have_another_network():
    text = SPACE.replace("network: [default, slow]", "network: [default]")
    text = text.replace("[a100_sxm_80, h100_sxm]", "[h100_sxm]").replace("100 USD/h", "400 USD/h")
    text = text.replace("[1, 2, 8, 16]", "[8, 16]").replace("[16384, 65536]", "[65536]")
    azure = study_of(f"{text}pricing: {{provider: Azure}}\n").result
    aws = study_of(f"{text}pricing: {{provider: AWS}}\n").result
    found = compare_studies(azure, aws)
    moved = [one for one in found.common if one.moved]
    # The other network may have another plan.
    reasons = [set(one.reasons) - {"its plan"} for one in moved]
    assert reasons == [{"its network: infiniband_ndr400 → efa_3200g"}]


def test_prices_move_no_time(study):
    cheap = revise_study(study.result, ["price=-50%"]).after
    found = compare_studies(study.result, cheap)
    assert {difference.kind for difference in found.differences} == {"platform"}
    assert not any(difference.matters for difference in found.differences)
    assert not any(one.moved for one in found.common)
    costs = {move.metric: move for move in found.best}
    assert costs["cost_usd_per_million_samples"].change == pytest.approx(-0.5)
    assert found.hypervolume_ratio > 1
    assert "the second is ahead in cost (-50.0 %)" in found.conclusion
    assert "the second's front covers more" in found.conclusion
    back = compare_studies(cheap, study.result)
    assert back.hypervolume_ratio == pytest.approx(1 / found.hypervolume_ratio)
    assert "the second is behind in cost (+100.0 %)" in back.conclusion
    assert "the second's front covers less" in back.conclusion


def test_links_concern_those_who_use_them(study):
    faster = revise_study(
        study.result, ["link.pcie.bandwidth=*2", "link.nvswitch.bandwidth=*2"]
    ).after
    found = compare_studies(study.result, faster)
    reasons = {reason for one in found.common for reason in one.reasons}
    assert any("links.nvswitch" in reason for reason in reasons)
    assert not any("links.pcie" in reason for reason in reasons)


def test_other_spaces_share_some_candidates(study, tmp_path):
    text = SPACE.replace("[16384, 65536]", "[65536, 32768]").replace("at_most: 100", "at_most: 90")
    space = tmp_path / "space.yaml"
    space.write_text(text.replace("trials: 64", "trials: 10, seed: 3"))
    other = run(space, RunOptions(out=tmp_path / "other")).result
    found = compare_studies(study.result, other)
    words = [difference.text for difference in found.differences]
    assert "space parameters.global_batch_size: 16384, 65536 → 32768, 65536" in words
    assert any(word.startswith("space constraints") for word in words)
    assert "setting seed: 0 → 3" in words
    known = {
        frozenset(record.parameters): outcome_key(record)
        for record in study.result.records
        if record.evaluated
    }
    both = {
        (known[frozenset(record.parameters)], outcome_key(record))
        for record in other.records
        if record.evaluated and frozenset(record.parameters) in known
    }
    assert both
    assert len(found.common) == len(both)
    # Another seed may lead the solver to another plan, and nothing else differs.
    assert all(one.reasons == ("its plan",) for one in found.common if one.moved)
    assert not any(one.moved for one in found.common if one.same_plan)


def test_objectives_in_common_are_compared(study):
    result = study.result
    fewer = replace(
        result,
        objectives=(result.objectives[0],),
        records=tuple(replace(record, values=record.values[:1]) for record in result.records),
    )
    found = compare_studies(result, fewer)
    assert not found.same_objectives
    assert found.objectives == (result.objectives[0],)
    other = replace(result, objectives=(Objective("world_size", maximize=False),))
    with pytest.raises(ConfigError, match="no objective in common"):
        compare_studies(result, other)


def test_nothing_feasible_is_said(study):
    nothing = revise_study(study.result, ["memory=2GiB", "device.memory.reserved=1.999GiB"]).after
    found = compare_studies(study.result, nothing)
    assert found.hypervolumes is None
    assert found.conclusion == "nothing is feasible in the second study"
    both = compare_studies(nothing, nothing)
    assert both.conclusion == "nothing is feasible in either study"


def test_other_models_are_called_out(study):
    other = replace(study.result, model_name="another")
    conclusion = compare_studies(study.result, other).conclusion
    assert conclusion.startswith("the studies are of different models, dlrm_tiny and another")


def with_network(number, speed, network, **changes):
    record = trial(number, speed, 0.1, **changes)
    parameters = tuple({**dict(record.parameters), "network": network}.items())
    return replace(record, parameters=parameters)


def test_twins_are_the_same():
    """The network makes no difference on `a`: one study tried two, the other one for all."""
    first = study_of_trials(
        with_network(0, 1e6, "slow"),
        with_network(1, 1e6, "fast"),
        with_network(2, 2e6, "slow", platform="b"),
        with_network(3, 3e6, "fast", platform="b"),
    )
    second = study_of_trials(
        with_network(0, 2e6, "slow", platform="b"),
        with_network(1, 1.25e6, "any", equal_count=1, equal_because=("network",)),
    )
    found = compare_studies(first, second).common
    assert [(one.first, one.second) for one in found] == [(0, 1), (2, 0)]
    assert [one.time_ratio for one in found] == pytest.approx([0.8, 1.0])
    back = compare_studies(second, first).common
    assert [(one.first, one.second) for one in back] == [(0, 2), (1, 0)]


def test_what_is_said_not_to_matter_has_to_name_one_outcome():
    """The network of one trial makes no difference, but in the other study it does."""
    first = study_of_trials(with_network(0, 1e6, "any", equal_because=("network",)))
    second = study_of_trials(with_network(0, 1e6, "slow"), with_network(1, 2e6, "fast"))
    assert compare_studies(first, second).common == ()
    assert compare_studies(second, first).common == ()


def test_of_a_platform_in_one_study_only_the_figures_that_a_user_gave_it_differ(study):
    own = "platform: [a100_sxm_80, {from: h100_sxm, price: 2 USD/GPU/h, node: {devices: 4}}]"
    derived = study_of(SPACE.replace("platform: [a100_sxm_80, h100_sxm]", own))
    found = compare_studies(study.result, derived.result)
    name = "h100_sxm (2 USD/GPU/h, node.devices 4)"
    figures = {
        difference.quantity: difference.second
        for difference in found.differences
        if difference.name == name
    }
    assert figures.pop("").startswith("sha256")
    assert figures == {"node.devices": "4", "price own price": "2.00 USD/GPU/h"}
    # Its measurements belong to it.
    assert not any(difference.kind == "calibration" for difference in found.differences)
