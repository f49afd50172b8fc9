"""Kernel times by the names and shapes of the public contract."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from dse.errors import ConfigError, UnknownNameError
from dse.hardware import Precision
from dse.kernels import (
    EmbeddingShape,
    elementwise_time_s,
    embedding_time_s,
    embedding_work,
    gemm_time_s,
    host_copy_time_s,
)
from dse.workloads import Uniform

if TYPE_CHECKING:
    from collections.abc import Mapping

    from numpy.typing import ArrayLike, NDArray

    from dse.hardware import DeviceSpec, HostLinkSpec

_SIZES: dict[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "gemm": (("m", "n", "k"), ("batch", "precision")),
    "elementwise": (("traffic_bytes",), ()),
    "memcpy_h2d": (("size_bytes",), ()),
    "embedding_forward": (("rows", "dim", "batch", "pooling"), ("value_bytes",)),
    "embedding_backward": (("rows", "dim", "batch", "pooling"), ("value_bytes",)),
}


def kernel_time_s(
    device: DeviceSpec, host_link: HostLinkSpec, op: str, shape: Mapping[str, ArrayLike]
) -> NDArray[np.float64]:
    """Returns the duration of an operator; see :meth:`dse.platforms.Platform.kernel_time`."""
    if op not in _SIZES:
        raise UnknownNameError(f"unknown operator `{op}`; expected one of {', '.join(_SIZES)}")
    required, optional = _SIZES[op]
    missing = [name for name in required if name not in shape]
    unknown = [name for name in shape if name not in required + optional]
    if missing or unknown:
        problem = f"lacks `{missing[0]}`" if missing else f"does not take `{unknown[0]}`"
        raise ConfigError(f"operator `{op}` {problem}; it takes {', '.join(required + optional)}")
    if op == "gemm":
        precision = Precision(str(shape.get("precision", Precision.FP16.value)))
        batch = shape.get("batch", 1)
        return gemm_time_s(device, shape["m"], shape["n"], shape["k"], precision, batch)
    if op == "elementwise":
        return elementwise_time_s(device, shape["traffic_bytes"])
    if op == "memcpy_h2d":
        return host_copy_time_s(host_link, shape["size_bytes"])
    return _embedding_time_s(device, op, shape)


def _embedding_time_s(
    device: DeviceSpec, op: str, shape: Mapping[str, ArrayLike]
) -> NDArray[np.float64]:
    names = ("rows", "dim", "batch", "pooling", "value_bytes")
    sizes = np.broadcast_arrays(*(np.asarray(shape.get(name, 4), np.float64) for name in names))
    memory, cache = np.zeros(sizes[0].shape), np.zeros(sizes[0].shape)
    for index in np.ndindex(sizes[0].shape):
        rows, dim, batch, pooling, value_bytes = (float(size[index]) for size in sizes)
        work = embedding_work(
            device,
            EmbeddingShape(
                rows=int(rows),
                dim=int(dim),
                value_bytes=int(value_bytes),
                bags=batch,
                lookups=batch * pooling,
                output_value_bytes=4,
                state_bytes_per_row=0.0,
            ),
            Uniform(),
        )
        forward = op == "embedding_forward"
        memory[index] = work.forward_memory_bytes if forward else work.backward_memory_bytes
        cache[index] = work.forward_cache_bytes if forward else work.backward_cache_bytes
    return embedding_time_s(device, memory, cache)
