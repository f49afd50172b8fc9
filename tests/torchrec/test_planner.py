"""The planner inside scripts of the real TorchRec; skipped where it is not installed."""

from __future__ import annotations

import importlib.util
import logging
from types import SimpleNamespace

import pytest

from dse.errors import ConfigError, InfeasibleError, OptionalDependencyError
from dse.torchrec import Planner
from tests.launch.scripts import run_ranks

# TorchRec raises deprecation warnings when it is imported and used.
pytestmark = pytest.mark.filterwarnings("ignore")


@pytest.fixture(scope="module")
def library():
    """What the tests use of the real library."""
    try:
        import torch
        import torchrec
        from torchrec.distributed.embeddingbag import EmbeddingBagCollectionSharder
        from torchrec.distributed.planner.types import ParameterConstraints, Topology
    except (ImportError, OSError) as error:
        pytest.skip(f"TorchRec cannot be imported ({error}); docs/torchrec.md installs it")
    return SimpleNamespace(
        torch=torch,
        torchrec=torchrec,
        sharder=EmbeddingBagCollectionSharder,
        constraints=ParameterConstraints,
        topology=Topology,
    )


def test_without_torchrec_its_installation_is_named():
    if importlib.util.find_spec("torchrec") is not None:
        pytest.skip("TorchRec is installed")
    with pytest.raises(OptionalDependencyError):
        Planner(platform="h100_sxm").plan(None, [])


@pytest.mark.parametrize("batch_size", [-1, float("nan")])
def test_a_rank_has_at_least_one_sample(batch_size):
    with pytest.raises(ConfigError, match="batch_size"):
        Planner(batch_size=batch_size)


def tables(library, count=4, rows=100_000, dim=64):
    """A module with tables at `bags`."""
    module = library.torch.nn.Module()
    module.bags = library.torchrec.EmbeddingBagCollection(
        device=library.torch.device("meta"),
        tables=[
            library.torchrec.EmbeddingBagConfig(
                name=f"t{number}",
                num_embeddings=rows * (1 + number % 7),
                embedding_dim=dim,
                feature_names=[f"f{number}"],
            )
            for number in range(count)
        ],
    )
    return module


def planner(library, batch_size=4096, constraints=None, **changes):
    chosen = {"world_size": 8, "compute_device": "cuda", "local_world_size": 8} | changes
    return Planner(library.topology(**chosen), batch_size, constraints, platform="h100_sxm")


def planned(library, by, module=None):
    module = tables(library) if module is None else module
    return by.plan(module, [library.sharder()]).plan["bags"]


def test_the_plan_has_every_table_at_its_path(library):
    plan = planned(library, planner(library))
    assert set(plan) == {"t0", "t1", "t2", "t3"}
    kinds = {one.sharding_type for one in plan.values()}
    assert kinds <= {"table_wise", "column_wise", "row_wise", "data_parallel"}


def test_constraints_are_kept(library):
    constraints = {
        "t0": library.constraints(sharding_types=["row_wise"], pooling_factors=[20.0]),
        "t1": library.constraints(compute_kernels=["fused_uvm_caching"]),
    }
    plan = planned(library, planner(library, constraints=constraints))
    assert plan["t0"].sharding_type == "row_wise"
    assert plan["t1"].compute_kernel == "fused_uvm_caching"


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("min_partition", 0),
        ("min_partition", -1),
        ("pooling_factors", [1e300]),
        ("pooling_factors", [float("inf")]),
        ("cache_params", 0.0),
        ("cache_params", float("nan")),
    ],
)
def test_impossible_constraints_name_their_table(library, field, value):
    if field == "cache_params":
        from torchrec.distributed.types import CacheParams

        value = CacheParams(load_factor=value)
    constraints = {"t1": library.constraints(**{field: value})}
    with pytest.raises(ConfigError, match="`t1`"):
        planned(library, planner(library, constraints=constraints))


def test_the_platform_of_gpus_that_are_elsewhere_is_asked_for(library):
    if library.torch.cuda.is_available():
        pytest.skip("there is a GPU here")
    elsewhere = Planner(library.topology(world_size=8, compute_device="cuda"), 64)
    with pytest.raises(ConfigError, match="platform"):
        planned(library, elsewhere)


@pytest.mark.parametrize("optimizer", ["adamw", "SHAMPOO"])
def test_other_update_rules_are_left_to_torchrec(library, caplog, optimizer):
    from fbgemm_gpu.split_embedding_configs import EmbOptimType

    rule = getattr(EmbOptimType, optimizer, optimizer)
    sharder = library.sharder(fused_params={"optimizer": rule})
    with caplog.at_level(logging.WARNING, "dse.torchrec"):
        plan = planner(library, 64).plan(tables(library), [sharder]).plan["bags"]
    assert "update rule" in caplog.text
    assert len(plan) == 4


def test_batches_without_samples_count_nothing(library):
    from torchrec import KeyedJaggedTensor

    features = [f"f{number}" for number in range(4)]
    batches = [
        KeyedJaggedTensor(
            features,
            library.torch.zeros(4 * samples, dtype=library.torch.int64),
            lengths=library.torch.ones(4 * samples, dtype=library.torch.int64),
        )
        for samples in (0, 8, 0)
    ]
    topology = library.topology(world_size=8, compute_device="cuda", local_world_size=8)
    measuring = Planner(topology, 64, platform="h100_sxm", batches=batches)
    assert len(planned(library, measuring)) == 4


def test_memory_is_that_of_the_topology(library):
    module = tables(library, count=8, rows=1_000_000)
    with pytest.raises(InfeasibleError):
        planned(library, planner(library, 64, hbm_cap=2**28), module)
    assert planned(library, planner(library, 64, hbm_cap=2**34), module)


def test_what_is_not_modelled_is_left_to_torchrec(library, caplog):
    constraints = {"t0": library.constraints(num_poolings=[2.0])}
    with caplog.at_level(logging.WARNING, "dse.torchrec"):
        plan = planned(library, planner(library, 64, constraints))
    assert "num_poolings" in caplog.text
    assert set(plan) == {"t0", "t1", "t2", "t3"}


def test_the_log_has_time_bound_and_memory(library, caplog):
    with caplog.at_level(logging.INFO, "dse.torchrec"):
        planned(library, planner(library))
    assert "4 tables on 8 × h100_sxm" in caplog.text
    assert "GiB" in caplog.text


@pytest.mark.slow
def test_two_ranks_train_under_the_plan(library, tmp_path):
    script = tmp_path / "train.py"
    script.write_text(SCRIPT)
    assert all("as planned" in printed for printed in run_ranks(script))


SCRIPT = """
import os

import torch
import torch.distributed as dist
from torchrec import EmbeddingBagCollection, EmbeddingBagConfig, KeyedJaggedTensor
from torchrec.distributed.embeddingbag import EmbeddingBagCollectionSharder
from torchrec.distributed.model_parallel import DistributedModelParallel

import dse.torchrec


class Tables(torch.nn.Module):
    def __init__(self, bags):
        super().__init__()
        self.bags = bags

    def forward(self, jagged):
        return self.bags(jagged).values()


dist.init_process_group("gloo")
configs = [
    EmbeddingBagConfig(
        name=f"t{n}", num_embeddings=1000 * (n + 1), embedding_dim=16, feature_names=[f"f{n}"]
    )
    for n in range(6)
]
module = Tables(EmbeddingBagCollection(tables=configs, device=torch.device("meta")))
sharders = [EmbeddingBagCollectionSharder(fused_params={"learning_rate": 0.1})]
planner = dse.torchrec.Planner(batch_size=64)
plan = planner.collective_plan(module, sharders, dist.group.WORLD)
sharded = DistributedModelParallel(
    module, device=torch.device("cpu"), plan=plan, sharders=sharders
)
lengths = torch.ones(6 * 64, dtype=torch.int64)
features, rows = [f"f{n}" for n in range(6)], torch.randint(1000, (6 * 64,))
jagged = KeyedJaggedTensor(features, rows, lengths=lengths)
for _ in range(3):
    sharded(jagged).square().mean().backward()
running = {
    name: one.sharding_type
    for path, parameters in sharded.plan.plan.items()
    for name, one in parameters.items()
}
wanted = {name: one.sharding_type for name, one in plan.plan["bags"].items()}
assert running == wanted, (running, wanted)
assert set(wanted) == {f"t{n}" for n in range(6)}
print("as planned", flush=True)
dist.destroy_process_group()
# A thread of gloo that releases its tensors while the interpreter shuts down aborts the process.
os._exit(0)
"""
