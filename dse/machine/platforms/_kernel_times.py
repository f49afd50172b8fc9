"""Kernel times by the names and shapes of the public contract."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from dse._text.suggest import hint
from dse.errors import ConfigError, UnknownNameError
from dse.indices import Uniform, Zipf
from dse.machine import Precision
from dse.machine.kernels import (
    ATTENTION_OPTIONS,
    EXPERT_SIZES,
    FLASH_RATES,
    LOOKUP_LAUNCHES,
    STREAMING_OPERATORS,
    UPDATE_LAUNCHES,
    EmbeddingShape,
    Estimate,
    attention_estimate,
    embedding_time_s,
    embedding_work,
    experts_estimate,
    gemm_estimate,
    host_copy_estimate,
    streaming_estimate,
)

if TYPE_CHECKING:
    from collections.abc import Mapping

    from numpy.typing import ArrayLike, NDArray

    from dse.machine import DeviceSpec, HostLinkSpec

#: Operators with products, whose arithmetic may be chosen.
_WITH_PRECISION = ("interaction_dot", "cross_layer")

#: What is not a size: names, and switches that are 0 or 1.
_NAMES = ("precision", "implementation")
_SWITCHES = ("causal", "backward")

_EMBEDDING = (("rows", "dim", "batch", "pooling"), ("value_bytes", "alpha"))
_HOST_COPIES = ("memcpy_h2d", "memcpy_d2h")

#: Sizes that every operator must have, and those that it may have.
_SIZES: dict[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "gemm": (("m", "n", "k"), ("batch", *_NAMES)),
    "embedding_forward": _EMBEDDING,
    "embedding_backward": _EMBEDDING,
    **{
        op: (operator.sizes, ("precision",) if op in _WITH_PRECISION else ())
        for op, operator in STREAMING_OPERATORS.items()
    },
    **dict.fromkeys(_HOST_COPIES, (("size_bytes",), ())),
    "attention": (
        STREAMING_OPERATORS["attention"].sizes,
        ("kv_heads", *ATTENTION_OPTIONS, *_SWITCHES, *_NAMES),
    ),
    "experts": (EXPERT_SIZES, ("precision",)),
}

#: Values of sizes that were left out.
_EMBEDDING_DEFAULTS = {"value_bytes": 4.0, "alpha": 0.0}


def kernel_estimate(
    device: DeviceSpec, host_link: HostLinkSpec, op: str, shape: Mapping[str, ArrayLike]
) -> Estimate:
    """Returns an operator's duration; see :meth:`machine.platforms.Platform.kernel_estimate`."""
    _check_names(op, shape)
    words = (*_NAMES, *_SWITCHES)
    sizes = {name: _size(op, name, shape[name]) for name in shape if name not in words}
    precision = _precision(op, shape["precision"]) if "precision" in shape else None
    implementation = str(shape.get("implementation", ""))
    if implementation:
        _check_implementation(device, op, implementation)
    if op == "gemm":
        m, n, k, batch = sizes["m"], sizes["n"], sizes["k"], sizes.get("batch", 1)
        return gemm_estimate(
            device, m, n, k, precision or Precision.FP16, batch, implementation=implementation
        )
    if op == "attention":
        return attention_estimate(
            device,
            sizes,
            precision,
            implementation=implementation,
            causal=bool(shape.get("causal", False)),
            backward=bool(shape.get("backward", False)),
        )
    if op == "experts":
        return experts_estimate(device, sizes, precision or Precision.BF16)
    if op in STREAMING_OPERATORS:
        return streaming_estimate(device, op, sizes, precision)
    if op in _HOST_COPIES:
        return host_copy_estimate(device, host_link, op, sizes["size_bytes"])
    return _embedding_estimate(device, sizes, backward=op == "embedding_backward")


def _check_names(op: str, shape: Mapping[str, ArrayLike]) -> None:
    if op not in _SIZES:
        raise UnknownNameError(f"unknown operator `{op}`; {hint(op, _SIZES)}")
    required, optional = _SIZES[op]
    missing = [name for name in required if name not in shape]
    unknown = [name for name in shape if name not in required + optional]
    if missing or unknown:
        problem = f"lacks `{missing[0]}`" if missing else f"does not take `{unknown[0]}`"
        raise ConfigError(f"operator `{op}` {problem}; it takes {', '.join(required + optional)}")


def _check_implementation(device: DeviceSpec, op: str, implementation: str) -> None:
    known = [one.implementation for one in device.calibrations if one.op == op]
    known = [*dict.fromkeys(name for name in known if name)]
    known += FLASH_RATES if op == "attention" else ()
    if implementation not in known:
        raise UnknownNameError(
            f"no figures of `{implementation}` for `{op}` on {device.name}; "
            f"{hint(implementation, known)}"
        )


def _size(op: str, name: str, value: ArrayLike) -> NDArray[np.float64]:
    values = np.asarray(value, dtype=np.float64)
    wrong = values[~((values >= 0) & (values < np.inf))]
    if wrong.size:
        raise ConfigError(f"size `{name}` of `{op}` is {wrong.flat[0]:g}; it must be 0 or more")
    return values


def _precision(op: str, value: ArrayLike) -> Precision:
    name = str(value)
    known = [precision.value for precision in Precision]
    if name not in known:
        raise ConfigError(f"unknown precision `{name}` of `{op}`; {hint(name, known)}")
    return Precision(name)


def _embedding_estimate(
    device: DeviceSpec, sizes: Mapping[str, NDArray[np.float64]], *, backward: bool
) -> Estimate:
    names = (*_EMBEDDING[0], *_EMBEDDING[1])
    columns = np.broadcast_arrays(
        *(sizes.get(name, np.float64(_EMBEDDING_DEFAULTS.get(name, 0.0))) for name in names)
    )
    points = np.stack([column.ravel() for column in columns], axis=-1)
    # Hit rates are solved for point by point, so equal points are computed once.
    distinct, index = np.unique(points, axis=0, return_inverse=True)
    memory, cache, spread = np.empty((3, len(distinct)))
    for row, (rows, dim, batch, pooling, value_bytes, alpha) in enumerate(distinct.tolist()):
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
            Zipf(alpha) if alpha > 0 else Uniform(),
        )
        memory[row] = work.backward_memory_bytes if backward else work.forward_memory_bytes
        cache[row] = work.backward_cache_bytes if backward else work.forward_cache_bytes
        spread[row] = work.backward_spread if backward else work.forward_spread
    launches = UPDATE_LAUNCHES if backward else LOOKUP_LAUNCHES
    time_s = embedding_time_s(device, memory, cache, launches)
    shape, every = columns[0].shape, index.ravel()
    return Estimate(time_s[every].reshape(shape), spread[every].reshape(shape))
