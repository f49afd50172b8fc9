"""Benchmarks of dense operators, and the registry of all benchmarks.

A benchmark is a factory: from sizes, precision, device and a random generator it makes the
operands and returns a callable that runs the operator once and returns its result. The same code
serves both devices; only host copies differ.

Operators are called as eager code calls them: each call allocates its result. On a GPU that is
free, for torch keeps freed blocks. On a CPU a session sets the C library to keep them, too (see
`keep_freed_memory`), so times hold no clearing of pages: they are those of processes
whose allocator keeps its memory. Where the C library has no such setting, large results come from
the system every time and clearing their pages is part of the time.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

from dse._torch import load_torch
from dse.calibration.microbench.operators._embedding import embedding_backward, embedding_forward
from dse.calibration.microbench.operators._fbgemm import fbgemm_backward, fbgemm_forward
from dse.calibration.microbench.operators._training import TRAINING_KERNELS
from dse.calibration.microbench.operators._values import Operands
from dse.errors import CalibrationError
from dse.machine import Precision

if TYPE_CHECKING:
    import numpy as np

#: Makes the operands of one point; returns the callable that runs the operator once.
KernelFactory = Callable[[Mapping[str, float], Operands], Callable[[], Any]]

#: Compute capability from which on tensor cores multiply values of eight bits.
_FP8_CAPABILITY = (8, 9)


def make_kernel(
    op: str,
    sizes: Mapping[str, float],
    precision: Precision | str,
    torch_device: str,
    rng: np.random.Generator,
) -> Callable[[], Any]:
    """Makes the operands of one point and returns the callable that runs the operator once.

    Args:
        op: Name of the operator.
        sizes: Its sizes by name.
        precision: Type of the values.
        torch_device: ``cpu``, ``cuda`` or ``cuda:0``.
        rng: Source of the operands.

    Raises:
        CalibrationError: The operator is unknown.
    """
    if op not in KERNELS:
        raise CalibrationError(f"unknown operator `{op}`; expected one of {', '.join(KERNELS)}")
    return KERNELS[op](sizes, Operands(Precision(precision), torch_device, rng))


def _size(sizes: Mapping[str, float], *names: str) -> tuple[int, ...]:
    return tuple(int(sizes[name]) for name in names)


def _gemm(sizes: Mapping[str, float], operands: Operands) -> Callable[[], Any]:
    """``C = A Bᵀ`` with B stored as the weight of a linear layer, n × k."""
    torch, precision = load_torch(), operands.precision
    if operands.on_gpu:
        torch.set_float32_matmul_precision("high" if precision is Precision.TF32 else "highest")
    elif precision is Precision.TF32:
        raise ValueError("tf32 is measured on CUDA devices only")
    m, n, k = _size(sizes, "m", "n", "k")
    if precision is Precision.FP8:
        return _scaled_gemm(m, n, k, replace(operands, precision=Precision.BF16))
    left = operands.random((m, k))
    right = operands.random((n, k)).t()
    return lambda: torch.mm(left, right)


def _scaled_gemm(m: int, n: int, k: int, operands: Operands) -> Callable[[], Any]:
    """The same of values in eight bits (E4M3), with a scale factor for each matrix.

    Raises:
        ValueError: The GPU has no such arithmetic; the point is left out, with this reason.
    """
    torch = load_torch()
    if operands.on_gpu:
        major, minor = torch.cuda.get_device_capability(operands.device)
        if (major, minor) < _FP8_CAPABILITY:
            raise ValueError(
                f"products in fp8 need compute capability "
                f"{'.'.join(map(str, _FP8_CAPABILITY))}; this GPU has {major}.{minor}"
            )
    eight_bits = torch.float8_e4m3fn
    left = operands.random((m, k)).to(eight_bits)
    right = operands.random((n, k)).to(eight_bits).t()
    scale = torch.ones((), device=operands.device)
    multiply = partial(torch._scaled_mm, scale_a=scale, scale_b=scale, out_dtype=torch.bfloat16)
    return lambda: multiply(left, right)


def _elementwise(sizes: Mapping[str, float], operands: Operands) -> Callable[[], Any]:
    """A multiplication by a number: half of the traffic is read, half is written."""
    torch = load_torch()
    count = max(1, int(sizes["traffic_bytes"]) // (2 * operands.precision.value_bytes))
    values = operands.random((count,))
    return lambda: torch.mul(values, 1.5)


def _concat(sizes: Mapping[str, float], operands: Operands) -> Callable[[], Any]:
    """Two matrices of half the columns, side by side; `rows` × `columns` is the result."""
    torch = load_torch()
    rows, columns = _size(sizes, "rows", "columns")
    left = operands.random((rows, columns // 2))
    right = operands.random((rows, columns - columns // 2))
    return lambda: torch.cat((left, right), dim=1)


def _layer_norm(sizes: Mapping[str, float], operands: Operands) -> Callable[[], Any]:
    """Layer normalisation of every row, with weight and bias."""
    torch = load_torch()
    rows, columns = _size(sizes, "rows", "columns")
    values = operands.random((rows, columns))
    weight, bias = (operands.random((columns,)) for _ in range(2))
    return lambda: torch.nn.functional.layer_norm(values, (columns,), weight, bias)


def _softmax(sizes: Mapping[str, float], operands: Operands) -> Callable[[], Any]:
    """Softmax of every row."""
    torch = load_torch()
    values = operands.random(_size(sizes, "rows", "columns"))
    return lambda: torch.softmax(values, dim=1)


def _interaction_dot(sizes: Mapping[str, float], operands: Operands) -> Callable[[], Any]:
    """Dot products of all pairs of a sample's vectors: ``x xᵀ``, then its lower triangle."""
    torch = load_torch()
    batch, vectors, dim = _size(sizes, "batch", "vectors", "dim")
    values = operands.random((batch, vectors, dim))
    row, column = torch.tril_indices(vectors, vectors, offset=-1, device=operands.device)

    def call() -> Any:
        products = torch.bmm(values, values.transpose(1, 2))
        return products[:, row, column]

    return call


def _optimizer_step(sizes: Mapping[str, float], operands: Operands) -> Callable[[], Any]:
    """One step of SGD, Adagrad or Adam (0, 1, 2 state values) on one tensor.

    The fused implementation where torch has one for the device, else the foreach one.
    """
    torch = load_torch()
    count, state_values = _size(sizes, "parameters", "state_values")
    optimizer = (torch.optim.SGD, torch.optim.Adagrad, torch.optim.Adam)[state_values]
    parameter = operands.random((count,)).requires_grad_()
    # Steps so small that values stay as they are however often it is called.
    try:
        chosen = optimizer([parameter], lr=1e-12, fused=True)
    except (RuntimeError, ValueError):
        chosen = optimizer([parameter], lr=1e-12, foreach=True)
    parameter.grad = operands.random((count,))

    def call() -> Any:
        chosen.step()
        return parameter

    return call


def _index_permute(sizes: Mapping[str, float], operands: Operands) -> Callable[[], Any]:
    """A gather of 8-byte integers by a random permutation; `precision` has no meaning."""
    torch = load_torch()
    count = int(sizes["values"])
    generator = torch.Generator(operands.device).manual_seed(int(operands.rng.integers(2**31)))
    order = torch.randperm(count, generator=generator, device=operands.device)
    values = torch.arange(count, device=operands.device)
    return lambda: torch.index_select(values, 0, order)


def _attention(sizes: Mapping[str, float], operands: Operands) -> Callable[[], Any]:
    """Scaled dot-product attention without mask, by the kernel that torch chooses."""
    torch = load_torch()
    batch, heads, queries, keys, dim = _size(sizes, "batch", "heads", "queries", "keys", "dim")
    query = operands.random((batch, heads, queries, dim))
    key, value = (operands.random((batch, heads, keys, dim)) for _ in "kv")
    return lambda: torch.nn.functional.scaled_dot_product_attention(query, key, value)


def _copy(source_on_host: bool, target_on_host: bool) -> KernelFactory:
    """A copy between pinned host memory and the device; on a CPU a copy in memory."""

    def factory(sizes: Mapping[str, float], operands: Operands) -> Callable[[], Any]:
        torch = load_torch()
        count = max(1, int(sizes["size_bytes"]) // 4)

        def buffer(on_host: bool) -> Any:
            device = "cpu" if on_host else operands.device
            return torch.ones(count, device=device, pin_memory=on_host and operands.on_gpu)

        source, target = buffer(source_on_host), buffer(target_on_host)
        return lambda: target.copy_(source, non_blocking=True)

    return factory


#: All benchmarks by the names of :data:`dse.calibration.microbench.OPERATORS`.
KERNELS: dict[str, KernelFactory] = {
    "gemm": _gemm,
    "embedding_forward": embedding_forward,
    "embedding_backward": embedding_backward,
    "fbgemm_forward": fbgemm_forward,
    "fbgemm_backward": fbgemm_backward,
    "elementwise": _elementwise,
    "concat": _concat,
    "layer_norm": _layer_norm,
    "softmax": _softmax,
    "interaction_dot": _interaction_dot,
    "optimizer_step": _optimizer_step,
    "index_permute": _index_permute,
    "attention": _attention,
    "memcpy_h2d": _copy(source_on_host=True, target_on_host=False),
    "memcpy_d2h": _copy(source_on_host=False, target_on_host=True),
    "memcpy_d2d": _copy(source_on_host=False, target_on_host=False),
    **TRAINING_KERNELS,
}
