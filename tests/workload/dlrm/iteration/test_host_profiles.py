"""Host overheads from traces in predictions."""

from __future__ import annotations

from dataclasses import fields, replace

from hypothesis import given
from hypothesis import strategies as st
import numpy as np
import pytest

from dse.graph import TaskKind
from dse.machine import HostSpec, Precision
from dse.machine.host import (
    Figure,
    HostProfile,
    LaunchFigures,
    OperatorFigures,
    ProfileSource,
    SharedFigures,
)
from dse.workload import LaunchMode, predict_job
from dse.workload._host import HostTimes
from dse.workload.dlrm import DlrmJob, DlrmProblem, DlrmRuntime, PlanScorer
from tests.conftest import make_cluster, make_model
from tests.workload.dlrm.test_prediction import spread_plan

HOST = HostSpec(3e-6, 8e-6, 2e-6, 5e-6, 3e-6, 10e-6)


def figure(microseconds, spread=0.0):
    return Figure(1e-6 * microseconds, spread, 10)


def profile(operators=(), launches=(), scale=1.0, **shared):
    figures = {"between_operators": 10, "before_launch": 20, "after_launch": 6, "launch": 5}
    figures |= {"between_launches": 8, "graph_launch": 12} | shared
    scaled = {name: value and figure(scale * value) for name, value in figures.items()}
    return HostProfile(
        "p", ProfileSource((), ()), SharedFigures(**scaled), tuple(operators), tuple(launches)
    )


def measured(given_profile):
    return HostTimes(given_profile.host_spec(HOST))


def us(dispatch):
    return pytest.approx(1e6 * dispatch.duration_s)


LINEAR = OperatorFigures("aten::linear", 7, 3.0, figure(30), figure(4), figure(2))
ADDMM = OperatorFigures("AddmmBackward0", 9, 3.5, figure(40), figure(1), figure(7))


def test_dispatches_by_hand():
    # Without a profile: 3 + 8 + 2 · 5 + 3 + 2.
    assert us(HostTimes(HOST).dispatch("x", 2, False)) == 26
    assert us(measured(profile()).dispatch("x", 2, False)) == 10 + 20 + 2 * 5 + 8 + 6
    times = measured(profile([LINEAR, ADDMM]))
    # Three launches of its own in place of one.
    assert us(times.dispatch("top_mlp.0.forward", 1, False)) == 10 + 30 + 3 * 5 + 2 * 2 + 4
    assert us(times.dispatch("loss.forward", 1, False)) == 10 + 20 + 5 + 6
    # The two gradients of a layer are one call of 3.5 launches.
    weights = times.dispatch("top_mlp.0.weight_gradient", 1, False)
    inputs = times.dispatch("top_mlp.0.input_gradient", 1, False)
    assert us(weights) == 10 + 40 + 2.5 * 5 + 1.5 * 7 + 1
    assert us(inputs) == 5 + 7
    whole = 10 + 40 + 3.5 * 5 + 2.5 * 7 + 1
    assert 1e6 * (weights.duration_s + inputs.duration_s) == pytest.approx(whole)


def test_what_was_not_measured_stays_the_platforms():
    times = measured(profile(between_operators=None, between_launches=None))
    assert us(times.dispatch("x", 2, False)) == 3 + 20 + 2 * 5 + 3 + 6
    assert us(times.graph_launch()) == 12
    assert us(measured(profile(graph_launch=None)).graph_launch()) == 10


def test_copies_have_a_call_of_their_own():
    copies = [LaunchFigures("cudaMemcpyAsync", figure(9))]
    times = measured(profile(launches=copies))
    assert us(times.dispatch("copy indices", 1, True)) == 10 + 20 + 9 + 6
    assert us(times.dispatch("pooled lookup", 1, False)) == 10 + 20 + 5 + 6


@pytest.mark.parametrize(
    ("step", "name"),
    [
        ("bottom_mlp.1.activation", "aten::relu"),
        ("bottom_mlp.1.activation.backward", "ReluBackward0"),
        ("interaction.concat.backward", "CatBackward0"),
        ("interaction.dot.backward", "BmmBackward0"),
        ("pooled lookup", "fbgemm::split_embedding_codegen_lookup_adagrad_function"),
        ("row lookup backward", "CppNode<SplitLookupFunction_adagrad_Op>"),
        ("replicated lookup", "fbgemm::dense_embedding_codegen_lookup_function"),
        ("replicated lookup backward", "CppNode<SplitLookupFunction_Dense_Op>"),
        ("input all-to-all", "c10d::alltoall_base_"),
    ],
)
def test_steps_find_their_operator(step, name):
    own = OperatorFigures(name, 5, 1.0, figure(100), figure(0))
    times = measured(profile([own]))
    assert us(times.dispatch(step, 1, False)) == 10 + 100 + 5
    for other in ("top_mlp.0.forward", "unknown"):
        assert us(times.dispatch(other, 1, False)) == 10 + 20 + 5 + 6


def test_operators_that_launch_nothing_are_not_used():
    idle = OperatorFigures("aten::relu", 0, 0.0, without_launches=figure(500))
    times = measured(profile([idle]))
    assert us(times.dispatch("mlp.0.activation", 1, False)) == 10 + 20 + 5 + 6


def problem(given_profile=None, **software):
    cluster = make_cluster()
    if given_profile is not None:
        cluster = replace(cluster, host=given_profile.host_spec(cluster.host))
    return DlrmProblem(make_model(), cluster, 1024, Precision.TF32, DlrmRuntime(**software))


def test_host_tasks_of_the_graph_are_those_of_the_profile():
    layout = PlanScorer(problem(profile([LINEAR]))).filled(spread_plan()).expanded()
    graph = layout.graph
    found = {
        graph.names[task]: graph.duration_s[task]
        for task in np.flatnonzero(graph.kind == TaskKind.HOST)
    }
    assert found["launch top_mlp.0.forward"] == pytest.approx(63e-6)
    assert found["launch loss.forward"] == pytest.approx(41e-6)


seconds = st.floats(0.1, 60)


@given(st.lists(seconds, min_size=6, max_size=6), seconds, st.sampled_from(list(LaunchMode)))
def test_doubled_overheads_are_never_faster(values, own, launch):
    names = [field.name for field in fields(SharedFigures)][:6]
    times = []
    for factor in (1.0, 2.0):
        part = figure(factor * own)
        linear = OperatorFigures("aten::linear", 7, 2.5, part, part, part)
        one = profile([linear], scale=factor, **dict(zip(names, values, strict=True)))
        scorer = PlanScorer(problem(one, launch=launch))
        times.append(predict_job(DlrmJob.scored(scorer, spread_plan())).iteration_time_s)
    assert times[1] >= times[0]


def test_the_figures_of_a_platform_as_a_profile_change_nothing():
    host = make_cluster().host
    same = profile(
        **{
            field.name: 1e6 * getattr(host, f"{field.name}_s")
            for field in fields(SharedFigures)[:6]
        }
    )
    before, after = (
        predict_job(DlrmJob.scored(PlanScorer(problem(one)), spread_plan())).iteration_time_s
        for one in (None, same)
    )
    assert after == pytest.approx(before, rel=1e-12)


def test_spreads_of_measured_figures_decide_the_interval():
    def width(spread):
        shared = SharedFigures(
            **{
                name: Figure(10e-6, spread, 5)
                for name in ("between_operators", "before_launch", "after_launch", "launch")
            }
        )
        one = HostProfile("p", ProfileSource((), ()), shared)
        prediction = predict_job(DlrmJob.scored(PlanScorer(problem(one)), spread_plan()))
        return prediction.iteration_time_p95_s / prediction.iteration_time_p5_s

    assert 1 < width(0.0) < width(2.0) < width(6.0)
