"""What-if questions: changes to a captured training step, and how long it would take.

A :class:`StepEditor` is the execution graph of a step with what the traces say of its tasks. Five
primitives change it: select, scale, insert, remove and schedule. A named :class:`Optimization` is
a short program over them, in one module of `optimizations/`. Users write both as YAML, or name an
optimization on the command line.
"""

from __future__ import annotations

from dse.trace.whatif._document import (
    WhatIfDocument,
    describe_optimizations,
    optimization_options,
    parse_optimization,
    read_changes,
    read_optimization,
)
from dse.trace.whatif._what_if import (
    AppliedChange,
    CapturedStep,
    WhatIf,
    bound_by,
    captured_step,
)
from dse.trace.whatif.core import (
    CapturedMachine,
    Change,
    Optimization,
    Selector,
    StepEditor,
    captured_machine,
)

__all__ = [
    "AppliedChange",
    "CapturedMachine",
    "CapturedStep",
    "Change",
    "Optimization",
    "Selector",
    "StepEditor",
    "WhatIf",
    "WhatIfDocument",
    "bound_by",
    "captured_machine",
    "captured_step",
    "describe_optimizations",
    "optimization_options",
    "parse_optimization",
    "read_changes",
    "read_optimization",
]
