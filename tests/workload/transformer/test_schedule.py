"""Pipeline schedules: order, bubbles and what a stage holds."""

from __future__ import annotations

import numpy as np
import pytest

from dse.graph import TaskKind
from dse.simulate import breakdown, simulate
from dse.workload.transformer._types import DataSharding, Schedule
from dse.workload.transformer.step._iteration import Segment, _build_graph
from dse.workload.transformer.step._schedule import (
    InFlight,
    Pass,
    in_flight,
    layers_by_chunk,
    stage_order,
)
from dse.workload.transformer.step._structure import Role, Structure
from dse.workload.transformer.step._tasks import make_tasks


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
        (2, 4, 1, (0, 1, 1, 0)),  # the embedding, and the loss, as the only layer of a chunk
        (3, 4, 1, (1, 1, 1, 0)),
        (1, 4, 1, ()),
        (126, 8, 8, (1, *[2] * 62, 1)),  # Llama 3.1 405B
        (126, 16, 8, (0, *[1] * 126, 0)),  # as it was trained
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
        assert in_flight(p, v, m, stage) == (InFlight(most, 0),)


def test_gpipe_runs_all_forward_passes_first():
    order = stage_order(2, 1, 2, 0, Schedule.GPIPE)
    assert order == (
        Pass(False, 0, 0),
        Pass(False, 0, 1),
        Pass(True, 0, 0),
        Pass(True, 0, 1),
    )
    assert in_flight(4, 1, 9, 3, Schedule.GPIPE) == (InFlight(9, 0),)


def test_zero_bubble_makes_gradients_of_weights_late_by_hand():
    def words(stage):
        order = stage_order(3, 1, 3, stage, Schedule.ZERO_BUBBLE)
        names = ("W" if p.weights else "B" if p.backward else "F" for p in order)
        return " ".join(f"{name}{p.micro_batch}" for name, p in zip(names, order, strict=True))

    assert words(0) == "F0 F1 F2 B0 W0 B1 W1 B2 W2"
    assert words(1) == "F0 F1 B0 F2 B1 W0 B2 W1 W2"
    assert words(2) == "F0 B0 F1 B1 F2 B2 W0 W1 W2"


@pytest.mark.parametrize(
    ("schedule", "expected"),
    [(Schedule.ONE_F_ONE_B, [11, 9, 7, 5]), (Schedule.ZERO_BUBBLE, [8, 7, 6, 5])],
)
def test_passes_before_the_first_gradient_of_interleaved_stages_by_hand(schedule, expected):
    # Four for the first chunks of all micro-batches of a round, one of its own, and for each later
    # stage two, or one where a gradient does not wait for those of weights (PyTorch's
    # ScheduleInterleavedZeroBubble).
    orders = [stage_order(4, 2, 8, stage, schedule) for stage in range(4)]
    assert [[one.backward for one in order].index(True) for order in orders] == expected


@pytest.mark.parametrize(("p", "v", "m"), [(2, 1, 1), (4, 1, 2), (4, 1, 9), (4, 2, 8), (8, 3, 16)])
def test_zero_bubble_runs_every_pass_once_and_holds_no_more_than_the_first_stage(p, v, m):
    for stage in range(p):
        order = stage_order(p, v, m, stage, Schedule.ZERO_BUBBLE)
        place = {one: index for index, one in enumerate(order)}
        assert len(place) == len(order) == 3 * m * v
        held = waiting = 0
        moments = set()
        for one in order:
            if not one.backward:
                held += 1
            elif one.weights:
                waiting -= 1
                assert place[one._replace(weights=False)] < place[one]
            else:
                held, waiting = held - 1, waiting + 1
                assert place[Pass(False, one.chunk, one.micro_batch)] < place[one]
            moments.add((held, waiting))
        most = in_flight(p, v, m, stage, Schedule.ZERO_BUBBLE)
        assert set(most) <= moments
        assert all(any(h <= m.chunks and w <= m.weights for m in most) for h, w in moments)
        # Qi et al., § 2.3: (p - i + 1) + (i - 1), with i from one; p v in all if interleaved.
        assert max(one.chunks + one.weights for one in most) <= p * v


@pytest.mark.parametrize(
    ("p", "v", "m"), [(2, 1, 4), (4, 1, 4), (4, 1, 16), (4, 2, 8), (8, 3, 16)]
)
@pytest.mark.parametrize("seconds", [(1.0, 1.0, 1.0), (1.0, 1.1, 0.9), (2.0, 2.0, 1.0)])
def test_the_bubble_of_zero_bubble(p, v, m, seconds):
    # Qi et al., table 2: (p - 1)(F + B - W), where 1F1B has (p - 1)(F + B + W).
    forward, inputs, weights = seconds
    durations = {
        Role.FORWARD: forward,
        Role.INPUT_GRADIENTS: inputs,
        Role.WEIGHT_GRADIENTS: weights,
    }
    result = run(structure(p, v, m, schedule=Schedule.ZERO_BUBBLE), by_role(durations))
    bubble_s = (p - 1) * (forward + inputs - weights)
    assert result.makespan_s == pytest.approx(m * v * sum(seconds) + bubble_s)


@pytest.mark.parametrize(("p", "m"), [(2, 4), (4, 4), (4, 16)])
def test_the_bubble_of_gpipe_is_that_of_1f1b(p, m):
    seconds = by_role({Role.FORWARD: 1.0, Role.BACKWARD: 2.0})
    result = run(structure(p, 1, m, schedule=Schedule.GPIPE), seconds)
    assert result.makespan_s == pytest.approx(3 * m * (1 + (p - 1) / m))


#: Bubble rates of 1F1B and ZB-H1, with the times of F, B, W and of a transfer in milliseconds that
#: they are calculated from (Qi et al., tables 5 and 9).
PUBLISHED = [
    (8, 24, (18.522, 18.086, 9.337, 0.601), 0.2431, 0.1585),
    (8, 32, (18.513, 18.086, 9.331, 0.626), 0.1985, 0.1242),
    (8, 64, (18.546, 18.097, 9.321, 0.762), 0.1240, 0.0674),
    (8, 24, (29.718, 29.444, 19.927, 0.527), 0.2347, 0.1323),
    (8, 32, (29.802, 29.428, 19.530, 0.577), 0.1898, 0.1045),
    (16, 48, (11.347, 11.248, 8.132, 0.377), 0.2552, 0.1397),
    (32, 96, (10.419, 10.207, 7.715, 0.408), 0.2646, 0.1421),
]


@pytest.mark.parametrize(("p", "m", "seconds", "plain", "zero"), PUBLISHED)
def test_published_bubble_rates(p, m, seconds, plain, zero):
    forward, inputs, weights, sending = seconds
    durations = {
        Role.FORWARD: forward,
        Role.BACKWARD: inputs + weights,
        Role.INPUT_GRADIENTS: inputs,
        Role.WEIGHT_GRADIENTS: weights,
        Role.RECEIVE: sending,
    }
    work_s = m * (forward + inputs + weights)
    for schedule, rate in ((Schedule.ONE_F_ONE_B, plain), (Schedule.ZERO_BUBBLE, zero)):
        shape = structure(p, 1, m, overlaps_receive=True, schedule=schedule)
        took_s = run(shape, by_role(durations)).makespan_s
        assert (took_s - work_s) / took_s == pytest.approx(rate, abs=1e-3)


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


def test_sharded_stages_gather_for_every_pass_or_once_by_hand():
    # Two stages of two layers, two micro-batches: 2 + 2 passes of two layers on each stage.
    shape = {"reduces": True, "sharding": DataSharding.PARAMETERS, "overlaps_receive": True}

    def count(role, **changes):
        tasks = make_tasks(structure(2, 1, 2, **shape, **changes))
        return sum(tasks.kinds[kind].role is role for kind in tasks.kind)

    assert count(Role.GATHER_LAYER) == 2 * 4 * 2
    assert count(Role.GATHER_LAYER, reshards=False) == 2 * 2
    # The embedding on the first stage and the head on the last stay until the end.
    assert count(Role.GATHER_ROOT) == count(Role.GATHER_ROOT, reshards=False) == 2
    assert count(Role.REDUCE_LAYER) == 2 * 2 * 2
    assert count(Role.REDUCE_LAYER, reduces_once=True) == 2 * 2
    assert count(Role.REDUCE_ALL) == 0
    # With one stage, nothing but the micro-batch's own passes uses what was gathered.
    one = structure(1, 1, 2, **{**shape, "overlaps_receive": False}, reshards=False)
    tasks = make_tasks(one)
    gathers = [tasks.kinds[kind].role is Role.GATHER_LAYER for kind in tasks.kind]
    assert sum(gathers) == 2 * 2


def test_gradients_of_weights_are_reduced_when_they_are_made():
    shape = structure(2, 1, 2, reduces=True, overlaps_reduce=True, schedule=Schedule.ZERO_BUBBLE)
    tasks = make_tasks(shape)
    roles = [tasks.kinds[kind].role for kind in tasks.kind]
    assert roles.count(Role.LAYER_WEIGHT_GRADIENTS) == roles.count(Role.REDUCE_LAYER) == 4
    assert roles.count(Role.INPUT_GRADIENTS) == 4
    assert roles.count(Role.WEIGHT_GRADIENTS) == 2
    for task, kind in enumerate(tasks.kind):
        if tasks.kinds[kind].role is Role.REDUCE_LAYER:
            before = {tasks.kinds[tasks.kind[other]].role for other in tasks.waits[task]}
            assert Role.LAYER_WEIGHT_GRADIENTS in before


def test_a_stage_that_waits_for_what_it_sends_does_so_after_layers_too():
    # Forward 2 layers, send, and back: 1 s layers forward, 2 s backward, 0.25 s a transfer.
    seconds = {Role.LAYER_FORWARD: 1.0, Role.LAYER_BACKWARD: 2.0, Role.SEND: 0.25}
    shape = structure(2, 1, 1, reduces=True, sharding=DataSharding.PARAMETERS)
    result = run(shape, by_role(seconds))
    assert result.makespan_s == pytest.approx(2 * (2 + 4) + 2 * 0.25)
