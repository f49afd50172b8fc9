"""Scaled runs keep what ranks a study: the structure of the model and how it is spread."""

from __future__ import annotations

from dataclasses import replace

import pytest

from dse.errors import ConfigError
from dse.model import load_model
from dse.search import ValidationMode
from dse.sharding import ShardingType
from dse.validation.study.runs import PLANNERS
from dse.validation.trainer.pytorch import PyTorchTrainer
from dse.validation.trainer.reference import ReferenceTrainer
from dse.workload.dlrm import DlrmWorkload
from dse.workload.transformer import TransformerWorkload
from tests.validation import models, transformers

MEBI = 2**20


def planner(workload, trainer, memory_bytes=1e9):
    """What plans scaled runs of a workload on two ranks of a CPU."""
    settings = {"mode": ValidationMode.SCALED, "max_ranks": 2, "device": "cpu", "platform": None}
    # Only what reads trials needs their study.
    return PLANNERS[workload.kind](
        study=None, workload=workload, trainer=trainer, memory_bytes=memory_bytes, **settings
    )


def dlrm_runs(rows, batch, memory_bytes=1e9):
    tables = tuple(replace(one, rows=rows) for one in models.TABLES)
    what = models.model(tables=tables, global_batch_size=batch)
    kinds = (ShardingType.TABLE_WISE, ShardingType.ROW_WISE)
    places = ([(kinds[0], (0,))] * 4, [(kinds[1], (0, 1))] * 4)
    made = [
        models.candidate(name, what, 2, placed, batch=size)
        for name, placed, size in zip("ab", places, (batch, batch // 2), strict=True)
    ]
    runs = planner(DlrmWorkload(what), ReferenceTrainer(), memory_bytes)
    return made, list(runs.smaller(made))


def test_recommendation_models_keep_plans_and_the_ratio_of_their_batches():
    made, steps = dlrm_runs(rows=1_000_000, batch=2**20, memory_bytes=80 * MEBI)
    # A fifth of the memory for two candidates: 8 MiB of four equal tables of 32-byte rows.
    first, _ = steps[0]
    assert all(table.rows == 2**16 for table in first[0].model.tables)
    batches = [one.global_batch_size for one, _ in (step for step, _ in steps)]
    assert batches == sorted(batches, reverse=True)
    for scaled, text in steps:
        assert [one.plan for one in scaled] == [one.plan for one in made]
        assert scaled[0].model == scaled[1].model
        assert scaled[0].global_batch_size == pytest.approx(2 * scaled[1].global_batch_size, abs=4)
        assert f"{4 * 2**16:,}" in text
        # A sample looks up 11.5 rows of 32 bytes.
        assert scaled[0].global_batch_size * 11.5 * 32 <= 32e6


def test_small_recommendation_models_stay_as_they_are():
    made, steps = dlrm_runs(rows=100, batch=2**10)
    assert steps[0][0] == made


def test_recommendation_models_beyond_all_memory_are_refused():
    with pytest.raises(ConfigError):
        dlrm_runs(rows=1_000_000, batch=2**10, memory_bytes=MEBI / 100)


def test_transformers_keep_groups_of_heads_and_the_shape_of_blocks():
    before = load_model("llama3_8b")
    own = {
        name: getattr(before, name)
        for name in ("layers", "hidden", "heads", "kv_heads", "head_dim", "ffn_hidden", "vocab")
    }
    own["sequence_length"] = before.sequence_length
    made = [
        transformers.candidate("a", model=own, tensor=2),
        transformers.candidate("b", model=own, data=2),
    ]
    steps = list(planner(TransformerWorkload(before), PyTorchTrainer()).smaller(made))
    widths = []
    for scaled, text in steps:
        model = scaled[0].problem.model
        assert scaled[1].problem.model == model
        assert [one.problem.parallelism for one in scaled] == [
            one.problem.parallelism for one in made
        ]
        assert model.heads * model.head_dim == model.hidden
        # Two ranks share the heads of keys and values.
        assert model.kv_heads % 2 == 0
        assert model.heads // model.kv_heads in (1, 2, 4)
        assert model.ffn_hidden / model.hidden == pytest.approx(
            before.ffn_hidden / before.hidden, rel=0.15
        )
        assert f"{before.hidden:,} → {model.hidden:,}" in text
        widths.append(model.hidden)
    assert widths == [512, 256, 128]
