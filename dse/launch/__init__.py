"""Ranks of one job on this machine.

:func:`start_ranks` starts one process per rank, joins them with `torch.distributed` and sends all
of them the same commands. Under ``torchrun``, :func:`in_place` does the same with the ranks that
it started. This package does not know what the ranks compute, and imports torch on use only.
"""

from __future__ import annotations

from dse.launch._group import RankGroup, start_ranks
from dse.launch._rank import RankContext, Worker
from dse.launch._torchrun import TorchrunEnvironment, in_place, torchrun_environment

__all__ = [
    "RankContext",
    "RankGroup",
    "TorchrunEnvironment",
    "Worker",
    "in_place",
    "start_ranks",
    "torchrun_environment",
]
