"""What the reference trainer is tried with by `tests/validation/trainer/test_conformance.py`."""

from __future__ import annotations

from dataclasses import replace

from dse.sharding import ComputeKernel, ShardingType
from dse.workload import LaunchMode
from tests.validation.models import candidate, model
from tests.validation.trainer.conformance import TrainerCase

KINDS = ShardingType
WHOLE = [(KINDS.TABLE_WISE, (rank,)) for rank in (0, 1, 1, 0)]
MIXED = [
    (KINDS.COLUMN_WISE, (0, 1)),
    (KINDS.ROW_WISE, (0, 1)),
    (KINDS.TABLE_WISE, (1,)),
    (KINDS.DATA_PARALLEL, (0, 1)),
]


def in_host_memory():
    one = candidate("uvm", model(), 2, WHOLE)
    first, *rest = one.plan.tables
    first = replace(first, compute_kernel=ComputeKernel.FUSED_UVM)
    return replace(one, plan=replace(one.plan, tables=(first, *rest)))


CASE = TrainerCase(
    candidates=(candidate("whole", model(), 2, WHOLE), candidate("mixed", model(), 2, MIXED)),
    refused=(
        candidate("graph", model(), 2, WHOLE, launch=LaunchMode.CUDA_GRAPHS),
        in_host_memory(),
    ),
)
