"""A captured step, the primitives that change it, and what a file may say of them."""

from __future__ import annotations

from dse.trace.whatif.core._changes import (
    Change,
    Factor,
    InsertChange,
    Numbers,
    Optimization,
    Patterns,
    RemoveChange,
    ScaleChange,
    ScheduleChange,
    SelectBlock,
)
from dse.trace.whatif.core._editor import StepEditor
from dse.trace.whatif.core._gradients import Gradient, gradients_of
from dse.trace.whatif.core._kernel_kinds import (
    BATCH_NORM,
    CONVOLUTION,
    ELEMENTWISE,
    MATRIX,
    POOLING,
    RELU,
    accumulates,
    innermost_operator,
)
from dse.trace.whatif.core._machine import CapturedMachine, captured_machine
from dse.trace.whatif.core._select import HOST_ROLES, Selector, matches, matches_any
from dse.trace.whatif.core._structure import (
    Layer,
    after_backward,
    backward_position,
    chains_of_kernels,
    first_of_layer,
    layers_with_backward,
    neighbours,
    optimizer_steps,
    training_passes,
)
from dse.trace.whatif.core._tensors import (
    Argument,
    Shape,
    ShapeChange,
    arguments_of,
    resized,
    tensors_of,
    with_precision,
    with_shapes,
)

__all__ = [
    "BATCH_NORM",
    "CONVOLUTION",
    "ELEMENTWISE",
    "HOST_ROLES",
    "MATRIX",
    "POOLING",
    "RELU",
    "Argument",
    "CapturedMachine",
    "Change",
    "Factor",
    "Gradient",
    "InsertChange",
    "Layer",
    "Numbers",
    "Optimization",
    "Patterns",
    "RemoveChange",
    "ScaleChange",
    "ScheduleChange",
    "SelectBlock",
    "Selector",
    "Shape",
    "ShapeChange",
    "StepEditor",
    "accumulates",
    "after_backward",
    "arguments_of",
    "backward_position",
    "captured_machine",
    "chains_of_kernels",
    "first_of_layer",
    "gradients_of",
    "innermost_operator",
    "layers_with_backward",
    "matches",
    "matches_any",
    "neighbours",
    "optimizer_steps",
    "resized",
    "tensors_of",
    "training_passes",
    "with_precision",
    "with_shapes",
]
