"""Running a plan on this machine: tensors, memory, streams and time."""

from __future__ import annotations

from dse.trace.replay.run._rank import RankInput, replay_rank

__all__ = ["RankInput", "replay_rank"]
