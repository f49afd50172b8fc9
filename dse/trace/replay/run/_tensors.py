"""Tensors from outside the range: parameters, inputs, and results of skipped operators."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np

from dse.trace.replay.plan import ConstraintKind, InputConstraint, mapped_device

if TYPE_CHECKING:
    from dse.indices import IndexDistribution
    from dse.trace.replay.plan import ReplayPlan
    from dse.trace.replay.read import TensorRef
    from dse.trace.replay.run._batch import BatchScaler
    from dse.trace.replay.run._memory import MemoryBudget

#: Normal values of this spread keep sums of a thousand products below one.
_SPREAD = 0.02
#: Values that are drawn of a tensor; larger ones repeat them, for no operator takes another time
#: with other numbers, and copies take a tenth of the time.
_BLOCK = 2**22


class TensorFactory:
    """Makes and fills memory.

    Args:
        torch: The torch module.
        device: `cpu` or `cuda`.
        indices: Distribution of indices.
        seed: Seed of all values.
        budget: Limit on memory.
    """

    def __init__(
        self,
        torch: Any,
        device: str,
        indices: IndexDistribution,
        seed: int,
        budget: MemoryBudget,
    ) -> None:
        self._torch = torch
        self._device = device
        self._indices = indices
        self._random = np.random.default_rng(seed)
        self._budget = budget

    def make_all(
        self, plan: ReplayPlan, constraints: dict[int, InputConstraint], scaler: BatchScaler
    ) -> list[Any]:
        """Returns the slots of a plan, those from outside filled, the others None.

        Raises:
            ConfigError: The tensors do not fit.
        """
        slots: list[Any] = [None] * len(plan.slots)
        for memory in plan.memories:
            outside = [slot for slot in memory.slots if plan.slots[slot].outside]
            if memory.outside and outside:
                refs = [scaler.scaled(slot, plan.slots[slot].ref) for slot in outside]
                constraint = scaler.constraint(constraints.get(memory.number))
                made = self._make(memory.device, refs, constraint)
                for slot, tensor in zip(outside, made, strict=True):
                    slots[slot] = tensor
        return slots

    def alone(self, ref: TensorRef) -> Any:
        """Returns one tensor on separate memory.

        Raises:
            ConfigError: It does not fit.
        """
        return self._make(ref.device, [ref], None)[0]

    def like(self, tensor: Any, constraint: InputConstraint, what: str) -> Any:
        """Returns a tensor of the shape and type of another, with constrained values.

        Args:
            tensor: The other tensor.
            constraint: The constraint.
            what: The tensor, for messages.

        Raises:
            ConfigError: It does not fit.
        """
        self._budget.take(int(tensor.untyped_storage().nbytes()), what)
        made = self._torch.empty_like(tensor).contiguous()
        self.fill(made.view(-1), constraint, tensor.numel())
        return made

    def _make(
        self, device: str, refs: list[TensorRef], constraint: InputConstraint | None
    ) -> list[Any]:
        """Returns tensors on one block of memory."""
        first = refs[0]
        size_bytes = max(ref.end_bytes for ref in refs)
        what = f"tensor {first.tensor} of shape {list(first.shape)} ({first.dtype})"
        self._budget.take(size_bytes, what)
        dtype = _typed(self._torch, first)
        width = self._torch.empty(0, dtype=dtype).element_size()
        base = self._torch.empty(
            math.ceil(size_bytes / width), dtype=dtype, device=mapped_device(device, self._device)
        )
        self.fill(base, constraint, ends=first.elements)
        return [tensor_on(self._torch, base, ref) for ref in refs]

    def fill(self, base: Any, constraint: InputConstraint | None, ends: int) -> None:
        """Fills a flat tensor.

        Args:
            base: The tensor; shape `(elements,)`.
            constraint: Constraint on its values.
            ends: Elements of the constrained tensor, for ascending offsets.
        """
        torch = self._torch
        count = base.numel()
        if not count:
            return
        if base.dtype == torch.bool:
            self._mark(base, constraint)
        elif base.dtype.is_floating_point or base.dtype.is_complex:
            self._fill_numbers(base, constraint)
        elif constraint is not None and constraint.kind is ConstraintKind.RANGE:
            # Popular rows lie apart, as hashing leaves them.
            drawn = self._indices.sample(self._random, constraint.limit, count)
            base.copy_(torch.from_numpy(drawn).to(base.dtype))
        elif constraint is not None and constraint.kind is ConstraintKind.VALUES:
            exact = np.resize(np.array(constraint.values, dtype=np.int64), count)
            base.copy_(torch.from_numpy(exact).to(base.dtype))
        elif constraint is not None and constraint.kind is ConstraintKind.ASCENDING:
            parts = max(ends - 1 if constraint.whole else ends, 1)
            steps = np.arange(count, dtype=np.int64) * constraint.limit // parts
            base.copy_(torch.from_numpy(np.minimum(steps, constraint.limit)).to(base.dtype))
        else:
            # Lengths, counts and steps: ones neither divide by zero nor reach far.
            base.fill_(1)

    def _fill_numbers(self, base: Any, constraint: InputConstraint | None) -> None:
        positive = constraint is not None and constraint.kind is ConstraintKind.POSITIVE
        if base.numel() == 1:
            base.fill_(1)
            return
        generator = self._torch.Generator(device=base.device)
        generator.manual_seed(int(self._random.integers(2**31)))
        drawn = base[:_BLOCK]
        try:
            drawn.normal_(0.0, _SPREAD, generator=generator)
        except (RuntimeError, NotImplementedError):
            drawn.fill_(0)  # types of 8 bits have no random numbers
        if positive:
            drawn.abs_()
        for start in range(_BLOCK, base.numel(), _BLOCK):
            part = base[start : start + _BLOCK]
            part.copy_(drawn[: part.numel()])

    def _mark(self, base: Any, constraint: InputConstraint | None) -> None:
        count = base.numel()
        marks = count // 2
        if constraint is not None and constraint.kind is ConstraintKind.MARKS:
            marks = min(constraint.limit, count)
        base.fill_(False)
        if marks:
            places = np.arange(marks, dtype=np.int64) * count // marks
            base[self._torch.from_numpy(places).to(base.device)] = True


def tensor_on(torch: Any, base: Any, ref: TensorRef) -> Any:
    """Returns a tensor as recorded on the memory of another one."""
    dtype = _typed(torch, ref)
    if not ref.elements:
        return torch.empty(ref.shape, dtype=dtype, device=base.device)
    made = torch.empty(0, dtype=dtype, device=base.device)
    return made.set_(base.untyped_storage(), ref.offset, ref.shape, ref.known_strides)


def _typed(torch: Any, ref: TensorRef) -> Any:
    return getattr(torch, ref.dtype) if ref.dtype else torch.float32
