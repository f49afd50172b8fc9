"""Re-timing of a published trace of eight ranks; skipped where it is not at hand."""

from __future__ import annotations

import pytest

from benchmarks.folders import DATA
from dse.trace import COMPUTING, TaskRole, read_kineto
from dse.trace.whatif import Selector, captured_step, parse_optimization
from dse.trace.whatif.retime._lookups import lookups_of

FOLDER = DATA / "traces"

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        not FOLDER.is_dir(),
        reason=f"no published traces in {FOLDER}; name the folder above in DSE_MEASUREMENTS",
    ),
]


@pytest.fixture(scope="module")
def dlrm():
    return captured_step(read_kineto(FOLDER / "dlrm_kineto.tar.gz"))


def durations(editor):
    tasks = editor.select(Selector(role=(*COMPUTING, TaskRole.COLLECTIVE)))
    return {task: editor.duration_of(task) for task in tasks}


def after(captured, text):
    editor = captured.editor()
    parse_optimization(text).apply(editor)
    return editor


@pytest.mark.parametrize("text", ["gpu=v100_dgx1", "reshard=3:0:2;0:3:2"])
def test_what_changes_nothing(dlrm, text):
    assert durations(after(dlrm, text)) == pytest.approx(durations(dlrm.editor()), rel=1e-9)


def test_lookups_are_those_of_the_job(dlrm):
    """Of 26 features 24 are sharded, three a rank, and two are replicated; global batch 128."""
    found = lookups_of(dlrm.editor())
    sharded = [one.lookup for one in found if one.is_sharded]
    assert [one.tables for one in sharded] == [3] * 8
    assert {(one.batch, one.total_dim) for one in sharded} == {(128, 48)}
    assert [one.lookup.tables for one in found if not one.is_sharded] == [2] * 8


def test_a_faster_device_shortens_the_devices_work(dlrm):
    old = sum(durations(dlrm.editor()).values())
    new = sum(durations(after(dlrm, "gpu=h100_sxm")).values())
    assert new < old
    # Launch-bound: the host decides, and the step is hardly shorter.
    answer = dlrm.what_if([parse_optimization("gpu=h100_sxm")])
    assert answer.after_s <= answer.before_s


def test_larger_batches_and_layers_take_longer(dlrm):
    old = sum(durations(dlrm.editor()).values())
    for text in ("resize=16:256;128:2048,samples=true", "resize=512:2048"):
        assert sum(durations(after(dlrm, text)).values()) > old
    answer = dlrm.what_if([parse_optimization("resize=16:32;128:256,samples=true")])
    assert answer.work_factor == 2


def test_tables_move_between_ranks(dlrm):
    editor = after(dlrm, "reshard=3:7:1")
    tables = {one.rank: one.lookup.tables for one in lookups_of(editor) if one.is_sharded}
    assert (tables[3], tables[7]) == (2, 4)
    before, now = durations(dlrm.editor()), durations(editor)

    def lookup_s(rank, values):
        tasks = [
            task
            for one in lookups_of(editor)
            if one.rank == rank and one.is_sharded
            for task in one.tasks
        ]
        return sum(values[task] for task in tasks)

    assert lookup_s(3, now) < lookup_s(3, before)
    assert lookup_s(7, now) > lookup_s(7, before)
    assert lookup_s(1, now) == lookup_s(1, before)
    pooled = editor.select(Selector(operator=("All2All_Pooled_Req",), collective=("all_to_all",)))
    sent = {editor.rank_of(task): editor.collective_of(task).input_elements for task in pooled}
    assert (sent[3], sent[7], sent[1]) == (128 * 32, 128 * 64, 128 * 48)


def test_precision_with_its_options(dlrm):
    answer = dlrm.what_if([parse_optimization("precision=fp16,communication=true,casts=true")])
    assert answer.effects[0].inserted > 0
    assert answer.after_s == pytest.approx(answer.before_s, rel=0.05)
