"""Commands on one job: its time, its sharding plan, and plans in order."""

from __future__ import annotations

from dse.cli.job._predict import predict_command
from dse.cli.job._rank import rank_command
from dse.cli.job._shard import shard_command

__all__ = [
    "predict_command",
    "rank_command",
    "shard_command",
]
