"""Operators of GPUs that a CPU does by others of the same meaning."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

    from dse.trace.replay._registry import OperatorBuilder, OperatorCall


def substitute_for(name: str, device: str) -> OperatorBuilder | None:
    """Returns what stands for an operator on a device, or None if it stands for itself."""
    return _ON_CPU.get(name) if device == "cpu" else None


def _batch_norm(call: OperatorCall) -> Callable[..., Any]:
    """`cudnn_batch_norm` gives a reserve as well, which no CPU kernel needs."""
    import torch

    def run(
        values: Any,
        weight: Any,
        bias: Any,
        mean: Any,
        variance: Any,
        training: bool,
        momentum: float,
        epsilon: float,
    ) -> tuple[Any, ...]:
        found = torch.ops.aten.native_batch_norm.default(
            values, weight, bias, mean, variance, training, momentum, epsilon
        )
        return (*found, values.new_empty(0, dtype=torch.uint8))

    return run


def _batch_norm_backward(call: OperatorCall) -> Callable[..., Any]:
    import torch

    def run(
        values: Any,
        gradient: Any,
        weight: Any,
        mean: Any,
        variance: Any,
        saved_mean: Any,
        saved_variance: Any,
        epsilon: float,
        reserve: Any = None,
    ) -> Any:
        return torch.ops.aten.native_batch_norm_backward.default(
            gradient,
            values,
            weight,
            mean,
            variance,
            saved_mean,
            saved_variance,
            True,
            epsilon,
            [True, True, True],
        )

    return run


def _convolution(call: OperatorCall) -> Callable[..., Any]:
    import torch

    def run(
        values: Any, weight: Any, padding: Any, stride: Any, dilation: Any, groups: int, *_: Any
    ) -> Any:
        return torch.ops.aten.convolution.default(
            values, weight, None, stride, padding, dilation, False, [0] * len(padding), groups
        )

    return run


def _pinned_copy(call: OperatorCall) -> Callable[..., Any]:
    """Pinning copies; without a driver there is nothing to pin with."""
    return lambda values, *_: values.clone()


def _nothing(call: OperatorCall) -> Callable[..., Any]:
    return lambda *_: None


_ON_CPU: dict[str, OperatorBuilder] = {
    "aten::cudnn_batch_norm": _batch_norm,
    "aten::cudnn_batch_norm_backward": _batch_norm_backward,
    "aten::cudnn_convolution": _convolution,
    "aten::pin_memory": _pinned_copy,
    "aten::_pin_memory": _pinned_copy,
    # Tells the allocator of a GPU who else reads a tensor.
    "aten::record_stream": _nothing,
}
