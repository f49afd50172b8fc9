"""Training that is captured here and now, replayed."""

from __future__ import annotations

from dataclasses import replace
import shutil
import tarfile

import pytest

from dse.errors import ConfigError
from dse.trace.capture import read_records
from dse.trace.replay import ReplayOptions, replay
from tests.trace.replay.capturing import BATCH, capture_bags, capture_network, capture_tables

pytest.importorskip("torch")

FEW = ReplayOptions(iterations=2, warm_up=0)


@pytest.fixture(scope="module")
def network(tmp_path_factory):
    folder = tmp_path_factory.mktemp("network")
    capture_network(folder)
    return folder


def test_training_is_replayed_to_the_last_operator(network):
    (rank,) = replay([network], FEW).ranks
    assert rank.skipped == ()
    assert rank.coverage.operator_share == 1
    assert rank.coverage.time_share >= 0.98
    # Forward, backward and Adam of two steps.
    assert rank.coverage.operators > 100


def test_both_original_times_are_known(network):
    (rank,) = replay([network], FEW).ranks
    original = rank.original
    assert original.steps == 2
    assert original.source == "2 steps of the Kineto trace"
    assert 0 < original.operators_s < original.profiled_s
    assert original.reference_s == original.unprofiled_s > 0
    assert rank.error == pytest.approx(rank.replayed_s / original.unprofiled_s - 1)


def test_without_its_kineto_trace_a_replay_has_no_times_to_compare(network, tmp_path):
    alone = tmp_path / "rank0.et.json.gz"
    alone.write_bytes((network / alone.name).read_bytes())
    (rank,) = replay([alone], FEW).ranks
    assert rank.original.reference_s is None
    assert rank.error is None
    assert rank.coverage.time_share is None
    assert rank.coverage.operator_share == 1
    assert rank.original.steps == 2


def test_an_archive_is_what_the_folder_in_it_is(network, tmp_path):
    with tarfile.open(tmp_path / "packed.tar.gz", "w:gz") as archive:
        archive.add(network, "network")
    (rank,) = replay([network], FEW).ranks
    (packed,) = replay([tmp_path / "packed.tar.gz"], FEW).ranks
    assert packed.original == rank.original
    assert packed.coverage == rank.coverage
    assert read_records(tmp_path / "packed.tar.gz") == read_records(network)


@pytest.mark.parametrize("packed", [False, True])
def test_without_execution_traces_there_is_nothing_to_replay(network, tmp_path, packed):
    bare = tmp_path / "bare"
    shutil.copytree(network, bare, ignore=shutil.ignore_patterns("*.et.json*"))
    if packed:
        with tarfile.open(tmp_path / "bare.tgz", "w:gz") as archive:
            archive.add(bare, "bare")
        bare = tmp_path / "bare.tgz"
    with pytest.raises(ConfigError, match="--no-execution-trace"):
        replay([bare], FEW)


def test_one_step_of_two_has_half_of_the_operators(network):
    (whole,) = replay([network], FEW).ranks
    names = _annotations(network, "ProfilerStep#")
    options = ReplayOptions(iterations=1, warm_up=0, begin=names[0], end=names[0])
    (half,) = replay([network], options).ranks
    assert half.coverage.operators * 2 == whole.coverage.operators
    # The record only holds whole steps of the whole trace.
    assert half.original.unprofiled_s is None
    assert half.original.profiled_s < whole.original.profiled_s


def test_the_optimizer_alone(network):
    (name, *_) = _annotations(network, "Optimizer.step#")
    options = ReplayOptions(iterations=1, warm_up=0, begin=name, end=name)
    (rank,) = replay([network], options).ranks
    assert rank.coverage.operator_share == 1
    assert rank.coverage.operators > 20


@pytest.mark.parametrize("factor", [0.5, 2])
def test_the_batch_scales(network, factor):
    options = ReplayOptions(iterations=1, warm_up=0, scale_batch=factor)
    (rank,) = replay([network], options).ranks
    assert rank.batch == (BATCH, BATCH * factor)
    assert rank.skipped == ()
    # What was recorded took another batch.
    assert rank.error is None


@pytest.mark.parametrize("factor", [0.5, 2])
def test_bags_scale_with_the_batch(tmp_path, factor):
    capture_bags(tmp_path)
    (rank,) = replay([tmp_path], replace(FEW, scale_batch=factor)).ranks
    assert rank.batch == (BATCH, BATCH * factor)
    assert rank.skipped == ()


# FBGEMM warns of operators that its build lacks.
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.parametrize("factor", [0.5, 2])
def test_bags_of_fused_tables_scale_with_the_batch(tmp_path, factor):
    pytest.importorskip("fbgemm_gpu")
    capture_tables(tmp_path)
    (recorded,) = replay([tmp_path], FEW).ranks
    (rank,) = replay([tmp_path], replace(FEW, scale_batch=factor)).ranks
    assert rank.batch == (BATCH, BATCH * factor)
    assert rank.coverage.replayed == recorded.coverage.replayed
    assert [one.name for one in rank.skipped] == [one.name for one in recorded.skipped]


def test_a_batch_that_no_tensor_has_is_refused(network):
    with pytest.raises(ConfigError, match="999"):
        replay([network], ReplayOptions(iterations=1, scale_batch=2, batch=999))


def test_a_larger_batch_takes_more_memory(network):
    taken = [
        replay([network], ReplayOptions(iterations=1, warm_up=0, scale_batch=factor))
        .ranks[0]
        .memory_bytes
        for factor in (0.5, 1, 64)
    ]
    assert taken == sorted(taken)
    assert taken[2] > 2 * taken[1]


def test_a_batch_cannot_vanish(network):
    with pytest.raises(ConfigError, match="none would be left"):
        replay([network], ReplayOptions(iterations=1, scale_batch=0.001))


def _annotations(folder, prefix):
    from dse.trace import read_execution_trace

    (trace,) = read_execution_trace(folder)
    return sorted(name for name in trace.names if name.startswith(prefix))
