"""Benchmarks of a transformer's operators, forward and by automatic differentiation.

A backward pass is that of one call of the operator, again and again: its graph is kept.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

from dse._torch import load_torch

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from dse.calibration.microbench.operators._dense import KernelFactory
    from dse.calibration.microbench.operators._values import Operands

#: Makes the operator's inputs that have gradients, and what calls it on them.
_Forward = tuple[list[Any], "Callable[[], Any]"]


def _activation(name: str, values_moved: int, sizes: Mapping[str, float], made: Any) -> _Forward:
    """Forward it reads and writes a value; backward it reads two and writes one."""
    torch = load_torch()
    value = made((max(1, int(sizes["traffic_bytes"]) // (4 * values_moved)),))
    function = getattr(torch.nn.functional, name)
    return [value], lambda: function(value)


def _norm(name: str, sizes: Mapping[str, float], made: Any) -> _Forward:
    torch = load_torch()
    rows, columns = int(sizes["rows"]), int(sizes["columns"])
    value, weight = made((rows, columns)), made((columns,))
    function = getattr(torch.nn.functional, name)
    return [value, weight], lambda: function(value, (columns,), weight)


def _cross_entropy(sizes: Mapping[str, float], made: Any) -> _Forward:
    torch = load_torch()
    rows, columns = int(sizes["rows"]), int(sizes["columns"])
    logits = made((rows, columns))
    labels = torch.arange(rows, device=logits.device) % columns
    return [logits], lambda: torch.nn.functional.cross_entropy(logits, labels)


def _attention(sizes: Mapping[str, float], made: Any) -> _Forward:
    """Causal, by the kernel that torch chooses."""
    torch = load_torch()
    shape = (1, *(int(sizes[name]) for name in ("heads", "tokens", "dim")))
    query, key, value = (made(shape) for _ in range(3))
    attention = torch.nn.functional.scaled_dot_product_attention
    return [query, key, value], lambda: attention(query, key, value, is_causal=True)


def _benchmark(
    make: Callable[[Mapping[str, float], Any], _Forward],
    backward: bool,
    sizes: Mapping[str, float],
    operands: Operands,
) -> Callable[[], Any]:
    torch = load_torch()

    def made(shape: tuple[int, ...]) -> Any:
        return operands.random(shape).requires_grad_()

    inputs, call = make(sizes, made)
    if not backward:
        return call
    output = call()
    gradient = torch.ones_like(output)

    def gradients() -> Any:
        return torch.autograd.grad(output, inputs, gradient, retain_graph=True)[0]

    return gradients


_MADE: dict[str, tuple[Callable[..., _Forward], bool]] = {
    "gelu": (partial(_activation, "gelu", 2), False),
    "gelu_backward": (partial(_activation, "gelu", 3), True),
    "silu": (partial(_activation, "silu", 2), False),
    "silu_backward": (partial(_activation, "silu", 3), True),
    "layer_norm_backward": (partial(_norm, "layer_norm"), True),
    "rms_norm": (partial(_norm, "rms_norm"), False),
    "rms_norm_backward": (partial(_norm, "rms_norm"), True),
    "cross_entropy": (_cross_entropy, False),
    "cross_entropy_backward": (_cross_entropy, True),
    "causal_attention": (_attention, False),
    "causal_attention_backward": (_attention, True),
}

#: Benchmarks by name.
TRAINING_KERNELS: dict[str, KernelFactory] = {
    name: partial(_benchmark, make, backward) for name, (make, backward) in _MADE.items()
}
