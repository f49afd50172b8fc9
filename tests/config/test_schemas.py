"""Schemas accept what `dse` accepts, and refuse what it refuses by type or bound."""

from __future__ import annotations

import copy
from functools import cache
import json
import re

from jsonschema import Draft202012Validator
from pydantic import ValidationError
import pytest
import yaml

from dse.config import json_schema, parse_plain
from dse.machine.host import HostProfileDocument
from dse.machine.platforms import PlatformDocument
from dse.model import ModelFile
from dse.search.space import SpaceDocument
from dse.sharding import ConstraintsDocument
from tests.conftest import ROOT

DOCUMENTS = {
    "model": ModelFile,
    "platform": PlatformDocument,
    "space": SpaceDocument,
    "host-profile": HostProfileDocument,
    "constraints": ConstraintsDocument,
}
COMMENT = "# yaml-language-server: $schema="
SHIPPED = sorted(
    path
    for folder in ("models", "platforms", "search_spaces", "examples")
    for path in (ROOT / folder).rglob("*.yaml")
    # Its schema is that of another package.
    if "plugin_workload" not in path.parts
)


@cache
def validator(kind: str) -> Draft202012Validator:
    schema = json_schema(DOCUMENTS[kind])
    Draft202012Validator.check_schema(schema)
    return Draft202012Validator(schema)


def problems(kind: str, document: object) -> list[str]:
    return [f"{one.json_path}: {one.message}" for one in validator(kind).iter_errors(document)]


@pytest.mark.parametrize("kind", DOCUMENTS)
def test_stored_schemas_are_up_to_date(kind):
    stored = json.loads((ROOT / f"docs/schemas/{kind}.schema.json").read_text())
    assert stored == json.loads(json.dumps(json_schema(DOCUMENTS[kind])))


@pytest.mark.parametrize("path", SHIPPED, ids=lambda path: str(path.relative_to(ROOT)))
def test_shipped_files_name_their_schema_and_follow_it(path):
    text = path.read_text()
    first = text.splitlines()[0]
    assert first.startswith(COMMENT)
    schema = (path.parent / first.removeprefix(COMMENT)).resolve()
    kind = schema.name.removesuffix(".schema.json")
    assert schema == ROOT / f"docs/schemas/{kind}.schema.json"
    assert problems(kind, yaml.safe_load(text)) == []


def documented() -> list:
    found = []
    for page in (ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))):
        for block in re.findall(r"^```ya?ml\n(.*?)^```", page.read_text(), re.M | re.S):
            place = f"{page.relative_to(ROOT)}: {block.splitlines()[0]}"
            found.append(pytest.param(block, id=place))
    return found


def kind_of(document: object) -> str | None:
    """The kind of a whole file; None for a part of one."""
    if not isinstance(document, dict) or "schema_version" not in document:
        return None
    if "steps" in document:
        # Changes of a captured step have no schema: which fields they have, the step decides.
        return None
    signs = {"workload": "space", "device": "platform", "shared": "host-profile"}
    if "kind" in document:
        return "model" if document["kind"] in ("dlrm", "transformer") else None
    return next((kind for sign, kind in signs.items() if sign in document), "constraints")


@pytest.mark.parametrize("block", documented())
def test_documented_files_follow_their_schema(block):
    document = yaml.safe_load(block)
    kind = kind_of(document)
    if kind is not None:
        assert problems(kind, document) == []
        return
    # Part of a file: each of its keys that some file has is right in one of them.
    for key, value in document.items() if isinstance(document, dict) else ():
        tried = [
            validator(kind).evolve(schema={**schema, "$defs": validator(kind).schema["$defs"]})
            for kind, schema in parts(key)
        ]
        assert not tried or any(one.is_valid(value) for one in tried), (key, value)


def parts(key: str) -> list[tuple[str, dict]]:
    """Schemas of the fields of this name, in any file."""
    found = []
    for kind in DOCUMENTS:
        schema = validator(kind).schema
        for block in (schema, *schema["$defs"].values()):
            if key in block.get("properties", {}):
                found.append((kind, block["properties"][key]))
    return found


def blocks(kind: str):
    schema = validator(kind).schema
    return [schema, *schema["$defs"].values()]


@pytest.mark.parametrize("kind", DOCUMENTS)
def test_every_field_is_described(kind):
    missing = [
        name
        for block in blocks(kind)
        for name, field in block.get("properties", {}).items()
        if not field.get("description")
    ]
    assert missing == []


@pytest.mark.parametrize("kind", DOCUMENTS)
def test_bounds_are_keywords_of_json_schema(kind):
    text = json.dumps(validator(kind).schema)
    assert not re.search(r'"(ge|gt|le|lt)": [-0-9]', text)


def test_built_in_names_are_examples():
    text = json.dumps(validator("space").schema)
    for name in ("h100_sxm", "dlrm_dcnv2", "torchrec", "megatron_bridge", "nvswitch"):
        assert f'"{name}"' in text


# Wrong values -----------------------------------------------------------------------------------

SPACE = """\
schema_version: 1
name: s
workload: {model: dlrm_default}
parameters:
  platform: [h100_sxm, {from: a100_sxm_80, price: 2 USD/GPU/h, network: {bandwidth: 25 GB/s}}]
  world_size: {low: 8, high: 16, factor: 2}
  global_batch_size: [8192, 16384]
  link: default
  precision: tf32
  launch: eager
  train_pipeline: sparse_dist
  communication_precision: [fp16, fp16/bf16, {forward: fp16, reduce_scatter: {forward: fp16}}]
  hot_rows: false
  replicas: 1
  replica_placement: strided
  sync_interval: 2
  program: torchrec
  table_data_type: fp16
  sparse_optimizer: adam
  sharding_types: [[table_wise, row_wise], [data_parallel]]
  compute_kernels: [fused]
  cache_load_factor: 0.2
  table_constraints: few
objectives:
  - {metric: throughput_samples_per_s, direction: maximize}
constraints:
  - {metric: price_usd_per_hour, at_most: 500 USD/h}
pricing: {basis: on_demand, provider: aws}
links: {l: {kind: nvswitch, bandwidth: 450 GB/s, latency: 3 us}}
networks: {n: {kind: infiniband, nics: 8, bandwidth: 50 GB/s, latency: 5 us}}
table_constraints: {few: {"*": {sharding_types: [row_wise], max_partitions: 4, ranks: [0]}}}
search: {sampler: tpe, trials: 10, seed: 1, batch: 10, planners: [size_greedy], plan: solver}
"""
TRANSFORMER_SPACE = """\
schema_version: 1
name: s
workload: {model: gpt_22b}
parameters:
  platform: h100_sxm
  world_size: 64
  global_batch_size: {low: 64, high: 256, step: 64}
  tensor: [1, 2]
  pipeline: 2
  context: 1
  context_exchange: ring
  interleave: 1
  schedule: 1f1b
  micro_batch_size: [1, 2]
  sequence_parallel: [true, false]
  recompute: [none, selective]
  recompute_modules: layernorm+mlp
  recompute_layers: 0
  offload: none
  data_sharding: zero1
  sharding_degree: 2
  no_sync: true
  gradient_reduction_precision: bf16
  program: megatron
objectives: [{metric: iteration_time_s, direction: minimize}]
"""
TRACE_SPACE = """\
schema_version: 1
name: s
workload: {trace: capture, platform: cpu, step: 3, samples_per_step: 512}
parameters:
  platform: same
  world_size: [2, 4]
  network_factor: [2x, 0.5, 50 %]
  optimizations: [[], [cuda_graphs], [network=2x, precision=bf16]]
objectives: [{metric: speedup, direction: maximize}]
"""
MODEL = """\
schema_version: 1
kind: dlrm
name: m
source: test
dense_features: 4
bottom_mlp: [8]
towers: [{name: t, tables: [b], mlp: [8]}]
interaction: {kind: dcnv2_low_rank, layers: 2, low_rank: 4}
top_mlp: [4]
experts: {shared: 2, per_task: 1, mlp: [4], levels: 1}
tasks: [{name: click, top_mlp: [1]}]
precision: tf32
optimizer: {dense: sgd, sparse: rowwise_adagrad}
global_batch_size: 64
table_defaults: {dim: 8, pooling: 3, indices: {kind: zipf, alpha: 1.05}, data_type: fp16}
tables:
  - {name: a, rows: 10, pooling: [1, 2], weighted: true, bags_per_sample: 0.5}
  - {name: b, rows: 10, count: 1, indices: {kind: uniform}}
"""
PROFILE = """\
schema_version: 1
name: p
source: {files: [a.json], devices: [cpu], as_of: 2024-05-31}
shared: {launch: {mean: 5 us, spread: 0.3, count: 12}}
launches: {cudaLaunchKernel: {mean: 5 us, spread: 0.3, count: 12}}
operators:
  "aten::mm": {calls: 3, launches: 1.5, before_launch: {mean: 2 us, spread: 0, count: 3}}
"""
CONSTRAINTS = """\
schema_version: 1
tables: {"cat_*": {sharding_types: [row_wise], compute_kernels: [fused], ranks: [0, 1],
  min_partition: 4, max_partitions: 8, cache_load_factor: 0.5, hot_rows: [0, 100]}}
"""
GOOD = {
    "space": ("space", SPACE),
    "transformer space": ("space", TRANSFORMER_SPACE),
    "trace space": ("space", TRACE_SPACE),
    "model": ("model", MODEL),
    "transformer": ("model", (ROOT / "models/deepseek_v3.yaml").read_text()),
    "platform": ("platform", (ROOT / "platforms/gb200_nvl72.yaml").read_text()),
    "host profile": ("host-profile", PROFILE),
    "constraints": ("constraints", CONSTRAINTS),
}
#: Values of the wrong type, or out of the bounds of most fields.
WRONG = ["", "?", "5 apples", "5 s", "5 GB", "-1 GB/s", "80 GiB", -1, 0, 0.5, 3, 1e30, True, None]
WRONG += [[], {}, [[]], [-1], {"low": -5, "high": 2, "factor": 2}, {"unknown_key": 1}]
#: Refusals that a schema can express; others compare fields or look names up.
BY_TYPE_OR_BOUND = re.compile(
    "(int|float|bool|string|list|dict|model|model_attributes)_|finite|greater|less|too|literal"
    "|enum|missing|extra|union_tag|quantity|version|planner|modules|wire|kernel"
)


def paths(node: object, path: tuple = ()):
    """Yields the path of every value, but only the first two entries of a list."""
    if path:
        yield path
    if isinstance(node, dict):
        for key, value in node.items():
            yield from paths(value, (*path, key))
    elif isinstance(node, list):
        for index, value in enumerate(node[:2]):
            yield from paths(value, (*path, index))


def changed(document: object, path: tuple, value: object) -> object:
    copied = copy.deepcopy(document)
    node = copied
    for part in path[:-1]:
        node = node[part]
    node[path[-1]] = value
    return copied


def refusals(kind: str, document: object) -> set[str]:
    """Kinds of problems that dse finds in a document; none where it accepts it."""
    try:
        DOCUMENTS[kind].model_validate(document)
    except ValidationError as error:
        return {one["type"] for one in error.errors(include_url=False)}
    return set()


def switch(document: object, path: tuple) -> bool:
    """Whether a value is true or false, or several of them; dse reads 0 and 1, too."""
    for part in path:
        document = document[part]
    return isinstance(document[0] if isinstance(document, list) else document, bool)


@pytest.mark.parametrize("name", GOOD)
def test_wrong_values_are_refused_by_both(name):
    kind, text = GOOD[name]
    good = parse_plain(text)
    assert refusals(kind, good) == set()
    assert problems(kind, good) == []
    wrong = []
    for path in paths(good):
        for value in WRONG:
            document = changed(good, path, value)
            found = refusals(kind, document)
            by_schema = validator(kind).is_valid(document)
            if path == ("parameters",) and value == {}:
                # Right for a trace; the workload decides.
                continue
            if not found and not by_schema and not (value == 0 and switch(good, path)):
                wrong.append((path, value, "refused by the schema alone"))
            elif by_schema and any(BY_TYPE_OR_BOUND.match(one) for one in found):
                wrong.append((path, value, "accepted by the schema alone", found))
    assert wrong == []
