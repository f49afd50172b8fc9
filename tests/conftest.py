"""Shared pieces of the tests: a small cluster, a small model, a small search space."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
import gc
import os
from pathlib import Path
import signal
from unittest.mock import patch

from hypothesis import settings
import pytest
import typer

from dse.indices import Uniform
from dse.machine import (
    Cluster,
    DeviceSpec,
    HostLinkSpec,
    HostSpec,
    LinkKind,
    LinkSpec,
    NetworkSpec,
    PeakRates,
    Precision,
)
from dse.model import (
    DataType,
    DlrmModel,
    EmbeddingTable,
    Interaction,
    InteractionKind,
    Optimizer,
    PoolingDistribution,
)

# Jobs in the background of a shell ignore interrupts, and so would the commands that tests start.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# `HYPOTHESIS_PROFILE=thorough` searches as long as one likes to wait; see tests/README.md.
settings.register_profile("quick", deadline=None, max_examples=20, derandomize=True)
settings.register_profile("thorough", deadline=None, max_examples=500)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "quick"))

#: Whether loops over random cases take many more of them, too.
THOROUGH = os.environ.get("HYPOTHESIS_PROFILE") == "thorough"

ROOT = Path(__file__).resolve().parent.parent


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config, items) -> None:
    """Leaves out tests that are parts of slow tests of their file where those run, too."""
    complete = {item.path for item in items if item.get_closest_marker("slow")}
    kept, left_out = [], []
    for item in items:
        part = item.path in complete and item.get_closest_marker("part_of_slow")
        (left_out if part else kept).append(item)
    if left_out:
        items[:] = kept
        config.hook.pytest_deselected(items=left_out)


def pytest_collection_finish() -> None:
    """Spares the garbage collector what all tests share, modules above all."""
    gc.collect()
    gc.freeze()


@pytest.fixture(scope="session", autouse=True)
def commands_made_once():
    """Typer makes all commands anew at each call, which takes longer than most of them run."""
    made = cache(typer.main.get_command)
    with patch("typer.main.get_command", made), patch("typer.testing._get_command", made):
        yield


@pytest.fixture(scope="session", autouse=True)
def nothing_waits_for_the_disk():
    """Studies flush each trial to the disk; no test pulls the plug."""
    with patch("os.fsync", lambda handle: None):
        yield


@pytest.fixture(scope="session", autouse=True)
def processes_are_forked_ready(request):
    """Workers, ranks and runs find done what all of them do, whichever test starts the first."""
    training = any(item.get_closest_marker("slow") for item in request.session.items)
    preloaded = ["tests.warm_trainers" if training else "tests.warm"]
    with (
        patch("dse.search.execute._process.PRELOADED", preloaded),
        patch("dse.launch._group.PRELOADED", preloaded),
    ):
        yield


def make_device(**changes: object) -> DeviceSpec:
    device = DeviceSpec(
        name="test device",
        kind="gpu",
        compute_units=100,
        peak=PeakRates(20e12, 100e12, 200e12, 200e12),
        memory_bytes=40e9,
        memory_bandwidth_bytes_per_s=2e12,
        l2_bytes=40e6,
        l2_bandwidth_bytes_per_s=4e12,
        reserved_memory_bytes=2e9,
    )
    return replace(device, **changes)


def make_cluster(world_size: int = 4, devices_per_node: int = 4, **changes: object) -> Cluster:
    cluster = Cluster(
        name="test platform",
        device=make_device(),
        link=LinkSpec("nvswitch", LinkKind.NVSWITCH, 300e9, 3e-6),
        network=NetworkSpec("infiniband", "infiniband", devices_per_node, 25e9, 5e-6),
        host_link=HostLinkSpec(25e9, 10e-6),
        host=HostSpec(3e-6, 8e-6, 2e-6, 5e-6, 3e-6, 10e-6),
        devices_per_node=devices_per_node,
        world_size=world_size,
    )
    return replace(cluster, **changes)


def make_table(
    name: str, rows: int = 100_000, dim: int = 64, pooling: float = 10
) -> EmbeddingTable:
    return EmbeddingTable(
        name, rows, dim, (pooling,), PoolingDistribution.FIXED, Uniform(), DataType.FP32
    )


def make_model(tables: tuple[EmbeddingTable, ...] | None = None) -> DlrmModel:
    if tables is None:
        tables = tuple(
            make_table(f"t{index}", rows=50_000 * (index + 1), pooling=4 + 3 * index)
            for index in range(6)
        )
    return DlrmModel(
        name="test model",
        description="",
        source="made for tests",
        dense_features=13,
        bottom_mlp=(128, 64),
        interaction=Interaction(InteractionKind.DOT),
        top_mlp=(256, 1),
        tables=tables,
        precision=Precision.TF32,
        dense_optimizer=Optimizer.SGD,
        sparse_optimizer=Optimizer.ROWWISE_ADAGRAD,
        global_batch_size=4096,
    )


SMALL_SPACE = """\
schema_version: 1
name: small
workload: {model: dlrm_tiny}
parameters:
  platform: [a100_sxm_80, h100_sxm, v100_dgx2]
  world_size: [2, 8, 12]
  global_batch_size: [16384, 65536]
  sharding_types:
    - [table_wise]
    - [table_wise, row_wise]
objectives:
  - {metric: throughput_samples_per_s, direction: maximize}
  - {metric: cost_usd_per_million_samples, direction: minimize}
search:
  sampler: nsga2
  trials: 12
  batch: 4
  improvement_rounds: 0
  planners: [size_greedy, dim_greedy]
"""


@pytest.fixture
def small_space(tmp_path: Path) -> Path:
    path = tmp_path / "small.yaml"
    path.write_text(SMALL_SPACE)
    return path
