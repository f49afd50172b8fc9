from __future__ import annotations

import pytest

from dse.config import parse_document
from dse.errors import ConfigError, UnknownNameError
from dse.indices import ReuseHistogram, Uniform, Zipf
from dse.model import (
    META_2022,
    DataType,
    InteractionKind,
    ModelDocument,
    Optimizer,
    PoolingDistribution,
    generate_tables,
    list_models,
    load_model,
)

HEAD = """\
schema_version: 1
kind: dlrm
name: m
source: test
dense_features: 4
bottom_mlp: [16, 8]
interaction: {kind: dot}
top_mlp: [4, 1]
optimizer: {dense: sgd, sparse: adagrad}
global_batch_size: 64
"""

TABLES = """\
table_defaults: {dim: 8, data_type: fp16, indices: {kind: zipf, alpha: 1.1}}
tables:
  - {name: a, rows: 10, count: 2}
  - {name: b, rows: 20, pooling: [1, 2.5], pooling_distribution: poisson, data_type: int8}
  - name: c
    rows: 30
    indices:
      kind: reuse_histogram
      row_share: [0.5, 0.5]
      lookup_share: [0.2, 0.8]
      mean_reuse: 2
      touched_share: 0.1
"""


def read(text: str):
    return parse_document(text, ModelDocument, file="f.yaml").to_model()


def problems(text: str) -> list[str]:
    with pytest.raises(ConfigError) as caught:
        read(text)
    return [str(problem) for problem in caught.value.diagnostics]


def test_a_model_becomes_plain_values():
    model = read(HEAD + TABLES)
    assert model.bottom_mlp == (16, 8)
    assert model.interaction.kind is InteractionKind.DOT
    assert (model.dense_optimizer, model.sparse_optimizer) == (Optimizer.SGD, Optimizer.ADAGRAD)
    assert [table.name for table in model.tables] == ["a_0", "a_1", "b", "c"]
    first, _, shared, measured = model.tables
    assert (first.rows, first.dim, first.pooling_factors) == (10, 8, (1.0,))
    assert first.indices == Zipf(1.1)
    assert shared.feature_count == 2
    assert shared.lookups_per_sample == 3.5
    assert shared.pooling_distribution is PoolingDistribution.POISSON
    assert measured.indices == ReuseHistogram((0.5, 0.5), (0.2, 0.8), 2.0, 0.1)
    # Two bytes a value but for table b, whose rows have one and a scale and offset of eight.
    assert model.embedding_bytes == 8 * (2 * 10 * 2 + 20 + 2 * 30) + 8 * 20
    assert shared.data_type is DataType.INT8


def test_values_without_defaults():
    table = read(HEAD + "tables: [{name: a, rows: 10, dim: 8}]\n").tables[0]
    assert table.indices == Uniform()
    assert table.pooling_factors == (1.0,)
    assert table.pooling_distribution is PoolingDistribution.FIXED


def test_generated_tables_are_those_of_the_function():
    head = HEAD.replace("kind: dot", "kind: concat")
    model = read(head + "generate: {statistics: meta2022, count: 5, seed: 3, data_type: int8}\n")
    assert model.tables == generate_tables(META_2022, 5, 3, DataType.INT8)


@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [
        ("count: 2}", "count: 2, dim: 9}", "f.yaml:13:40: tables[0].dim: a dot interaction needs"),
        ("dim: 8, ", "", "f.yaml:13:5: tables[0].dim: table `a` has no `dim`"),
        ("name: b", "name: a_1", "f.yaml:14:12: tables[1].name: expected different table names"),
        ("bottom_mlp: [16, 8]\n", "", "bottom_mlp: a dot interaction needs a bottom MLP"),
        ("count: 2", "count: 100000", "tables: expected at most 100000 tables in total"),
        ("{kind: dot}", "{kind: dcnv2_low_rank}", "f.yaml:7:14: interaction: expected `layers`"),
        ("{kind: dot}", "{kind: dot, layers: 3}", "interaction: `layers` belongs to dcnv2 and"),
        ("{kind: dot}", "{kind: dot, stride: 2}", "interaction: `stride` belongs to concat only"),
        ("[1, 2.5]", "[1, 0]", "f.yaml:14:38: tables[1].pooling[1]: expected more than 0"),
        ("lookup_share: [0.2, 0.8]", "lookup_share: [1]", "expected as many shares of rows as of"),
        ("row_share: [0.5, 0.5]", "row_share: [0, 0]", "expected at least one bin that is not"),
        ("alpha: 1.1", "alpha: 0", "table_defaults.indices.alpha: expected more than 0"),
        ("kind: zipf, alpha: 1.1", "kind: zip", "table_defaults.indices: expected a `kind` out"),
        ("kind: dlrm", "kind: gpt", "f.yaml:2:7: kind: expected one of `dlrm`, found `gpt`"),
    ],
)
def test_mistakes_are_reported_at_their_field(old, new, expected):
    text = HEAD + TABLES
    assert text.count(old) == 1
    found = problems(text.replace(old, new))
    assert any(expected in line for line in found), found


def test_tables_are_either_listed_or_generated():
    generate = "generate: {statistics: meta2021, count: 5, seed: 3}\n"
    both = HEAD.replace("kind: dot", "kind: concat") + TABLES + generate
    assert problems(both) == [
        "f.yaml:23:11: generate: expected exactly one of `tables` and `generate`, found both"
    ]
    assert "expected exactly one of" in problems(HEAD)[0]
    assert "f.yaml:7:21: interaction.kind: a dot interaction" in problems(HEAD + generate)[0]


def test_every_wrong_table_is_reported():
    text = HEAD + "tables:\n" + "".join(f"  - {{name: t, rows: 1, dim: {d}}}\n" for d in (8, 9, 7))
    assert [line.split(": ")[1] for line in problems(text)] == [
        "tables[1].name",
        "tables[1].dim",
        "tables[2].name",
        "tables[2].dim",
    ]


#: Names under which the published throughput figures list these models.
ALIASES = {
    "mlperf_dlrm_v1": "dlrm_criteo",
    "torchrec_dlrm_p4d": "dlrm_criteo",
    "mlpm_DLRM_MLPerf": "dlrm_criteo",
    "mlperf_dlrm_dcnv2": "dlrm_dcnv2",
    "dle_criteo_t15_small": "dlrm_dle_small",
    "dle_criteo_t3_large": "dlrm_dle_large",
    "dle_criteo_t0_xl": "dlrm_dle_xlarge",
    "tfde_tiny_v3": "dlrm_tiny",
    "tfde_small_v3": "dlrm_small",
    "tfde_medium_v3": "dlrm_medium",
    "tfde_large_v3": "dlrm_large",
    "tfde_jumbo_v3": "dlrm_jumbo",
    "mlpm_DLRM_default": "dlrm_default",
    "mlpm_DLRM_DDP": "dlrm_ddp",
}


WITHOUT_PUBLISHED_THROUGHPUT = {
    "dlrm_meta2021",
    "dlrm_deepfm",
    "dlrm_ple",
    "dlrm_two_tower",
    "dlrm_v3_hstu",
    "dlrm_hstu_recsys",
}


def test_aliases_find_the_models_they_mean():
    assert {alias: load_model(alias).name for alias in ALIASES} == ALIASES
    recommendation = {name for name in list_models() if name.startswith("dlrm")}
    assert set(ALIASES.values()) | WITHOUT_PUBLISHED_THROUGHPUT == recommendation


def test_unknown_models_suggest_near_names():
    with pytest.raises(UnknownNameError, match="did you mean `tfde_jumbo_v3`"):
        load_model("tfde_jumbo_v4")


#: Tables and features (looked-up inputs) as the synthetic models' source counts them.
@pytest.mark.parametrize(
    ("name", "tables", "features"),
    [
        ("dlrm_tiny", 55, 58),
        ("dlrm_small", 107, 116),
        ("dlrm_medium", 311, 337),
        ("dlrm_large", 612, 669),
        ("dlrm_jumbo", 1022, 1097),
    ],
)
def test_synthetic_models_have_the_published_counts(name, tables, features):
    model = load_model(name)
    assert len(model.tables) == tables
    assert sum(table.feature_count for table in model.tables) == features
