"""Duration of one collective on one group of ranks."""

from __future__ import annotations

from dse.collectives._model import CollectiveOp, Group, all_to_all_v_time_s, collective_time_s

__all__ = ["CollectiveOp", "Group", "all_to_all_v_time_s", "collective_time_s"]
