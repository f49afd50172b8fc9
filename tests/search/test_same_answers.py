"""Configurations that differ in what makes no difference get the same answer, found once."""

from __future__ import annotations

import pytest

from dse.search import TrialStatus, read_inputs
from dse.workload import predict_job
from tests.conftest import SMALL_SPACE

NETWORKS = "  network: [default, slow]\n  sharding_types:"
SLOW = "networks:\n  slow: {kind: ethernet, nics: 1, bandwidth: 1 Gbit/s, latency: 50 us}\n"


@pytest.fixture(scope="module")
def inputs(tmp_path_factory):
    path = tmp_path_factory.mktemp("networks") / "networks.yaml"
    path.write_text(SMALL_SPACE.replace("  sharding_types:", NETWORKS) + SLOW)
    return read_inputs(path)


def answer(evaluator, inputs, **changes):
    first = {parameter.name: parameter.choices[0] for parameter in inputs.space.parameters}
    record = evaluator.evaluate(0, first | {"platform": "h100_sxm"} | changes)
    assert record.status is not TrialStatus.FAILED, record.reason
    return record


def test_the_network_makes_no_difference_on_one_node(inputs):
    evaluator = inputs.context.make_evaluator()
    default = answer(evaluator, inputs, world_size=8, network="default")
    slow = answer(evaluator, inputs, world_size=8, network="slow")
    assert slow.configuration.value("network") == "slow"
    assert slow.prediction == default.prediction
    assert slow.configuration.plan == default.configuration.plan
    # So does the job on the network that was named.
    platform = inputs.context.platforms["h100_sxm"]
    named = inputs.context.workload.job(
        platform, dict(slow.configuration.parameters), networks=inputs.space.networks
    )
    planned = named.with_plan(slow.configuration.plan)
    assert predict_job(planned, platform.quote(8)) == slow.prediction


def test_the_network_makes_a_difference_on_several_nodes(inputs):
    evaluator = inputs.context.make_evaluator()
    times_s = [
        answer(evaluator, inputs, world_size=16, network=name).prediction.iteration_time_s
        for name in ("default", "slow")
    ]
    assert times_s[1] > times_s[0]


def test_answers_do_not_depend_on_what_was_asked_before(inputs):
    asked = [
        {"world_size": world_size, "sharding_types": types, "global_batch_size": batch}
        for world_size in (2, 8)
        for types in ("table_wise", "table_wise+row_wise")
        for batch in (16384, 65536)
    ]
    forwards, backwards = inputs.context.make_evaluator(), inputs.context.make_evaluator()
    first = [answer(forwards, inputs, **changes) for changes in asked]
    second = [answer(backwards, inputs, **changes) for changes in reversed(asked)]
    assert first == second[::-1]
    fresh = inputs.context.make_evaluator()
    assert answer(fresh, inputs, **asked[-1]) == first[-1]


def test_a_plan_leaves_the_memory_free_that_the_space_wants_free(tmp_path):
    path = tmp_path / "headroom.yaml"
    chosen = {"world_size": 2, "sharding_types": "table_wise+row_wise"}

    def answered(constraints):
        # No host hides what a plan costs.
        space = SMALL_SPACE.replace("  sharding_types:", "  program: ideal\n  sharding_types:")
        path.write_text(space + constraints)
        inputs = read_inputs(path)
        return answer(inputs.context.make_evaluator(), inputs, **chosen)

    fastest = answered("").prediction
    wanted = fastest.memory_headroom_fraction + 2e-5
    found = answered(f"constraints: [{{metric: memory_headroom_fraction, at_least: {wanted}}}]\n")
    assert found.status is TrialStatus.FEASIBLE
    assert found.prediction.memory_headroom_fraction >= wanted
    # Both searches are heuristic: less room may lead one past what the other missed.
    assert found.prediction.iteration_time_s >= fastest.iteration_time_s * (1 - 1e-3)
