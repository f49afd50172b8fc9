"""Every sharding trains the same model: losses and weights are those of the unsharded one."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from dse.errors import ConfigError, PlanError
from dse.machine import Precision
from dse.model import DataType, Interaction, InteractionKind, Optimizer
from dse.sharding import ShardingType
from dse.validation import TrainerOptions, train
from dse.workload import LaunchMode
from dse.workload.dlrm import TrainPipeline, WireFormat, WireFormats
from tests.validation.models import OPTIONS, candidate, model, trained_by_hand

pytest.importorskip("torch")

STEPS = 5
#: Update rules that real runs have.
RULES = (Optimizer.SGD, Optimizer.ROWWISE_ADAGRAD, Optimizer.ADAGRAD, Optimizer.ADAM)
#: Double precision: only the order of sums differs.
TOLERANCE = 1e-11

TYPE = ShardingType
BOTH, ALL = (0, 1), (0, 1, 2, 3)

TWO_RANKS = {
    "table_wise": [(TYPE.TABLE_WISE, (rank,)) for rank in (0, 1, 1, 0)],
    "all_on_one_rank": [(TYPE.TABLE_WISE, (1,))] * 4,
    "row_wise": [(TYPE.ROW_WISE, BOTH), (TYPE.ROW_WISE, (1, 0))] * 2,
    "column_wise": [(TYPE.COLUMN_WISE, ranks) for ranks in ((0, 1), (1, 0), (1, 1), (0,))],
    "data_parallel": [(TYPE.DATA_PARALLEL, BOTH)] * 4,
    "table_row_wise": [(TYPE.TABLE_ROW_WISE, BOTH)] * 4,
    "mixed": [
        (TYPE.COLUMN_WISE, BOTH),
        (TYPE.ROW_WISE, BOTH),
        (TYPE.TABLE_WISE, (1,)),
        (TYPE.DATA_PARALLEL, BOTH),
    ],
}
TWO_NODES = {
    # Nine rows over four ranks: the last block is empty.
    "row_wise": [(TYPE.ROW_WISE, ALL)] * 4,
    "table_row_wise": [(TYPE.TABLE_ROW_WISE, ranks) for ranks in ((0, 1), (2, 3), (2, 3), (0, 1))],
    "on_one_node": [(TYPE.TABLE_ROW_WISE, (2, 3))] * 4,
    "table_column_wise": [
        (TYPE.TABLE_COLUMN_WISE, ranks) for ranks in ((0, 1), (3, 2), (2, 2), (1, 0))
    ],
    "grid": [(TYPE.GRID_SHARD, ranks) for ranks in (ALL, (2, 3, 0, 1), (2, 3), (0, 1, 0, 1))],
    "mixed": [
        (TYPE.GRID_SHARD, ALL),
        (TYPE.TABLE_ROW_WISE, (2, 3)),
        (TYPE.ROW_WISE, ALL),
        (TYPE.COLUMN_WISE, (3, 0)),
    ],
    "and_all_else": [
        (TYPE.DATA_PARALLEL, ALL),
        (TYPE.TABLE_ROW_WISE, (0, 1)),
        (TYPE.TABLE_WISE, (3,)),
        (TYPE.TABLE_COLUMN_WISE, (1, 0)),
    ],
}


def of_two_ranks():
    made = [
        candidate(f"{plan}, {rule.value}", model(rule), 2, placements)
        for plan, placements in TWO_RANKS.items()
        for rule in RULES
    ]
    mixed = TWO_RANKS["mixed"]
    variants = {
        "no prefetch": {"pipeline": TrainPipeline.BASE},
        "small buckets": {"dense_bucket_bytes": 256},
        "no overlap": {"overlap_dense_all_reduce": False},
        "small buckets, no overlap": {
            "overlap_dense_all_reduce": False,
            "dense_bucket_bytes": 256,
        },
    }
    made += [candidate(name, model(), 2, mixed, **change) for name, change in variants.items()]
    made += [
        candidate(f"dense {rule.value}", model(dense=rule), 2, mixed)
        for rule in (Optimizer.ADAGRAD, Optimizer.ADAM)
    ]
    interactions = {
        "concat": Interaction(InteractionKind.CONCAT),
        "pooled concat": Interaction(InteractionKind.CONCAT, stride=4),
        "cross": Interaction(InteractionKind.DCNV2_LOW_RANK, layers=2, low_rank=3),
    }
    made += [
        candidate(name, model(interaction=kind), 2, mixed) for name, kind in interactions.items()
    ]
    return {one.name: one for one in made}


def of_two_nodes():
    made = [
        candidate(f"{plan}, {rule.value}", model(rule), 4, placements, nodes_of=2)
        for plan, placements in TWO_NODES.items()
        for rule in RULES
    ]
    return {one.name: one for one in made}


@pytest.fixture(scope="module")
def two_ranks():
    made = list(of_two_ranks().values())
    results = train(made, STEPS, options=OPTIONS, threads=1)
    return dict(zip(of_two_ranks(), results, strict=True))


@pytest.fixture(scope="module")
def two_nodes():
    made = list(of_two_nodes().values())
    results = train(made, STEPS, options=OPTIONS, threads=1)
    return dict(zip(of_two_nodes(), results, strict=True))


def check(found, one):
    wanted = trained_by_hand(one, STEPS)
    np.testing.assert_allclose(found.losses, wanted.losses, rtol=0, atol=TOLERANCE)
    assert found.weights.keys() == wanted.weights.keys()
    for name, expected in wanted.weights.items():
        np.testing.assert_allclose(found.weights[name], expected, rtol=0, atol=TOLERANCE)


@pytest.mark.part_of_slow
def test_a_mixed_plan_trains_the_unsharded_model():
    rules = (Optimizer.ROWWISE_ADAGRAD, Optimizer.ADAM)
    made = [candidate(rule.value, model(rule), 2, TWO_RANKS["mixed"]) for rule in rules]
    for found, one in zip(train(made, STEPS, options=OPTIONS, threads=1), made, strict=True):
        check(found, one)


@pytest.mark.slow
@pytest.mark.parametrize("name", of_two_ranks())
def test_two_ranks_train_the_unsharded_model(two_ranks, name):
    check(two_ranks[name], of_two_ranks()[name])


@pytest.mark.slow
@pytest.mark.parametrize("name", of_two_nodes())
def test_two_nodes_train_the_unsharded_model(two_nodes, name):
    check(two_nodes[name], of_two_nodes()[name])


def test_training_moves_rows_and_lowers_the_loss():
    one = candidate("alone", model(), 1, [(TYPE.TABLE_WISE, (0,))] * 4)
    results = [trained_by_hand(one, steps) for steps in (1, 30)]
    moved = [
        np.abs(results[1].weights[table.name] - results[0].weights[table.name]).max()
        for table in one.model.tables
    ]
    assert min(moved) > 1e-3
    assert np.mean(results[1].losses[-3:]) < np.mean(results[1].losses[:3])


@pytest.mark.slow
def test_single_and_narrow_values_train_nearly_the_same():
    mixed = TWO_RANKS["mixed"]
    half = model(precision=Precision.BF16)
    narrow = [
        model(tables=tuple(replace(one, data_type=kind) for one in half.tables))
        for kind in (DataType.FP16, DataType.BF16)
    ]
    made = [
        candidate("single", model(), 2, mixed),
        candidate("narrow wire", model(), 2, mixed, wire=WireFormats.of(WireFormat.FP16)),
        candidate("mixed precision", half, 2, mixed),
        candidate("fp16 tables", narrow[0], 2, mixed),
        candidate("bf16 tables", narrow[1], 2, mixed),
    ]
    options = TrainerOptions(
        seed=OPTIONS.seed,
        sparse_learning_rate=OPTIONS.sparse_learning_rate,
        dense_learning_rate=OPTIONS.dense_learning_rate,
        batches=OPTIONS.batches,
    )
    wanted = trained_by_hand(made[0], STEPS)
    tolerances = (1e-5, 2e-3, 2e-2, 2e-3, 2e-2)
    results = train(made, STEPS, options=options, threads=1)
    for found, tolerance in zip(results, tolerances, strict=True):
        np.testing.assert_allclose(found.losses, wanted.losses, atol=tolerance)
        # Narrow values are used where they were asked for.
        if tolerance > 1e-4:
            assert np.abs(np.subtract(found.losses, wanted.losses)).max() > 1e-7


def test_captured_graphs_cannot_be_trained():
    captured = candidate(
        "wrong", model(), 2, TWO_RANKS["table_wise"], launch=LaunchMode.CUDA_GRAPHS
    )
    with pytest.raises(ConfigError, match="launch eagerly"):
        train([captured], 1)


def test_candidates_of_one_run_belong_together():
    one = candidate("one", model(), 2, TWO_RANKS["table_wise"])
    other = candidate("other", model(), 1, [(TYPE.TABLE_WISE, (0,))] * 4)
    with pytest.raises(ConfigError, match="no candidates"):
        train([], 1)
    with pytest.raises(ConfigError, match="two candidates are named `one`"):
        train([one, one], 1)
    with pytest.raises(ConfigError, match="1, 2 ranks"):
        train([one, other], 1)
    with pytest.raises(PlanError, match="outside 0–1"):
        train([candidate("p", model(), 2, [(TYPE.TABLE_WISE, (2,))] * 4)], 1)
    with pytest.raises(ConfigError, match="device `tpu`"):
        train([one], 1, device="tpu")
