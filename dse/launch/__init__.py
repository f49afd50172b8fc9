"""Processes of one job on this machine: started together, asked together, none left behind.

:func:`start_ranks` starts one process a rank, joins them by `torch.distributed` and asks all of
them the same questions. Under ``torchrun``, where the ranks are there already, :func:`in_place`
does the same. Nothing here knows what the ranks work on, and torch is imported on use only.
"""

from __future__ import annotations

from dse.launch._child import RankContext, RankSetup, Worker, WorkerFactory
from dse.launch._parent import RankGroup, RankProcesses, start_ranks
from dse.launch._torch import load_torch
from dse.launch._torchrun import TorchrunEnvironment, in_place, torchrun_environment

__all__ = [
    "RankContext",
    "RankGroup",
    "RankProcesses",
    "RankSetup",
    "TorchrunEnvironment",
    "Worker",
    "WorkerFactory",
    "in_place",
    "load_torch",
    "start_ranks",
    "torchrun_environment",
]
