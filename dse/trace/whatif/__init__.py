"""What if: changes to a captured step, and how long it would take.

A :class:`Job` is the execution graph of a step with what the traces say of its tasks. Five
primitives change it: select, scale, insert, remove and schedule. Optimizations are short programs
over them; people write either as YAML, or name an optimization on the command line.
"""

from __future__ import annotations

from dse.trace.whatif._apply import CapturedStep, StepEffect, WhatIf, captured_step
from dse.trace.whatif._bound import bound_by
from dse.trace.whatif._document import (
    WhatIfDocument,
    describe_optimizations,
    optimization_names,
    optimization_options,
    parse_optimization,
    read_steps,
)
from dse.trace.whatif._job import Job
from dse.trace.whatif._machines import Machine, machine_of, platform_with_device
from dse.trace.whatif._operators import KernelCall, kernel_calls
from dse.trace.whatif._select import Selector
from dse.trace.whatif._steps import (
    InsertStep,
    Optimization,
    RemoveStep,
    ScaleStep,
    ScheduleStep,
    SelectBlock,
    Step,
)

__all__ = [
    "CapturedStep",
    "InsertStep",
    "Job",
    "KernelCall",
    "Machine",
    "Optimization",
    "RemoveStep",
    "ScaleStep",
    "ScheduleStep",
    "SelectBlock",
    "Selector",
    "Step",
    "StepEffect",
    "WhatIf",
    "WhatIfDocument",
    "bound_by",
    "captured_step",
    "describe_optimizations",
    "kernel_calls",
    "machine_of",
    "optimization_names",
    "optimization_options",
    "parse_optimization",
    "platform_with_device",
    "read_steps",
]
