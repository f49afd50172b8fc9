"""Pipeline schedules: order, bubbles and what a stage holds."""

from __future__ import annotations

import numpy as np
import pytest

from dse.graph import TaskKind
from dse.simulate import breakdown, simulate
from dse.workload.transformer._iteration import Segment, _build_graph
from dse.workload.transformer._schedule import (
    Pass,
    chunks_in_flight,
    layers_by_chunk,
    stage_order,
)
from dse.workload.transformer._tasks import Role, Structure, make_tasks
from dse.workload.transformer._types import DataSharding


def structure(pipeline, interleave, micro_batches, **changes):
    return Structure(
        **{
            "pipeline": pipeline,
            "interleave": interleave,
            "micro_batches": micro_batches,
            "layers": (2,) * (pipeline * interleave),
            "kinds": (0,) * (2 * pipeline * interleave),
            "reduces": False,
            "overlaps_reduce": False,
            "gathers_updated": False,
            "ties_ends": False,
            "overlaps_receive": False,
            "sharding": DataSharding.NONE,
            "prefetches": True,
            **changes,
        }
    )


def run(structure, seconds):
    """Simulates a structure with seconds by kind of task; no host, one segment for each task."""
    tasks = make_tasks(structure)
    segments = tuple(
        (Segment("", TaskKind.COLLECTIVE if kind.role.is_transfer else TaskKind.COMPUTE),)
        for kind in tasks.kinds
    )
    step = _build_graph(structure, segments, False, False)
    durations = np.array([value for kind in tasks.kinds for value in (0.0, seconds(kind))])
    return simulate(step.graph, durations[step.duration])


def by_role(seconds):
    return lambda kind: seconds.get(kind.role, 0.0)


@pytest.mark.parametrize(
    ("layers", "pipeline", "interleave", "expected"),
    [
        (8, 4, 1, (2, 2, 2, 2)),
        (8, 2, 2, (2, 2, 2, 2)),
        (6, 4, 1, (1, 2, 2, 1)),  # embedding and loss count as layers
        (7, 2, 2, (2, 2, 2, 1)),  # the loss alone
        (11, 4, 1, (3, 3, 3, 2)),  # the last chunk has the rest
        (9, 4, 1, ()),
        (2, 4, 1, ()),  # a chunk without any layer
        (126, 8, 8, (1, *[2] * 62, 1)),  # Llama 3.1 405B
    ],
)
def test_layers_of_chunks(layers, pipeline, interleave, expected):
    assert layers_by_chunk(layers, pipeline, interleave) == expected


@pytest.mark.parametrize(
    ("chunks", "expected"),
    [
        (16, (*[4] * 15, 1 + 1)),  # NVIDIA-NeMo/Megatron-Bridge, recipes/deepseek/deepseek_v3.py
        (8, (*[8] * 7, 5 + 1)),
        (4, (16, 16, 16, 13 + 1)),
        (32, (1, *[2] * 30, 0 + 1)),  # embedding, module and loss count as layers
    ],
)
def test_chunks_of_a_model_with_a_multi_token_prediction_module(chunks, expected):
    assert layers_by_chunk(61, chunks, 1, 1) == expected


def test_the_order_of_two_stages_by_hand():
    def words(stage):
        order = stage_order(2, 1, 3, stage)
        return " ".join(f"{'B' if p.backward else 'F'}{p.micro_batch}" for p in order)

    assert words(0) == "F0 F1 B0 F2 B1 B2"
    assert words(1) == "F0 B0 F1 B1 F2 B2"


def test_the_order_of_two_stages_with_two_chunks_by_hand():
    order = stage_order(2, 2, 2, 0)
    # Warm-up: 2 · 1 + 1 · 2 passes, then one of each, then the rest.
    assert order == (
        Pass(False, 0, 0),
        Pass(False, 0, 1),
        Pass(False, 1, 0),
        Pass(False, 1, 1),
        Pass(True, 1, 0),
        Pass(True, 1, 1),
        Pass(True, 0, 0),
        Pass(True, 0, 1),
    )


@pytest.mark.parametrize(("p", "v", "m"), [(1, 1, 3), (2, 1, 2), (4, 1, 9), (4, 2, 8), (8, 3, 16)])
def test_every_pass_is_run_once_and_backward_after_forward(p, v, m):
    for stage in range(p):
        order = stage_order(p, v, m, stage)
        place = {one: index for index, one in enumerate(order)}
        assert len(place) == len(order) == 2 * m * v
        for chunk in range(v):
            for micro_batch in range(m):
                forward = place[Pass(False, chunk, micro_batch)]
                assert forward < place[Pass(True, chunk, micro_batch)]
        held, most = 0, 0
        for one in order:
            held += -1 if one.backward else 1
            most = max(most, held)
        assert most == chunks_in_flight(p, v, m, stage)


@pytest.mark.parametrize(
    ("p", "v", "m"),
    [(1, 1, 4), (2, 1, 4), (4, 1, 4), (4, 1, 16), (4, 2, 8), (8, 3, 64), (2, 4, 6)],
)
def test_the_bubble_of_equal_stages(p, v, m):
    # Narayanan et al., § 2.2: (p - 1) / (m v) of the ideal time, without communication.
    forward, backward = 1.0, 2.0
    result = run(structure(p, v, m), by_role({Role.FORWARD: forward, Role.BACKWARD: backward}))
    ideal = m * v * (forward + backward)
    assert result.makespan_s == pytest.approx(ideal * (1 + (p - 1) / (m * v)))
    for stage in breakdown(result):
        assert stage.compute_s == pytest.approx(ideal)
        assert stage.idle_s == pytest.approx(result.makespan_s - ideal)


def test_a_transfer_that_nothing_hides_by_hand():
    # Two stages, one micro-batch: forward, send, forward, backward, send, backward.
    seconds = {Role.FORWARD: 1.0, Role.BACKWARD: 2.0, Role.RECEIVE: 0.25}
    result = run(structure(2, 1, 1, overlaps_receive=True), by_role(seconds))
    assert result.makespan_s == pytest.approx(1 + 0.25 + 1 + 2 + 0.25 + 2)
    stages = breakdown(result)
    assert [stage.exposed_communication_s for stage in stages] == [0.25, 0.25]
    assert [stage.idle_s for stage in stages] == pytest.approx([3.25, 3.25])


def test_gradients_are_reduced_beside_the_last_backward_pass_by_hand():
    # Layers of 2 s backward, whose reductions of 3 s queue up: 2 + 3 + 3, then the embedding's.
    seconds = {Role.LAYER_BACKWARD: 2.0, Role.REDUCE_LAYER: 3.0}

    def lasting(kind):
        if kind.role is Role.REDUCE_ENDS:
            return 0.5 if kind.chunk else 1.0
        return seconds.get(kind.role, 0.0)

    result = run(structure(1, 1, 1, reduces=True, overlaps_reduce=True), lasting)
    assert result.makespan_s == pytest.approx(2 + 3 + 3 + 1)
    assert breakdown(result)[0].compute_s == pytest.approx(4)
    assert breakdown(result)[0].exposed_communication_s == pytest.approx(5)


def test_sharded_parameters_are_gathered_one_layer_ahead_by_hand():
    changes = {"reduces": True, "sharding": DataSharding.PARAMETERS}
    seconds = {Role.LAYER_FORWARD: 3.0, Role.LAYER_BACKWARD: 3.0, Role.HEAD: 2.0}
    seconds[Role.GATHER_LAYER] = 2.0
    times = {}
    for prefetches in (False, True):
        shape = structure(1, 1, 1, prefetches=prefetches, **changes)
        times[prefetches] = run(shape, by_role(seconds)).makespan_s
    # Two layers in both directions, each 2 + 3, and the head; ahead, only one gather is seen.
    assert times == {False: pytest.approx(4 * 5 + 2), True: pytest.approx(2 + 4 * 3 + 2)}
