"""State of update rules: bytes of a table and of its updates."""

from __future__ import annotations

from dataclasses import replace

import pytest

from dse.config import parse_document
from dse.errors import ConfigError
from dse.machine import Precision
from dse.model import Optimizer, load_model
from dse.model.dlrm import ModelDocument
from dse.sharding import ComputeKernel, ShardingPlan, ShardingType, TablePlan, shard_storage
from dse.workload.dlrm import DlrmProblem, DlrmRuntime, PlanScorer, Slot, slot_durations_s
from tests.conftest import make_cluster, make_model, make_table

TABLE = make_table("a", rows=1_000_000, dim=64, pooling=10)

#: Values of a row of 64 columns: on the device, and next to its weights.
STATE = {
    "sgd": (0, 0),
    "rowwise_adagrad": (1, 0),
    "adagrad": (0, 64),
    "adam": (0, 128),
    "partial_rowwise_adam": (1, 64),
    "lamb": (0, 128),
    "partial_rowwise_lamb": (1, 64),
    "lars_sgd": (0, 64),
}

MODEL = """
schema_version: 1
kind: dlrm
name: small
source: made for tests
dense_features: 4
bottom_mlp: [16, 8]
interaction: {kind: dot}
top_mlp: [8, 1]
tables: [{name: a, rows: 100, dim: 8}]
global_batch_size: 64
precision: fp32
"""


def update_s(optimizer, kernel=ComputeKernel.FUSED):
    model = replace(make_model((TABLE,)), sparse_optimizer=optimizer)
    problem = DlrmProblem(model, make_cluster(), 4096, Precision.TF32, DlrmRuntime())
    scorer = PlanScorer(problem)
    made = ShardingPlan(4, (TablePlan("a", ShardingType.TABLE_WISE, (1,), kernel),))
    slots = slot_durations_s(problem, *scorer.layout_and_features(made))
    return float(slots[Slot.POOLED_UPDATE, 1, 0])


def test_every_rule_has_its_state():
    assert set(STATE) == {rule.value for rule in Optimizer}


@pytest.mark.parametrize("name", STATE)
def test_stored_state_by_hand(name):
    rule, (by_row, by_column) = Optimizer(name), STATE[name]
    assert rule.state_values_per_row(64) == by_row + by_column
    resident = shard_storage(TABLE, rule, 1_000_000, 64)
    assert resident.device_state_bytes == 4e6 * (by_row + by_column)
    cached = shard_storage(TABLE, rule, 1_000_000, 64, 0.2)
    # State by column is with the rows and never cached.
    assert cached.device_state_bytes == 4e6 * by_row
    assert cached.host_bytes == 256e6 + 4e6 * by_column


def test_updates_read_and_write_the_state_of_each_different_row():
    distinct = 1e6 * -((1 - 1e-6) ** 40_960 - 1)
    plain = update_s(Optimizer.SGD)
    for name, (by_row, by_column) in STATE.items():
        # 4 bytes of a row take a sector of 32; read and written at 2 TB/s.
        state_bytes = -(-4 * (by_row + by_column) // 32) * 32
        added = 2 * distinct * state_bytes / 2e12
        assert update_s(Optimizer(name)) - plain == pytest.approx(added, rel=1e-6, abs=1e-12)


def test_in_host_memory_state_by_column_crosses_the_link():
    times = {name: update_s(Optimizer(name), ComputeKernel.FUSED_UVM) for name in STATE}
    # A value of the row stays on the device, and is read while rows cross.
    assert times["rowwise_adagrad"] == pytest.approx(times["sgd"], rel=0.02)
    assert times["partial_rowwise_adam"] == pytest.approx(times["adagrad"], rel=0.02)
    assert times["sgd"] < times["lars_sgd"] < times["lamb"] == times["adam"]


def test_a_model_file_chooses_the_rule_of_its_tables():
    text = MODEL + "optimizer: {dense: sgd, sparse: partial_rowwise_adam}\n"
    model = parse_document(text, ModelDocument, file="f.yaml").to_model()
    assert model.sparse_optimizer is Optimizer.PARTIAL_ROWWISE_ADAM


@pytest.mark.parametrize("pair", ["{dense: lamb, sparse: sgd}", "{dense: sgd, sparse: shampoo}"])
def test_rules_that_do_not_fit_are_refused(pair):
    with pytest.raises(ConfigError) as caught:
        parse_document(MODEL + f"optimizer: {pair}\n", ModelDocument, file="f.yaml")
    (problem,) = caught.value.diagnostics
    assert "optimizer" in str(problem)


def test_shipped_models_keep_their_rules():
    assert load_model("dlrm_dcnv2").sparse_optimizer.of_tables_only is False
