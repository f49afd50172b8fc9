"""Kinds of kernels, known by the innermost operator or else by the kernel's name."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from dse.trace.whatif.core._select import matches

if TYPE_CHECKING:
    from dse.trace.whatif.core._editor import StepEditor

_ELEMENTWISE = (
    "add sub rsub mul div neg exp log log1p sqrt rsqrt square pow abs clamp sigmoid tanh gelu "
    "silu addcmul addcdiv where"
)
ACCUMULATE = "torch::autograd::AccumulateGrad"
#: Around operators rather than operators: the loop of autograd, and nodes written in Python.
_AROUND = ("autograd::engine::*",)


@dataclass(frozen=True, slots=True)
class KernelKind:
    """A kind of kernels.

    Attributes:
        operators: Patterns of the innermost operator.
        names: Patterns of names of kernels without a known operator.
    """

    operators: tuple[str, ...]
    names: tuple[str, ...]

    def fits(self, editor: StepEditor, task: int) -> bool:
        """Returns whether a task is of this kind."""
        operator = innermost_operator(editor, task)
        if operator:
            return matches(operator, self.operators)
        return matches(editor.name_of(task), self.names)


CONVOLUTION = KernelKind(
    (
        "aten::*convolution*",
        "aten::conv[123]d",
        "aten::*thnn_conv*",
        "aten::slow_conv*",
        "convolutionbackward*",
    ),
    (
        "*scudnn*",
        "*wgrad*",
        "*dgrad*",
        "*fprop*",
        "*winograd*",
        "*convolve*",
        "*conv2d*",
        "*implicit_gemm*",
    ),
)
MATRIX = KernelKind(
    (
        *CONVOLUTION.operators,
        "aten::mm",
        "aten::addmm",
        "aten::bmm",
        "aten::baddbmm",
        "aten::addbmm",
        "aten::mv",
        "aten::addmv",
        "aten::dot",
        "aten::matmul",
        "aten::linear",
        "aten::*linear_backward*",
        "aten::mkldnn_linear*",
        "aten::_addmm_activation",
        "aten::_scaled_mm",
        "aten::*scaled_dot_product*",
        "aten::_*flash_attention*",
        "aten::_*efficient_attention*",
        "aten::_*cudnn_attention*",
        "flashattn*",
    ),
    (
        *CONVOLUTION.names,
        "*gemm*",
        "*gemv*",
        "*cutlass*",
        "*xmma*",
        "*nvjet*",
        "*flash_*",
        "*fmha*",
    ),
)
BATCH_NORM = KernelKind(
    ("aten::*batch_norm*", "*batchnormbackward*"), ("*batch_norm*", "*::bn_fw*", "*::bn_bw*")
)
RELU = KernelKind(
    (
        "aten::relu*",
        "aten::clamp_min*",
        "aten::threshold*",
        "aten::leaky_relu*",
        "aten::hardtanh*",
        "relubackward*",
    ),
    ("*relu*", "*threshold*", "*clamp_min*"),
)
POOLING = KernelKind(("aten::*pool[123]d*",), ("*_pool_*", "*pooling*"))
ELEMENTWISE = KernelKind(
    (
        *RELU.operators,
        *(f"aten::{name}{end}" for name in _ELEMENTWISE.split() for end in ("", "_")),
        "aten::sigmoid_backward",
        "aten::tanh_backward",
        "aten::gelu_backward",
        "aten::silu_backward",
    ),
    ("*elementwise_kernel*",),
)


def innermost_operator(editor: StepEditor, task: int) -> str:
    """Returns the name of the innermost operator around a task; empty if none is known."""
    name = (editor.stack_of(task) or ("",))[-1]
    # Annotations have no `::`; a node of autograd may launch kernels without an operator.
    known = "::" in name or matches(name, ("*backward[0-9]",))
    return name if known and not matches(name, _AROUND) else ""


def accumulates(editor: StepEditor, task: int) -> bool:
    """Returns whether a task accumulates a gradient."""
    return any(name.endswith(ACCUMULATE) for name in editor.stack_of(task))
