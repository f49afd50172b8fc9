"""Scaling of the batch."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
import math
from typing import TYPE_CHECKING, Any

from dse.errors import ConfigError
from dse.trace.replay.plan import (
    ConstraintKind,
    InputConstraint,
    TensorSlot,
    lookup_memories,
    offset_memories,
    result_slots,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from dse.trace.replay.plan import PlannedCall, ReplayPlan
    from dse.trace.replay.read import TensorRef

#: Operators whose first argument is a batch, with the place of that argument.
_BATCHED = {
    "aten::linear": 0,
    "aten::addmm": 1,
    "aten::mm": 0,
    "aten::matmul": 0,
    "aten::bmm": 0,
    "aten::conv1d": 0,
    "aten::conv2d": 0,
    "aten::conv3d": 0,
    "aten::convolution": 0,
    "aten::cudnn_convolution": 0,
    "aten::batch_norm": 0,
    "aten::_batch_norm_impl_index": 0,
    "aten::layer_norm": 0,
    "aten::native_layer_norm": 0,
}
#: Places of arguments that never have a batch, whatever their size.
_WEIGHTS = {
    "aten::linear": (1, 2),
    "aten::addmm": (0, 2),
    "aten::conv1d": (1, 2),
    "aten::conv2d": (1, 2),
    "aten::conv3d": (1, 2),
    "aten::convolution": (1, 2),
    "aten::convolution_backward": (2,),
    "aten::batch_norm": (1, 2, 3, 4),
    "aten::_batch_norm_impl_index": (1, 2, 3, 4),
    "aten::cudnn_batch_norm": (1, 2, 3, 4),
    "aten::native_batch_norm": (1, 2, 3, 4),
    "aten::layer_norm": (2, 3),
    "aten::native_layer_norm": (2, 3),
    "aten::embedding": (0,),
    "aten::embedding_bag": (0,),
    "aten::_embedding_bag": (0,),
}
#: Operators with a list of sizes, and the place of the list.
_SHAPED = {
    "aten::view": 1,
    "aten::_unsafe_view": 1,
    "aten::reshape": 1,
    "aten::_reshape_alias": 1,
}
_LEADING = {
    "aten::empty": 0,
    "aten::zeros": 0,
    "aten::ones": 0,
    "aten::full": 0,
    "aten::randn": 0,
    "aten::rand": 0,
    "aten::new_empty": 1,
    "aten::new_zeros": 1,
    "aten::new_ones": 1,
    "aten::new_full": 1,
    "aten::select_backward": 1,
    "aten::slice_backward": 1,
    "aten::expand": 1,
    "aten::broadcast_to": 1,
    "aten::resize_": 1,
}
#: Operators that take a part of a dimension, and the place of the dimension.
_CUT = {"aten::narrow": 1, "aten::slice": 1, "aten::split_with_sizes": 2}


def find_batch(plan: ReplayPlan) -> int | None:
    """Returns the samples of a call: the leading size that layers see most, or None."""
    seen: Counter[int] = Counter()
    for call in plan.calls:
        place = _BATCHED.get(call.name)
        if place is None or place >= len(call.positional):
            continue
        value = call.positional[place]
        if isinstance(value, TensorSlot):
            shape = plan.slots[value.number].ref.shape
            if len(shape) > 1 and shape[0] > 1:
                seen[shape[0]] += 1
    # The first of the most frequent: forward comes before backward.
    return max(seen, key=lambda size: seen[size]) if seen else None


class BatchScaler:
    """Scales the batch in tensors from outside and in sizes among arguments.

    Args:
        plan: The plan.
        factor: On the batch; 1 leaves everything as recorded.
        batch: Recorded batch; found in the plan by default.

    Raises:
        ConfigError: No batch was given or found, no tensor has the given one, or less than one
            sample would be left.
    """

    def __init__(self, plan: ReplayPlan, factor: float, batch: int | None = None) -> None:
        self._plan = plan
        self.before = self.after = 0
        self._fixed: set[int] = set()
        self._lookups: set[int] = set()
        self._offsets: dict[int, bool] = {}
        if factor == 1:
            return
        found = find_batch(plan) if batch is None else batch
        if found is None:
            raise ConfigError(
                "--scale-batch: no layer in the range shows the batch; give it as --batch-size"
            )
        shapes = [slot.ref.shape for slot in plan.slots]
        if batch is not None and not any(batch in shape for shape in shapes):
            raise ConfigError(f"--batch-size {batch}: no tensor in the range has this size")
        self.before, self.after = found, round(found * factor)
        if self.after < 1:
            raise ConfigError(
                f"--scale-batch {factor:g}: of {found} samples none would be left; use at least "
                f"{1 / found:.2g}"
            )
        self._lookups = lookup_memories(plan)
        self._offsets = offset_memories(plan)
        for call in plan.calls:
            for place in _WEIGHTS.get(call.name, ()):
                value = call.positional[place] if place < len(call.positional) else None
                if isinstance(value, TensorSlot):
                    self._fixed.add(plan.slots[value.number].memory)

    @property
    def active(self) -> bool:
        """Whether anything is scaled."""
        return self.before != self.after

    def scaled(self, slot: int, ref: TensorRef) -> TensorRef:
        """Returns a tensor with its batch scaled.

        That is the outer dimension in memory if it has the size of the batch, and the number of
        lookups, or of bags, in a flat list of them or of their offsets.
        """
        if not self.active or not ref.shape:
            return ref
        memory = self._plan.slots[slot].memory
        if memory in self._fixed:
            return ref
        if len(ref.shape) == 1 and memory in self._lookups:
            return replace(ref, shape=(self._many(ref.shape[0]),))
        if len(ref.shape) == 1 and memory in self._offsets:
            end = int(self._offsets[memory])
            return replace(ref, shape=(self._many(ref.shape[0] - end) + end,))
        outer = max(range(len(ref.shape)), key=lambda at: (ref.known_strides[at], -at))
        if ref.shape[outer] != self.before:
            return ref
        shape = (*ref.shape[:outer], self.after, *ref.shape[outer + 1 :])
        return replace(ref, shape=shape)

    def constraint(self, constraint: InputConstraint | None) -> InputConstraint | None:
        """Returns a constraint on values after the batch is scaled."""
        if not self.active or constraint is None:
            return constraint
        if constraint.kind is ConstraintKind.RANGE:
            rows = (
                min(self.before, self.after)
                if constraint.limit == self.before
                else constraint.limit
            )
            return replace(constraint, limit=rows)
        if constraint.kind is ConstraintKind.ASCENDING or constraint.limit % self.before == 0:
            return replace(constraint, limit=self._many(constraint.limit))
        return constraint

    def arguments(self, call: PlannedCall, values: Sequence[Any]) -> tuple[Any, ...]:
        """Returns the arguments of a call with sizes that go with its tensors.

        Args:
            call: The call.
            values: Its positional arguments, tensors in place of slots.
        """
        found = list(values)
        if not self.active:
            return tuple(found)
        place = _LEADING.get(call.name)
        if place is not None and place < len(found):
            found[place] = self._leading(found[place])
        place = _SHAPED.get(call.name)
        if place is not None and place < len(found):
            before = self._plan.slots[call.takes[0]].ref.elements
            found[place] = _refit(found[place], before, int(found[0].numel()))
        place = _CUT.get(call.name)
        if place is not None:
            dimension = found[place] if place < len(found) else 0
            before = self._plan.slots[call.takes[0]].ref.shape[dimension]
            if found[0].shape[dimension] != before:
                parts = [
                    value if at == place else self._one(value) for at, value in enumerate(found)
                ]
                found[1:] = parts[1:]
        if call.name == "aten::arange":
            memories = [self._plan.slots[slot].memory for slot in result_slots(call.results)]
            self._count_on(found, int(any(self._offsets.get(memory) for memory in memories)))
        return tuple(found)

    def _many(self, count: int) -> int:
        """Returns how many of something that samples have there are, such as lookups."""
        return round(count * self.after / self.before)

    def _leading(self, sizes: Any) -> Any:
        if isinstance(sizes, list) and sizes and sizes[0] == self.before:
            return [self.after, *sizes[1:]]
        return sizes

    def _one(self, value: Any) -> Any:
        if isinstance(value, list):
            return [self._one(one) for one in value]
        return self.after if type(value) is int and value == self.before else value

    def _count_on(self, values: list[Any], more: int) -> None:
        """Lets `arange` give as many numbers as there are samples, if it did.

        `EmbeddingBag` makes the offsets of bags of equal length so.

        Args:
            values: Its arguments, which are changed.
            more: Numbers beyond those of the samples: 1 for the end of the last one.
        """
        given = next((at for at, one in enumerate(values) if type(one) is not int), len(values))
        # One number is the end; two are start and end; the step is the third.
        end = min(given, 2) - 1
        start = values[0] if end > 0 else 0
        step = values[2] if given > 2 else 1
        if given and step and len(range(start, values[end], step)) == self.before + more:
            values[end] = start + (self.after + more) * step


def _refit(sizes: Any, before: int, now: int) -> Any:
    """Returns sizes for a tensor that has another number of elements than when recorded."""
    if not isinstance(sizes, list) or not sizes or -1 in sizes or math.prod(sizes) == now:
        return sizes
    for at, size in enumerate(sizes):
        scaled = size * now
        if before and scaled % before == 0 and math.prod(sizes) == before:
            return [*sizes[:at], scaled // before, *sizes[at + 1 :]]
    return sizes
