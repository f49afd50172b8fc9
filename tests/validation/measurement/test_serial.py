"""One rank alone does what it would do among the others, but for collectives."""

from __future__ import annotations

import math

import numpy as np
import pytest

from dse.errors import ConfigError
from dse.launch import RankContext
from dse.sharding import ShardingType
from dse.validation import BudgetError, MeasureLimits, TrainerOptions, local_batch
from dse.validation.measurement._serial import measure_serially
from dse.validation.trainer.reference import ReferenceTrainer
from dse.validation.trainer.reference._alone import received_inputs
from dse.workload.dlrm import TrainPipeline
from tests.validation.models import BATCH, candidate, model

torch = pytest.importorskip("torch")

OPTIONS = TrainerOptions(seed=3, batches=2)
KINDS = ShardingType
WHOLE = [(KINDS.TABLE_WISE, (rank,)) for rank in (0, 1, 1, 0)]
MIXED = [
    (KINDS.ROW_WISE, (0, 1, 2, 3)),
    (KINDS.GRID_SHARD, (2, 3, 0, 1)),
    (KINDS.DATA_PARALLEL, (0, 1, 2, 3)),
    (KINDS.TABLE_ROW_WISE, (2, 3)),
]


def everything(number):
    return local_batch(model(), OPTIONS.seed, number, 0, BATCH)


def trainer(one, rank):
    reference = ReferenceTrainer()
    checked = reference.checked(one, "cpu")
    context = RankContext(rank, checked.world_size, "cpu")
    return reference.rank_alone(checked, OPTIONS, context, reference.received(checked, OPTIONS))


@pytest.mark.parametrize("pipeline", [TrainPipeline.BASE, TrainPipeline.SPARSE_DIST])
def test_a_rank_looks_up_what_all_ranks_send_it(pipeline):
    alone = trainer(candidate("whole", model(), 2, WHOLE, pipeline=pipeline), 1)
    for number in (0, 1):
        feeding = alone._next()
        bags = alone._inputs.finish(feeding)
        batch = everything(number)
        for table, own in zip((1, 2), bags, strict=True):
            # By feature, then by sample of the whole batch: the order of an undivided batch.
            assert own.lengths.tolist() == batch.lengths[table].tolist()
            assert own.indices.tolist() == batch.indices[table].tolist()


def test_blocks_of_rows_get_each_lookup_once():
    rows = [(KINDS.ROW_WISE, (0, 1, 2))] * 4
    one = ReferenceTrainer().checked(candidate("rows", model(), 3, rows), "cpu")
    inbox = received_inputs(torch, one, OPTIONS)
    assert len(inbox) == OPTIONS.batches
    for number, by_rank in enumerate(inbox):
        batch = everything(number)
        lookups = sum(len(indices) for indices in batch.indices)
        assert sum(len(indices) for _, indices in by_rank) == lookups
        assert sum(int(lengths.sum()) for lengths, _ in by_rank) == lookups
        # Of the first table the first rank owns rows 0 to 16.
        owned = int(np.sum(batch.indices[0] < math.ceil(model().tables[0].rows / 3)))
        # Of each source: bags of the first table, then those of others.
        assert int(by_rank[0][0].view(3, -1)[:, : BATCH // 3].sum()) == owned


@pytest.mark.parametrize("rank", range(4))
def test_every_sharding_type_runs_alone(rank):
    alone = trainer(candidate("mixed", model(), 4, MIXED, nodes_of=2), rank)
    assert all(math.isfinite(float(alone.step())) for _ in range(3))


@pytest.mark.slow
def test_an_iteration_is_the_longest_rank_with_its_communication():
    limits = MeasureLimits(budget_s=20.0, sample_s=0.001, target_half_width=0.0, max_rounds=6)
    done = []
    (found,) = measure_serially(
        [candidate("whole", model(), 2, WHOLE)],
        [(0.0, 1000.0)],
        device="cpu",
        threads=1,
        limits=limits,
        options=OPTIONS,
        on_step=done.append,
    )
    assert done == ["candidate 1 of 1, rank 0", "candidate 1 of 1, rank 1"]
    assert len(found.samples) == 6
    assert len(found.rank_times_s) == 2
    # The second rank is the longest in every sample.
    assert found.iteration_time_s == pytest.approx(1000.0 + found.rank_times_s[1], rel=1e-3)
    assert all(time_s > 1000.0 for time_s in found.samples)
    assert max(found.rank_times_s) < 1000.0


@pytest.mark.slow
def test_a_budget_that_the_first_rank_uses_up_is_an_error():
    done = []
    with pytest.raises(BudgetError) as error:
        measure_serially(
            [candidate("whole", model(), 2, WHOLE)],
            [(0.0, 0.0)],
            device="cpu",
            threads=1,
            limits=MeasureLimits(budget_s=1e-6, sample_s=0.001),
            options=OPTIONS,
            on_step=done.append,
        )
    assert done == ["candidate 1 of 1, rank 0"]
    assert error.value.needed_s > error.value.value == 1e-6


def test_communication_of_every_rank_is_wanted():
    with pytest.raises(ConfigError, match="give 2 times for each of 1 candidates"):
        measure_serially(
            [candidate("whole", model(), 2, WHOLE)],
            [(0.0,)],
            device="cpu",
            threads=1,
            limits=MeasureLimits(),
            options=OPTIONS,
        )
