"""Captured execution traces as benchmarks: their operators rebuilt, run and timed.

:func:`replay` takes PyTorch execution traces of one job, rebuilds every operator from its recorded
signature, and runs them in order on tensors of the recorded shapes, types, strides and shared
memory, without the code, the data or the frameworks of the job. Collectives run over local
processes, or are mocked. What cannot be rebuilt is listed with its reason; users add their own
operators with :func:`register_operator`.

Traces are data of unknown origin: names are only looked up among the operators that torch has
loaded, nothing is evaluated, and tensors are counted against a limit before they are made.
"""

from __future__ import annotations

from dse.trace.replay._options import ReplayOptions, parse_indices
from dse.trace.replay._registry import (
    NotReplayableError,
    OperatorBuilder,
    OperatorCall,
    register_operator,
    unregister_operator,
)
from dse.trace.replay._replay import replay
from dse.trace.replay._results import (
    Coverage,
    OriginalTime,
    RankResult,
    ReplayResult,
    SkippedOperators,
)
from dse.trace.replay.read._recorded import Opaque, TensorRef

__all__ = [
    "Coverage",
    "NotReplayableError",
    "Opaque",
    "OperatorBuilder",
    "OperatorCall",
    "OriginalTime",
    "RankResult",
    "ReplayOptions",
    "ReplayResult",
    "SkippedOperators",
    "TensorRef",
    "parse_indices",
    "register_operator",
    "replay",
    "unregister_operator",
]
