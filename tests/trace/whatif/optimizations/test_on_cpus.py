"""Optimizations of steps whose device is the CPU; all answers computed by hand."""

from __future__ import annotations

import pytest

from dse.errors import ConfigError
from dse.machine.platforms import load_platform
from dse.trace import CollectiveInfo, TaskRole
from dse.trace.whatif.retime import AllReduce, serialized
from tests.trace.whatif.helpers import Tape, apply, ends, starts, two_ranks

_MEBI = 2**20


def training(tmp_path):
    """Forward, backward, a gradient of 1 MiB, 10 µs of Python, then an update; 8 µs each."""
    tape = Tape()
    number = tape.forward("aten::mm", shapes=[[64, 64], [64, 64]])
    tape.backward("MmBackward0", number, "aten::mm", shapes=[[64, 64], [64, 64]])
    tape.gradient([512, 512])
    tape.now += 10
    # An operator that computes nothing, then the first one that does.
    tape.op("aten::view", shapes=[[64, 64]])
    tape.optimizer("SGD", ("aten::add_", None, None))
    return tape.capture(tmp_path, platform="cpu")


def test_nothing_behind_backward_overlaps_with_gloo(tmp_path):
    captured = training(tmp_path)
    assert captured.machine.kind == "cpu"
    answer = apply(captured, "data_parallel=2")
    (end,) = ends(answer, "all-reduce of bucket 0")
    transfer = 1e6 * float(load_platform("cpu").collective_time("all_reduce", _MEBI, 2))
    assert end == pytest.approx(24 + transfer, abs=0.51)
    # The thread goes on with its Python once the gradients are there.
    assert starts(answer, "aten::view") == pytest.approx([end + 10], abs=0.51)
    assert starts(answer, "aten::add_") == pytest.approx([end + 18], abs=0.51)
    assert answer.after_s == pytest.approx(1e-6 * (end + 26), abs=1e-6)


def test_rules_for_gpus_are_refused_or_noted(tmp_path):
    captured = training(tmp_path)
    with pytest.raises(ConfigError, match=r"precision=bf16"):
        apply(captured, "amp")
    assert apply(captured, "amp=1.5,other=1.2").after_s < captured.before[0].simulated_s
    tape = Tape()
    shapes = {"shapes": [[8, 8, 4, 4]]}
    number = tape.forward("aten::native_batch_norm", **shapes)
    tape.backward("NativeBatchNormBackward0", number, "aten::native_batch_norm_backward", **shapes)
    norms = tape.capture(tmp_path, platform="cpu")
    (note,) = apply(norms, "batch_norm").notes
    assert "rule for GPUs" in note
    assert "`precision`" in note
    assert not apply(norms, "batch_norm=0.7").notes


def test_graphs_of_launches_are_for_gpus(tmp_path):
    for platform in ("cpu", ""):
        tape = Tape().op("aten::mm").op("aten::relu")
        with pytest.raises(ConfigError, match="captured on a CPU"):
            apply(tape.capture(tmp_path, platform=platform), "cuda_graphs=0us")


def test_slices_without_number_are_refused(tmp_path):
    with pytest.raises(ConfigError, match=r"slices of 64 B make 262,144 of them; at most 100,000"):
        apply(two_ranks(tmp_path, 2**22), "p3=64B")


class Streams:
    """The part of an editor that `serialized` uses: when and where all-reduces were measured."""

    def __init__(self, starts_us, streams):
        self._starts_us, self._streams, self.notes = starts_us, streams, []

    def rank_of(self, task):
        return 0

    def start_of(self, task):
        return 1000 * self._starts_us[task]

    def stream_of(self, task):
        return self._streams[task]


def reduces(*lengths_us, wait_s=0.0):
    info = CollectiveInfo("all_reduce", _MEBI, "fp32", group_size=2)
    return [
        AllReduce((task,), info, 2, 1.0, (1e-6 * length,), (wait_s,))
        for task, length in enumerate(lengths_us)
    ]


def test_concurrent_all_reduces_include_their_contention():
    # From 0 to 100 and from 60 to 140 on two streams: 140 µs together, 180 µs one after the other.
    editor = Streams([0, 60], ["gloo 1", "gloo 2"])
    found = serialized(editor, reduces(100, 80), "p3")
    lengths = [one.transfer_s[0] for one in found]
    assert lengths == pytest.approx([100e-6 * 140 / 180, 80e-6 * 140 / 180])
    assert sum(lengths) == pytest.approx(140e-6)
    (note,) = editor.notes
    assert note.startswith("p3: all-reduces were measured on up to 2 streams at once")
    assert "78 to 78 %" in note


def test_waiting_ahead_of_a_transfer_is_no_transfer():
    # Each waits 40 µs first: they transfer from 40 to 60 and from 60 to 80.
    editor = Streams([0, 20], ["gloo 1", "gloo 2"])
    alone = reduces(20, 20, wait_s=40e-6)
    assert serialized(editor, alone, "p3") == alone
    assert not editor.notes


def test_all_reduces_of_one_stream_keep_their_times():
    # What was inserted stands at the time of its neighbour, which says nothing.
    editor = Streams([0, 0], ["stream 20", "stream 20"])
    alone = reduces(100, 80)
    assert serialized(editor, alone, "p3") == alone


def test_roles_of_a_cpu(tmp_path):
    editor = training(tmp_path).editor()
    assert {editor.role_of(task) for task in editor.tasks_on(0, "thread 11")} >= {TaskRole.KERNEL}
