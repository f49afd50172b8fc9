"""The primitives and the document over two hand-made ranks; all answers computed by hand."""

from __future__ import annotations

import pytest

from dse.errors import ConfigError, SimulationError, UnknownNameError
from dse.machine.collectives import CollectiveOp, collective_time_s
from dse.trace import COMPUTING, TaskRole, TrainingPhase, read_kineto
from dse.trace.whatif import (
    Selector,
    captured_machine,
    captured_step,
    parse_optimization,
    read_changes,
)
from tests.trace.helpers import document, operator, span, write
from tests.trace.whatif.helpers import REDUCED_BYTES, Tape, rank_events


@pytest.fixture(scope="module")
def traces(tmp_path_factory):
    folder = tmp_path_factory.mktemp("two_ranks")
    for rank, late in enumerate((0, 30)):
        write(
            folder / f"rank{rank}.json",
            rank_events(late),
            rank=rank,
            deviceProperties=[{"id": 0, "name": "Tesla V100-SXM2-32GB"}],
        )
    return read_kineto(folder)


@pytest.fixture(scope="module")
def captured(traces):
    return captured_step(traces)


def test_the_step_as_captured(captured):
    assert [rank.simulated_s for rank in captured.before] == pytest.approx([690e-6, 690e-6])
    assert captured.machine.platform is not None
    assert captured.machine.platform.name == "v100_dgx1"
    assert captured.machine.world_size == 2


def test_facts_of_the_tasks(captured):
    editor = captured.editor()
    facts = {}
    for task in editor.select(Selector(role=(TaskRole.KERNEL, TaskRole.COLLECTIVE), rank=(0,))):
        facts[editor.name_of(task)] = (editor.phase_of(task), editor.layer_of(task))
    assert facts == {
        "sgemm_fw": (TrainingPhase.FORWARD, 0),
        "sgemm_bw": (TrainingPhase.BACKWARD, 0),
        "ncclDevKernel_AllReduce_Sum": (TrainingPhase.FORWARD, 1),
        "multi_tensor_apply": (TrainingPhase.OPTIMIZER, -1),
    }
    (forward,) = editor.select(Selector(name=("sgemm_fw",), role=(TaskRole.KERNEL,), rank=(0,)))
    assert editor.stack_of(forward) == ("ProfilerStep#1", "aten::linear", "aten::addmm")
    inputs = editor.inputs_of(forward)
    assert inputs is not None
    assert inputs.shapes == "[[64],[8,32]]"
    call_of = editor.launch_of(forward)
    assert editor.role_of(call_of) == TaskRole.CALL
    (reduces,) = editor.by_collective(editor.select(Selector(collective=("all_reduce",))))
    assert [editor.rank_of(task) for task in reduces] == [0, 1]
    assert [editor.size_of(task) for task in reduces] == [REDUCED_BYTES, REDUCED_BYTES]


def test_gaps_between_operators_of_one_phase_belong_to_it(tmp_path):
    tape = Tape()
    number = tape.forward("aten::mm", 10)
    tape.now += 10
    tape.forward("aten::mm", 10)
    tape.now += 20
    tape.backward("MmBackward0", number, "aten::mm", 10)
    tape.now += 30
    tape.backward("MmBackward0", number, "aten::mm", 10)
    tape.now += 40
    tape.optimizer("SGD", ("aten::_foreach_add_", 5, None))
    editor = tape.capture(tmp_path).editor()
    gaps = editor.select(Selector(role=(TaskRole.HOST_GAP,)))
    assert {round(1e6 * editor.duration_of(gap)): editor.phase_of(gap) for gap in gaps} == {
        10: TrainingPhase.FORWARD,
        20: TrainingPhase.OTHER,
        30: TrainingPhase.BACKWARD,
        40: TrainingPhase.OTHER,
    }


def test_selectors(captured):
    editor = captured.editor()

    def names(**what):
        tasks = editor.select(Selector(rank=(0,), role=COMPUTING, **what))
        return sorted(map(editor.name_of, tasks))

    assert names() == ["multi_tensor_apply", "sgemm_bw", "sgemm_fw"]
    assert names(name=("*GEMM*",)) == ["sgemm_bw", "sgemm_fw"]
    assert names(operator=("aten::addmm",)) == ["sgemm_fw"]
    assert names(phase=(TrainingPhase.BACKWARD, TrainingPhase.OPTIMIZER)) == [
        "multi_tensor_apply",
        "sgemm_bw",
    ]
    assert names(longer_than_s=60e-6, shorter_than_s=150e-6) == ["sgemm_fw"]
    assert names(without=Selector(name=("sgemm*",))) == ["multi_tensor_apply"]
    assert names(stream=("*stream 20*",)) == []
    assert len(editor.select(Selector(larger_than_bytes=REDUCED_BYTES - 1))) == 2
    assert editor.select(Selector(larger_than_bytes=REDUCED_BYTES)) == ()


def what_if(captured, tmp_path, steps):
    path = tmp_path / "steps.yaml"
    path.write_text(f"schema_version: 1\nname: test\nsteps:\n{steps}")
    return captured.what_if(read_changes(path))


@pytest.mark.parametrize("key", ["stream", "lane"])
def test_selecting_a_stream(captured, tmp_path, key):
    steps = f"  - select: {{{key}: '*stream 20*', rank: 0}}\n    scale: 0.5\n"
    assert what_if(captured, tmp_path, steps).effects[0].tasks == 1


def test_scaling_a_gemm(captured, tmp_path):
    # Half of 200 µs of backward: rank 1, whose reduction began 30 µs after that of rank 0 for no
    # known reason, arrives at 350 µs; transfer until 520 µs, update until 580 µs. The host comes
    # to its synchronisation at 620 µs; the 10 µs after the device's end and the 10 µs to the end
    # of the step stay.
    answer = what_if(captured, tmp_path, "  - {select: {name: sgemm_bw}, scale: 0.5}\n")
    assert answer.effects[0].tasks == 2
    assert answer.before_s == pytest.approx(690e-6)
    assert answer.after_s == pytest.approx(640e-6)


def test_removing_the_update_and_its_launch(captured, tmp_path):
    answer = what_if(captured, tmp_path, "  - {select: {phase: optimizer}, remove: true}\n")
    assert answer.effects[0].tasks == 2
    # The kernel, its call and what lay between of each rank are gone.
    names = answer.graph.graph.names
    assert "multi_tensor_apply" not in names
    assert "sgemm_fw" in names
    kept = what_if(
        captured,
        tmp_path,
        "  - {select: {phase: optimizer}, remove: true, with_launches: false}\n",
    )
    assert kept.effects[0].removed == answer.effects[0].removed - 2


def test_inserting_on_another_stream(captured, tmp_path):
    steps = (
        "  - select: {collective: all_reduce, rank: 0}\n"
        "    insert: {name: compress, duration: 70 us, place: ahead, stream: device 0 stream 7}\n"
    )
    # At the stream's end it would wait for the update, which waits for the reduction.
    with pytest.raises(SimulationError, match=r"change 1 .*compress"):
        what_if(captured, tmp_path, steps)
    answer = what_if(captured, tmp_path, steps.replace("device 0 stream 7", "compressor"))
    assert answer.effects[0].inserted == 1


def test_inserting_on_the_same_stream_delays_the_collective(captured, tmp_path):
    steps = (
        "  - select: {collective: all_reduce, rank: 0}\n"
        "    insert: {name: compress, duration: 70 us, place: ahead}\n"
    )
    answer = what_if(captured, tmp_path, steps)
    graph, timeline = answer.graph.graph, answer.timeline
    starts = [
        timeline.start_s[task] for task, name in enumerate(graph.names) if name.startswith("nccl")
    ]
    # Rank 1 arrived at 450 µs; rank 0 was ready at 420 µs and compresses until 490 µs.
    assert starts == pytest.approx([490e-6, 490e-6])
    behind = what_if(captured, tmp_path, steps.replace("ahead", "behind"))
    # What waits for the reduction waits for the new task: the update of rank 0 comes 70 µs later.
    assert [rank.simulated_s for rank in behind.after] == pytest.approx([760e-6, 690e-6])
    free = what_if(captured, tmp_path, steps.replace("ahead", "behind, blocking: false"))
    assert [rank.simulated_s for rank in free.after] == pytest.approx([690e-6, 690e-6])


def test_a_network_of_twice_the_bandwidth(captured):
    answer = captured.what_if([parse_optimization("network=2x")])
    cluster = captured.machine.cluster("test")
    old = float(collective_time_s(cluster, CollectiveOp.ALL_REDUCE, REDUCED_BYTES))
    transfers = [
        (graph.duration_s[task], task)
        for graph in (captured.graph.graph, answer.graph.graph)
        for task, name in enumerate(graph.names)
        if name.startswith("nccl")
    ]
    # From the last arrival at 450 µs to 620 µs.
    assert transfers[0][0] == pytest.approx(170e-6)
    assert 0.4 < transfers[2][0] / 170e-6 < 0.6
    assert old > 0
    assert answer.machine.platform is captured.machine.platform
    slower = captured.what_if([parse_optimization("network=0.5x")])
    assert slower.after_s > answer.after_s


def test_optimizations_need_a_known_machine(tmp_path):
    write(tmp_path / "rank0.json", rank_events(), rank=0)
    captured = captured_step(read_kineto(tmp_path / "rank0.json"))
    assert captured.machine.platform is None
    with pytest.raises(ConfigError, match=r"change 1 .*name it with --platform"):
        captured.what_if([parse_optimization("network=2x")])
    named = captured_step(read_kineto(tmp_path / "rank0.json"), platform="v100_dgx2")
    answer = named.what_if([parse_optimization("network=2x")])
    assert any("traced on one rank only" in note for note in answer.notes)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("netwrk=2x", "did you mean `network`"),
        ("network", "expected `factor`"),
        ("network=fast", "such as `2x`"),
        ("network=-1", "more than 0"),
        ("network=2x,speed=3", "options of `network` are factor"),
        ("network=2x,3x", "`3x` is no option"),
    ],
)
def test_bad_optimizations(text, message):
    with pytest.raises(ConfigError, match=message):
        parse_optimization(text)


def test_an_unknown_name_is_its_own_error():
    with pytest.raises(UnknownNameError):
        parse_optimization("warp")


@pytest.mark.parametrize(
    ("steps", "message"),
    [
        ("  - {select: {name: nothing*}, scale: 2}\n", "no task has name nothing"),
        ("  - {select: {name: sgemm*}, scale: 0}\n", "steps.0..scale: expected more than 0"),
        ("  - {select: {nme: x}, scale: 2}\n", "did you mean `name`"),
        ("  - {select: {name: x}}\n", "expected one of `scale`, `remove`"),
        (
            "  - {schedule: 'no such stream'}\n",
            "no stream with work fits no such stream",
        ),
        ("  - {optimization: network}\n", "expected `factor`"),
        ("  - {select: {role: gap}, scale: 2}\n", "steps.0..select.role"),
        ("  []\n", "steps"),
    ],
)
def test_bad_documents(captured, tmp_path, steps, message):
    with pytest.raises(ConfigError, match=message):
        what_if(captured, tmp_path, steps)


def test_a_cycle_after_an_edit_is_named(captured):
    editor = captured.editor()
    (forward,) = editor.select(Selector(name=("sgemm_fw",), rank=(0,)))
    (update,) = editor.select(Selector(name=("multi_tensor_apply",), rank=(0,)))
    editor.wait(forward, [update])
    with pytest.raises(SimulationError, match="sgemm_fw"):
        editor.build()


def test_doing_something_to_nothing_is_an_error(captured):
    editor = captured.editor()
    with pytest.raises(ConfigError, match="no task was selected"):
        editor.scale((), 2.0)
    with pytest.raises(ConfigError, match="no task was selected"):
        editor.remove(())
    with pytest.raises(ConfigError, match="no stream"):
        editor.schedule((), lambda task: 0.0)


def test_scheduling_by_priority(captured):
    editor = captured.editor()
    stream = (0, "wire")
    (forward,) = editor.select(Selector(name=("sgemm_fw",), rank=(0,)))
    late = editor.insert("late", TaskRole.COPY, stream, 1e-6, after=[forward])
    soon = editor.insert("soon", TaskRole.COPY, stream, 1e-6, after=[forward])
    editor.schedule([stream], lambda task: 0.0 if task == soon else 1.0)
    assert editor.tasks_on(*stream) == (soon, late)
    with pytest.raises(ConfigError):
        editor.schedule([], lambda task: 0.0)


@pytest.mark.parametrize(
    ("device", "world_size", "platform"),
    [
        ("Tesla V100-SXM2-32GB", 8, "v100_dgx1"),
        ("Tesla V100-SXM3-32GB", 16, "v100_dgx2"),
        ("NVIDIA A100-SXM4-40GB", 8, "a100_sxm_40"),
        ("NVIDIA A100-SXM4-80GB", 8, "a100_sxm_80"),
        ("NVIDIA A100 80GB PCIe", 4, "a100_pcie"),
        ("NVIDIA H100 80GB HBM3", 8, "h100_sxm"),
        ("NVIDIA H100 PCIe", 8, "h100_pcie"),
        ("NVIDIA H200", 8, "h200_sxm"),
        ("NVIDIA H100 NVL", 8, "h100_nvl"),
        ("NVIDIA H20", 8, "h20"),
        ("NVIDIA B200", 8, "b200_sxm"),
        ("NVIDIA B300 SXM6 AC", 8, "b300_sxm"),
        ("NVIDIA GB200", 4, "gb200_nvl72"),
        ("NVIDIA GB300", 4, "gb300_nvl72"),
        ("AMD Instinct MI300X", 8, "mi300x"),
        ("NVIDIA L40S", 8, "l40s_pcie"),
        ("NVIDIA GeForce RTX 2080 Ti", 1, None),
        ("NVIDIA A10G", 1, "a10g_pcie"),
        ("Tesla T4", 1, None),
    ],
)
def test_devices_are_recognised(tmp_path, device, world_size, platform):
    write(
        tmp_path / "a.json",
        rank_events(),
        distributedInfo={"rank": 0, "world_size": world_size},
        deviceProperties=[{"id": 0, "name": device}],
    )
    machine = captured_machine(read_kineto(tmp_path / "a.json"))
    assert (machine.platform.name if machine.platform else None) == platform


def test_documents_of_helpers_have_events():
    assert document([])["traceEvents"] == []


def apart(tmp_path, late_us):
    """Two ranks whose clocks agree, the second of which began its step later."""
    for rank in range(2):
        events = rank_events()
        for event in events:
            event["ts"] += rank * late_us
        write(
            tmp_path / f"rank{rank}.json",
            events,
            rank=rank,
            deviceProperties=[{"id": 0, "name": "Tesla V100-SXM2-32GB"}],
        )
    return read_kineto(tmp_path)


def test_a_later_start_is_no_part_of_the_step(tmp_path):
    captured = captured_step(apart(tmp_path, 200))
    assert [part.offset_s for part in captured.graph.steps] == pytest.approx([0, 200e-6])
    # Rank 1 is as captured; rank 0 waits 200 µs for it in the reduction.
    assert [rank.simulated_s for rank in captured.before] == pytest.approx([690e-6, 690e-6])
    editor = captured.editor()
    assert not any(editor.role_of(task) == TaskRole.LEAD_IN for task in editor.select(Selector()))
    answer = what_if(captured, tmp_path, "  - {select: {role: host_gap}, scale: 0.5}\n")
    plain = what_if(
        captured_step(apart(tmp_path, 0)),
        tmp_path,
        "  - {select: {role: host_gap}, scale: 0.5}\n",
    )
    # What is scaled on rank 1 is what is scaled without the later start.
    assert answer.after[1].simulated_s == pytest.approx(plain.after[1].simulated_s)
    assert any("begins its step 0.200 ms after the first" in note for note in answer.notes)


def test_ranks_can_begin_together(tmp_path):
    captured = captured_step(apart(tmp_path, 200), aligned=True)
    timeline = captured.what_if(()).timeline
    starts = [
        timeline.start_s[task]
        for task, name in enumerate(captured.graph.graph.names)
        if name.startswith("nccl")
    ]
    assert starts == pytest.approx([420e-6, 420e-6])
    assert "all ranks begin their steps together" in captured.what_if(()).notes[-1]


def test_nothing_left_of_a_rank_is_an_error(captured, tmp_path):
    roles = "host_work, host_gap, call, after_wait, launch_delay, stream_gap, kernel, collective"
    with pytest.raises(ConfigError, match="nothing of rank 1 is left"):
        what_if(
            captured,
            tmp_path,
            f"  - {{select: {{rank: 1, role: [{roles}]}}, remove: true}}\n",
        )


def test_what_changes_nothing_is_an_error(captured, tmp_path):
    with pytest.raises(ConfigError, match="nothing changed"):
        what_if(captured, tmp_path, "  - {select: {name: sgemm_bw}, scale: 1}\n")


def test_gaps_move_with_their_works(captured):
    editor = captured.editor()
    (forward,) = editor.select(Selector(name=("sgemm_fw",), rank=(0,)))
    (backward,) = editor.select(Selector(name=("sgemm_bw",), rank=(0,)))
    # Both ready at the start of the stream: the second goes first, with the gap before it.
    editor.schedule([(0, "device 0 stream 7")], lambda task: -editor.start_of(task))
    row = editor.tasks_on(0, "device 0 stream 7")
    for work in (forward, backward):
        gaps = [
            one for one in editor.delays_of(work) if editor.role_of(one) == TaskRole.STREAM_GAP
        ]
        at = row.index(work)
        assert list(row[at - len(gaps) : at]) == gaps
    assert any("changed places" in note for note in editor.notes)
    editor.build()


def test_threads_are_not_scheduled(captured):
    editor = captured.editor()
    with pytest.raises(ConfigError, match="runs host code"):
        editor.schedule([(0, "thread 11")], lambda task: 0.0)


def test_what_follows_on_the_stream_waits_for_a_task_behind(captured, tmp_path):
    steps = (
        "  - select: {name: sgemm_bw, rank: 0}\n"
        "    insert: {name: offload, duration: 400 us, place: behind, lane: copies, role: copy}\n"
    )
    answer = what_if(captured, tmp_path, steps)
    names = answer.graph.graph.names
    ends = {names[task]: answer.timeline.end_s[task] for task in range(len(names))}
    update = [
        answer.timeline.start_s[task]
        for task, name in enumerate(names)
        if name == "multi_tensor_apply" and answer.graph.rank[task] == 0
    ]
    assert ends["offload"] == pytest.approx(820e-6)
    assert update[0] >= 820e-6 - 1e-12
    free = what_if(captured, tmp_path, steps.replace("role: copy", "role: copy, blocking: false"))
    assert free.after[0].simulated_s < answer.after[0].simulated_s + 1e-12


def test_notes_of_the_reader_about_missing_events_stay(tmp_path):
    events = [*rank_events(), *(operator("aten::mm", 1 + at, -5) for at in range(1))]
    events += [operator("aten::add", 640 + at / 10, 0.05) for at in range(100)]
    write(tmp_path / "rank0.json", events, rank=0)
    captured = captured_step(read_kineto(tmp_path / "rank0.json"))
    assert any("negative duration" in note for note in captured.graph.notes)
    assert any("1 of 2 ranks have no trace: 1" in note for note in captured.graph.notes)


@pytest.mark.parametrize(
    ("place", "order"),
    [("ahead", ["new", "mm", "copy_", "mm", "t"]), ("behind", ["mm", "copy_", "mm", "new", "t"])],
)
def test_an_operator_of_several_tasks_gets_one(tmp_path, place, order):
    events = [
        span("user_annotation", "ProfilerStep#1", 0, 100, pid=10, tid=11),
        operator("aten::mm", 0, 85),
        operator("aten::copy_", 12, 8),
        operator("aten::t", 90, 10),
    ]
    write(tmp_path / "cpu.json", events)
    step = captured_step(read_kineto(tmp_path / "cpu.json"), platform="cpu")
    answer = what_if(
        step,
        tmp_path,
        "  - select: {name: 'aten::mm'}\n"
        f"    insert: {{name: 'aten::new', duration: 40 us, place: {place}}}\n",
    )
    assert answer.effects[0].inserted == 1
    assert answer.after_s == pytest.approx(140e-6)
    graph = answer.graph.graph
    names = [graph.names[task] for task in range(graph.task_count)]
    starts = sorted(
        (float(answer.timeline.start_s[task]), name.removeprefix("aten::"))
        for task, name in enumerate(names)
        if name.startswith("aten::")
    )
    assert [name for _, name in starts] == order
    # Each task of it is scaled.
    scaled = what_if(step, tmp_path, "  - select: {name: 'aten::mm'}\n    scale: 2x\n")
    assert scaled.effects[0].tasks == 2
