"""Two runs of a dense part, on some samples and on twice as many, as operators of any number."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from dse.model._common import OperatorKind
from dse.model.dlrm import TracedDense, TracedOperator

if TYPE_CHECKING:
    from collections.abc import Iterable

    from dse.model.dlrm import Amount
    from dse.model.torchrec._recorder import Extent, Record, Recorder

#: Highest power of the number of samples in a size.
_POWERS = 2

#: Kernels of the backward pass of attention.
_ATTENTION_BACKWARD_LAUNCHES = 3


def traced_dense(
    once: Recorder, twice: Recorder, samples: int
) -> tuple[TracedDense, tuple[str, ...]]:
    """Returns the operators of two runs, and the names of those whose arithmetic is not known.

    Args:
        once: A run with some samples.
        twice: A run with the same samples twice.
        samples: Samples of the first run.

    Raises:
        ValueError: The runs did not compute the same, or a size follows no power of the samples.
    """
    names: Counter[str] = Counter()
    phases: list[list[TracedOperator]] = []
    for shorter, longer in zip(once.phases, twice.phases, strict=True):
        if [one.name for one in shorter] != [one.name for one in longer]:
            raise ValueError("it computes other operators for twice the samples")
        operators: list[TracedOperator] = []
        for first, second in zip(shorter, longer, strict=True):
            operator = _operator(first, second, samples)
            if operators and operator.kind is operators[-1].kind is OperatorKind.ELEMENTWISE:
                operators[-1] = _joined(operators[-1], operator)
            else:
                operators.append(operator)
        phases.append([_numbered(one, names) for one in operators])
    last = next((phase for phase in reversed(phases[2:]) if phase), None)
    if last and once.parameters:
        # Without a gradient in this batch; they are reduced and updated all the same.
        last[-1] = replace(last[-1], parameters=last[-1].parameters + once.parameters)
    before, forward, backward, after = map(tuple, phases)
    kept = _values(once.kept, twice.kept, samples)
    dense = TracedDense(before, forward, backward, after, kept, once.outputs)
    return dense, tuple(sorted(once.unknown))


def _operator(first: Record, second: Record, samples: int) -> TracedOperator:
    backward = first.sizes.get("backward")
    if first.kind is OperatorKind.ELEMENTWISE:
        sizes = {"values": _values(first.tensors, second.tensors, samples)}
    else:
        sizes = {
            name: _growth(size, second.sizes[name], samples) for name, size in first.sizes.items()
        }
    launches = _ATTENTION_BACKWARD_LAUNCHES if backward else 1
    return TracedOperator(first.name, first.kind, tuple(sizes.items()), launches, first.parameters)


def _joined(first: TracedOperator, second: TracedOperator) -> TracedOperator:
    """Streaming kernels one behind the other."""
    ((_, values),), ((_, more),) = first.sizes, second.sizes
    return replace(
        first,
        sizes=(("values", _sum((values, more))),),
        launches=first.launches + second.launches,
        parameters=first.parameters + second.parameters,
    )


def _numbered(operator: TracedOperator, names: Counter[str]) -> TracedOperator:
    """The second of a name gets a number."""
    names[operator.name] += 1
    number = names[operator.name]
    if number == 1:
        return operator
    stem = operator.name.removesuffix(".backward")
    end = operator.name[len(stem) :]
    return replace(operator, name=f"{stem}.{number}{end}")


def _values(first: Iterable[Extent], second: Iterable[Extent], samples: int) -> Amount:
    """Values of tensors: products of their dimensions, added up."""
    amounts: list[Amount] = [(0.0,)]
    for (dims, weight), (more, _) in zip(first, second, strict=True):
        volume = np.array([weight])
        for size, larger in zip(dims, more, strict=True):
            volume = np.convolve(volume, _growth(size, larger, samples))
        amounts.append(_trimmed(volume.tolist()))
    return _sum(amounts)


def _growth(size: int, larger: int, samples: int) -> Amount:
    """The polynomial of a size that was measured with some samples and with twice as many."""
    for power in range(_POWERS + 1):
        if larger == 2**power * size:
            return (*(0.0,) * power, size / samples**power)
    per_sample = (larger - size) / samples
    fixed = 2 * size - larger
    if fixed < 0 or per_sample < 0:
        raise ValueError(f"a size of {size} became {larger} with twice the samples")
    return float(fixed), per_sample


def _sum(amounts: Iterable[Amount]) -> Amount:
    total = np.zeros(_POWERS + 1)
    for amount in amounts:
        total[: len(amount)] += amount
    return _trimmed(total.tolist())


def _trimmed(amount: list[float]) -> Amount:
    """Leaves powers without a share out."""
    while len(amount) > 1 and amount[-1] == 0:
        amount = amount[:-1]
    if len(amount) > _POWERS + 1:
        raise ValueError("a tensor grows with more than the square of the samples")
    return tuple(amount)
