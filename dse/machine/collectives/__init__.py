"""Duration of one collective on one group of ranks."""

from __future__ import annotations

from dse.machine.collectives._estimate import (
    all_to_all_v_time_s,
    between_level_s,
    both_levels_s,
    collective_estimate,
    collective_time_s,
    deciding_bytes,
    inside_level_s,
)
from dse.machine.collectives._expected import (
    CollectiveTable,
    ExpectedCollective,
    expected_collective,
)
from dse.machine.collectives._groups import CollectiveOp, Group
from dse.machine.collectives._inside import (
    inside_time_s,
    link_from_measurement,
    volume,
)
from dse.machine.collectives._measured import curves_in_use, measured_by
from dse.machine.collectives._network_models import model_of_kind
from dse.machine.collectives._switches import nccl_protocols

__all__ = [
    "CollectiveOp",
    "CollectiveTable",
    "ExpectedCollective",
    "Group",
    "all_to_all_v_time_s",
    "between_level_s",
    "both_levels_s",
    "collective_estimate",
    "collective_time_s",
    "curves_in_use",
    "deciding_bytes",
    "expected_collective",
    "inside_level_s",
    "inside_time_s",
    "link_from_measurement",
    "measured_by",
    "model_of_kind",
    "nccl_protocols",
    "volume",
]
