"""Batches and results of modules: tensors and jagged tensors at any depth of plain containers."""

from __future__ import annotations

from dataclasses import fields, is_dataclass, replace
from typing import TYPE_CHECKING, Any

from dse._torch import load_torch

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator


def is_jagged(value: Any) -> bool:
    """Whether something is a `KeyedJaggedTensor`, or offers the same."""
    return hasattr(value, "to_dict") and hasattr(value, "stride") and hasattr(value, "keys")


def is_tensor(value: Any) -> bool:
    """Whether something is a tensor."""
    return hasattr(value, "untyped_storage")


def parts_of(value: Any) -> Iterable[Any]:
    """Returns what a container holds; nothing for anything else."""
    if isinstance(value, dict):
        return list(value.values())
    if isinstance(value, list | tuple):
        return value
    if is_dataclass(value):
        return [getattr(value, field.name) for field in fields(value)]
    return ()


def tensors_in(value: Any) -> Iterator[Any]:
    """Yields the tensors in a value, values of keyed and jagged tensors among them."""
    if is_tensor(value):
        yield value
    elif parts := parts_of(value):
        for part in parts:
            yield from tensors_in(part)
    elif hasattr(value, "values") and not isinstance(value, dict):
        yield from tensors_in(value.values())


def resized(batch: Any, samples: int, some: int, times: int, device: Any) -> Any:
    """Returns a batch of the first samples of another, so many times one behind the other.

    Args:
        batch: The batch.
        samples: Samples that it has; tensors of so many rows have one a sample.
        some: Samples to take.
        times: How often.
        device: Where the result is to be.
    """

    def of(value: Any) -> Any:
        if is_tensor(value):
            value = value.to(device)
            by_sample = value.dim() and value.shape[0] == samples
            return load_torch().cat([value[:some]] * times) if by_sample else value
        if is_jagged(value):
            return _resized_jagged(value.to(device), some, times)
        if isinstance(value, dict):
            return {name: of(part) for name, part in value.items()}
        if isinstance(value, tuple) and hasattr(value, "_fields"):
            return type(value)(*map(of, value))
        if isinstance(value, list | tuple):
            return type(value)(map(of, value))
        if is_dataclass(value) and not isinstance(value, type):
            own = {one.name: of(getattr(value, one.name)) for one in fields(value) if one.init}
            return replace(value, **own)
        return value

    return of(batch)


def _resized_jagged(value: Any, some: int, times: int) -> Any:
    parts = list(value.to_dict().values())
    lengths = [part.lengths()[:some] for part in parts]
    counts = [int(own.sum()) for own in lengths]

    def joined(of_parts: list[Any]) -> Any:
        return load_torch().cat([own for own in of_parts for _ in range(times)])

    weights = None
    if value.weights_or_none() is not None:
        weights = joined(
            [part.weights()[:count] for part, count in zip(parts, counts, strict=True)]
        )
    return type(value)(
        keys=list(value.keys()),
        values=joined([part.values()[:count] for part, count in zip(parts, counts, strict=True)]),
        lengths=joined(lengths),
        weights=weights,
    )
