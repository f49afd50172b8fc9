"""What TorchRec is tried with by `tests/validation/trainer/test_conformance.py`."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from dse.sharding import ShardingType
from dse.validation.trainer.torchrec import TorchRecTrainer
from dse.workload.dlrm import TrainPipeline
from tests.validation.models import candidate, model
from tests.validation.trainer.conformance import TrainerCase

if TYPE_CHECKING:
    from dse.validation import Candidate

KINDS = ShardingType
WHOLE = [(KINDS.TABLE_WISE, (rank,)) for rank in (0, 1, 1, 0)]
MIXED = [
    (KINDS.COLUMN_WISE, (0, 1)),
    (KINDS.ROW_WISE, (0, 1)),
    (KINDS.TABLE_WISE, (1,)),
    (KINDS.DATA_PARALLEL, (0, 1)),
]
COPIES = [(KINDS.DATA_PARALLEL, (0, 1))] * 4


def adopted(name, placements, pipeline=TrainPipeline.SPARSE_DIST, **changes) -> Candidate:
    return TorchRecTrainer().adopt(
        candidate(name, model(**changes), 2, placements, pipeline=pipeline)
    )


def with_hot_rows() -> Candidate:
    one = adopted("hot", WHOLE)
    first, *rest = one.plan.tables
    return replace(one, plan=replace(one.plan, tables=(replace(first, hot_rows=10), *rest)))


CASE = TrainerCase(
    candidates=(
        adopted("whole", WHOLE),
        adopted("mixed", MIXED, TrainPipeline.BASE),
        adopted("copies", COPIES),
    ),
    refused=(
        adopted("reversed", [(KINDS.ROW_WISE, (1, 0))] * 4),
        adopted("ahead", WHOLE, TrainPipeline.SEMI_SYNC),
        with_hot_rows(),
    ),
)
