"""Mutated files that people write: each is read and usable, or refused with a clear error."""

from __future__ import annotations

import json
import random

import yaml

from dse.cli.job._request import Request
from dse.cli.job._versus import changed
from dse.machine.collectives import collective_estimate
from dse.machine.host import host_profile_text, load_host_profile, platform_host_block
from dse.machine.platforms import load_platform
from dse.model import load_model
from dse.search.space import load_space
from dse.sharding import check_plan, plan_to_json, read_constraints, read_plan
from dse.trace.whatif import read_changes
from tests.conftest import ROOT, make_table
from tests.fuzz.conftest import SHARES
from tests.fuzzing import (
    as_json,
    check_reader,
    text_of,
    variants,
)

MODEL = b"""\
schema_version: 1
kind: dlrm
name: small
source: a test
dense_features: 13
bottom_mlp: [64, 16]
interaction: {kind: dot}
top_mlp: [64, 1]
optimizer: {dense: sgd, sparse: rowwise_adagrad}
global_batch_size: 4096
table_defaults: {dim: 16, indices: {kind: zipf, alpha: 1.05}}
tables:
  - &one {name: a, rows: 1000, pooling: [1, 2, 3]}
  - {<<: *one, name: b, count: 3, data_type: fp16}
  - name: c
    rows: 50
    indices: {kind: reuse_histogram, row_share: [0.5, 0.5], lookup_share: [0.1, 0.9],
              mean_reuse: 2.5, touched_share: 0.5}
"""


GENERATED = (
    b"\n".join(line for line in MODEL.split(b"\n")[:11] if b"defaults" not in line).replace(
        b"{kind: dot}", b"{kind: concat}"
    )
    + b"\ngenerate: {statistics: meta2021, count: 20, seed: 3}\n"
)


TRACED = MODEL.replace(
    b"bottom_mlp: [64, 16]\ninteraction: {kind: dot}\ntop_mlp: [64, 1]\n",
    b"""\
traced:
  before:
    - {name: traced.bottom, kind: gemm, m: [0, 1], n: 8, k: 13}
  forward:
    - {name: traced.add, kind: elementwise, values: [10, 6, 2], launches: 2}
  backward:
    - {name: traced.bottom.backward, kind: gemm, m: 8, n: 13, k: [0, 1], parameters: 112}
  kept_values: [0, 12]
  outputs: 1
""",
)


def test_models(tmp_path, count):
    def read(path):
        model = load_model(str(path))
        assert repr(model)
        if hasattr(model, "parameter_count"):
            assert model.parameter_count > 0
        for table in getattr(model, "tables", ()):
            assert table.rows > 0
            assert table.dim > 0

    seeds = [MODEL, GENERATED, TRACED, *text_of("models/gpt_1_7b.yaml", "models/bert_base.yaml")]
    check_reader(variants(seeds, count("model"), 1), tmp_path / "a.yaml", read, valid=len(seeds))


def test_platforms(tmp_path, count):
    def read(path):
        platform = load_platform(str(path))
        assert platform.facts
        assert platform.devices_per_node <= 10**6

    seeds = text_of("platforms/p100_pcie.yaml", "platforms/h100_sxm.yaml", "platforms/cpu.yaml")
    check_reader(
        variants(seeds, count("platform"), 2), tmp_path / "p.yaml", read, valid=len(seeds)
    )


def test_calibrations(tmp_path, count):
    host = yaml.safe_load((ROOT / "platforms/p100_pcie.yaml").read_text())
    host |= {"calibrations": [{"file": "mine.json"}]}
    (tmp_path / "p.yaml").write_text(yaml.safe_dump(host))
    built_in = json.loads((ROOT / "platforms/calibrations/cpu.json").read_text())
    collectives = json.loads((ROOT / "platforms/calibrations/h100_sxm_nccl.json").read_text())
    built_in["kernels"] = sorted(built_in["kernels"], key=lambda one: len(str(one)))[:2]
    built_in["collectives"] = [
        {**one, "size_bytes": one["size_bytes"][:6], "time_s": one["time_s"][:6]}
        for one in collectives["collectives"][:2]
    ]
    networks = json.loads((ROOT / "platforms/calibrations/efa_v2.json").read_text())
    built_in["networks"] = networks["networks"]

    def read(_path):
        platform = load_platform(str(tmp_path / "p.yaml"))
        for curve in (one for each in platform.links for one in each.calibrations):
            assert curve.curve.at(1e6) > 0
        for network in platform.networks:
            two_nodes = platform.cluster(2 * platform.devices_per_node, network=network.name)
            assert collective_estimate(two_nodes, "all_reduce", 1e6).time_s > 0

    files = variants([as_json(built_in)], count("calibrations"), 3)
    check_reader(files, tmp_path / "mine.json", read, valid=1)


TRACE_SPACE = b"""\
schema_version: 1
name: changed
workload: {trace: run, samples_per_step: 128, step: 1}
parameters:
  platform: [same, h100_sxm]
  network_factor: [0.5x, 1x, 2x]
  optimizations:
    - []
    - [halved.yaml]
    - [network=2x, amp]
objectives:
  - {metric: throughput_samples_per_s, direction: maximize}
search: {sampler: nsga2, trials: 50, batch: 4}
"""


def test_spaces(tmp_path, count):
    def read(path):
        space = load_space(path)
        assert repr(space)
        for parameter in space.parameters:
            assert len(parameter.choices) >= 1

    seeds = [TRACE_SPACE, *text_of("search_spaces/dlrm_sharding.yaml")]
    seeds += text_of("search_spaces/gpt_parallelism.yaml")
    check_reader(variants(seeds, count("space"), 4), tmp_path / "s.yaml", read, valid=len(seeds))


PLAN = {
    "schema_version": 1,
    "model": "small",
    "world_size": 4,
    "tables": {
        "a": {"sharding_type": "table_wise", "ranks": [1], "compute_kernel": "fused"},
        "b": {
            "sharding_type": "row_wise",
            "ranks": [0, 1, 2, 3],
            "compute_kernel": "fused_uvm_caching",
            "cache_load_factor": 0.2,
        },
        "c": {"sharding_type": "column_wise", "ranks": [2, 3]},
    },
}


SHARDS = [
    {"shard_offsets": [25 * rank, 0], "shard_sizes": [25, 96], "placement": f"rank:{rank}/cuda:0"}
    for rank in range(4)
]


TORCHREC = {
    "world_size": 4,
    "plan": {
        "arch.user": {
            "a": {
                "sharding_type": "row_wise",
                "compute_kernel": "fused",
                "ranks": [0, 1, 2, 3],
                "sharding_spec": {"shards": SHARDS},
            },
            "b": {"sharding_type": "data_parallel", "compute_kernel": "dense", "ranks": [0]},
        },
        "": {
            "c": {
                "sharding_type": "table_wise",
                "compute_kernel": "fused",
                "shards": [{**SHARDS[0], "shard_sizes": [100, 96]}],
                "cache_params": {"load_factor": 0.5},
            }
        },
    },
}


def test_plans(tmp_path, count):
    tables = [make_table(name, rows=100, dim=96) for name in "abc"]
    kinds = random.Random(0)

    def read(path):
        plan = read_plan(path, kinds.choice((None, tables)))
        assert plan_to_json(plan, "x")
        check_plan(plan, tables, 4, 2)

    files = variants([as_json(PLAN), as_json(TORCHREC)], count("plan"), 5)
    check_reader(files, tmp_path / "plan.json", read, valid=2)


def test_constraints(tmp_path, count):
    seed = b"""\
schema_version: 1
tables:
  "user_*": {sharding_types: [row_wise, column_wise], compute_kernels: [fused]}
  a: {ranks: [0, 1], min_partition: 32, max_partitions: 4}
  "[a-c]?": {cache_load_factor: 0.2}
"""

    def read(path):
        assert all(one.origin for one in read_constraints(path))

    files = variants([seed], count("constraints"), 6)
    check_reader(files, tmp_path / "c.yaml", read, valid=1)


def test_host_profiles(tmp_path, count):
    figure = "{mean: 5 us, spread: 0.25, count: 100}"
    seed = f"""\
schema_version: 1
name: mine
source: {{files: [rank0.json], devices: [V100], as_of: '2024-05-31'}}
shared:
  launch: {figure}
  after_launch: {figure}
launches:
  cudaLaunchKernel: {figure}
operators:
  aten::mm: {{calls: 3, launches: 1.5, before_launch: {figure}}}
""".encode()

    def read(path):
        profile = load_host_profile(path)
        assert host_profile_text(profile)
        assert platform_host_block(profile)

    files = variants([seed], count("profile"), 7)
    check_reader(files, tmp_path / "h.yaml", read, valid=1)


def test_steps(tmp_path, count):
    seed = b"""\
schema_version: 1
name: changes
steps:
  - {select: {name: "*gemm*", phase: forward, longer_than: 5 us}, scale: 50 %}
  - {select: {collective: all_reduce, rank: [0, 1]}, remove: true}
  - {optimization: network, factor: 2x, latency: 0.5x}
  - {optimization: amp}
  - {optimization: resize, dimensions: "512:1024"}
"""

    def read(path):
        assert all(step.title for step in read_changes(path))

    check_reader(variants([seed], count("steps"), 8), tmp_path / "w.yaml", read, valid=1)


def test_second_configurations(tmp_path, count):
    seed = b"world_size: 16\nlink: pcie\nplan: other.json\nsequence_parallel: true\n"
    asked = Request(model="m", platform="p", world_size=8, global_batch_size=1024)

    def read(path):
        other, words = changed(asked, str(path))
        assert other != asked
        assert words

    check_reader(variants([seed], count("versus"), 20), tmp_path / "v.yaml", read, valid=1)


def test_the_shares_add_up():
    assert sum(SHARES.values()) == 100
