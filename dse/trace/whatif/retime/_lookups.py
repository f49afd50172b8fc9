"""Fused lookups of fbgemm: the work of each, forward and backward.

The forward operator records the number of its tables, their weights, indices and offsets; the sum
of the tables' columns is only recorded by the gradient. So both are read together.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
import math
from typing import TYPE_CHECKING

from dse.trace import COMPUTING
from dse.trace.whatif.core import Selector, arguments_of, with_shapes
from dse.trace.whatif.retime._kernel_calls import (
    KernelCall,
    is_lookup_backward,
    is_lookup_forward,
    operator_name,
)

if TYPE_CHECKING:
    from collections.abc import Iterable

    from dse.trace import OperatorInputs
    from dse.trace.whatif.core import Shape, ShapeChange, StepEditor

_INTEGERS = ("int32", "int64")
_FLOATS = ("fp32", "fp16", "bf16", "uint8", "fp8")


@dataclass(frozen=True, slots=True)
class Lookup:
    """The work of one fused lookup.

    Attributes:
        tables: Tables, one for each feature.
        batch: Samples of one table: of all ranks where the tables are spread over ranks.
        indices: Rows that are read, all tables and samples together.
        total_dim: Columns of all tables together: the width of the pooled result.
        weights: Values of all tables together.
        value_bytes: Bytes of one value.
    """

    tables: int
    batch: int
    indices: int
    total_dim: int
    weights: int
    value_bytes: int

    @property
    def weight_bytes(self) -> int:
        """Bytes of the tables."""
        return self.weights * self.value_bytes

    def call(self, *, forward: bool) -> KernelCall:
        """Returns the call of the kernel model: all tables as one with their sum of rows."""
        dim = self.total_dim / max(self.tables, 1)
        bags = self.tables * self.batch
        sizes = {
            "rows": math.ceil(self.weights / dim) if dim else 0.0,
            "dim": max(round(dim), 1),
            "batch": bags,
            "pooling": self.indices / bags if bags else 0.0,
            "value_bytes": self.value_bytes,
        }
        op = "embedding_forward" if forward else "embedding_backward"
        return KernelCall(op, tuple((name, float(value)) for name, value in sizes.items()))


@dataclass(frozen=True, slots=True)
class LookupTasks:
    """One fused lookup of one rank, and the tasks that do it.

    Attributes:
        rank: The rank.
        name: The forward operator.
        lookup: Its work.
        forward: Kernels of the forward operator.
        backward: Kernels of its gradient and of the update of the tables.
    """

    rank: int
    name: str
    lookup: Lookup
    forward: tuple[int, ...]
    backward: tuple[int, ...]

    @property
    def tasks(self) -> tuple[int, ...]:
        """All of its kernels."""
        return (*self.forward, *self.backward)

    @property
    def is_sharded(self) -> bool:
        """Whether its tables are on this rank only; those of the dense operator are on every."""
        return "dense_embedding" not in self.name


def lookups_of(editor: StepEditor) -> tuple[LookupTasks, ...]:
    """Returns the fused lookups of a step, in order of rank and time.

    A lookup and its gradient are matched by their number of samples, then by the forward operator
    that the trace names, then the last first. Lookups without gradient are left out, because their
    width is not known.

    Args:
        editor: The captured step.
    """
    forward: dict[tuple[int, int], list[int]] = {}
    backward: dict[tuple[int, int], list[int]] = {}
    for task in editor.select(Selector(role=COMPUTING)):
        operator = operator_name(editor.stack_of(task))
        key = (editor.rank_of(task), editor.operator_of(task))
        if is_lookup_forward(operator):
            forward.setdefault(key, []).append(task)
        elif is_lookup_backward(operator):
            backward.setdefault(key, []).append(task)
    open_ = {key: tuple(tasks) for key, tasks in forward.items()}
    found: dict[tuple[int, int], LookupTasks] = {}
    for (rank, _), tasks in backward.items():
        gradient = _gradient(editor.inputs_of(tasks[0]))
        if gradient is None:
            continue
        fits = [
            key
            for key, others in open_.items()
            if key[0] == rank and _batch(editor.inputs_of(others[0])) == gradient[0]
        ]
        if not fits:
            continue
        same = [key for key in fits if editor.layer_of(open_[key][0]) == editor.layer_of(tasks[0])]
        chosen = (same or fits)[-1]
        others = open_.pop(chosen)
        lookup = read_lookup(editor.inputs_of(others[0]), gradient[1])
        if lookup is not None:
            name = operator_name(editor.stack_of(others[0]))
            found[chosen] = LookupTasks(rank, name, lookup, others, tuple(tasks))
    return tuple(
        sorted(found.values(), key=lambda one: (one.rank, editor.start_of(one.forward[0])))
    )


def read_lookup(inputs: OperatorInputs | None, total_dim: int) -> Lookup | None:
    """Returns the work of a fused lookup; None if its inputs cannot be read.

    The offsets of the tables' columns are 32-bit integers, one more than there are tables. Ahead
    of them are the 64-bit offsets of the tables' weights, in newer versions a list with the
    weights. Behind them come the tables' row offsets, as many, then the indices, and the bags'
    offsets, one more than there are bags.

    Args:
        inputs: Inputs of the forward operator.
        total_dim: Columns of all tables together, from the gradient.
    """
    arguments = arguments_of(inputs) if inputs is not None else ()
    for place, (before, columns) in enumerate(pairwise(arguments)):
        listed = len(before.shapes) > 1
        if not (listed or before.dtype == "int64") or columns.dtype != "int32":
            continue
        rest = [one for one in arguments[place + 2 :] if one.dtype in _INTEGERS and one.shapes]
        tables = columns.elements - 1
        if tables < 1 or len(rest) < 3 or rest[0].elements != columns.elements:
            continue
        bags = rest[2].elements - 1
        ahead = [one for one in arguments[: place + 1] if one.dtype in _FLOATS]
        values = max(ahead, key=lambda one: one.elements, default=None)
        if bags % tables or values is None or not values.elements:
            return None
        return Lookup(
            tables=tables,
            batch=bags // tables,
            indices=rest[1].elements,
            total_dim=total_dim,
            # A list also has placements and offsets, which are far smaller than the weights.
            weights=max(map(math.prod, values.shapes)),
            value_bytes=values.value_bytes,
        )
    return None


def rewritten(inputs: OperatorInputs, old: Lookup, new: Lookup) -> OperatorInputs:
    """Returns the inputs of an operator on the way to or from a lookup, for another lookup.

    Integers as long as the indices or bags are those of the lookup; so is what has a sample a row
    and the tables' columns side by side.

    Args:
        inputs: Inputs of the operator.
        old: The lookup that they were recorded of.
        new: The lookup as it shall be.
    """
    tensors = [one for one in arguments_of(inputs) if one.shapes]
    integers = all(one.dtype in _INTEGERS for one in tensors)
    vectors = _vectors(old, new) if integers else {}
    matrices = {(old.batch, old.total_dim): (new.batch, new.total_dim)}
    if integers:
        matrices[old.tables, old.batch] = (new.tables, new.batch)
    return with_shapes(inputs, _change(vectors, matrices))


def rewritten_lookup(inputs: OperatorInputs, old: Lookup, new: Lookup) -> OperatorInputs:
    """Returns the inputs of a forward lookup for other work, see :func:`rewritten`."""
    # Counts of tables come first: they are the smallest, and the larger figures win over them.
    vectors = {old.tables: new.tables, old.tables + 1: new.tables + 1, old.weights: new.weights}
    return with_shapes(inputs, _change({**vectors, **_vectors(old, new)}, {}))


class ChangedLookups:
    """Fused lookups with other work, and the operators that handle their indices and results.

    Args:
        pairs: Each lookup with its work after the change.
    """

    def __init__(self, pairs: Iterable[tuple[LookupTasks, Lookup]]) -> None:
        self.pairs = tuple(pairs)
        self._forward = {task: pair for pair in self.pairs for task in pair[0].forward}
        self._of_rank: dict[int, list[tuple[LookupTasks, Lookup]]] = {}
        for pair in self.pairs:
            self._of_rank.setdefault(pair[0].rank, []).append(pair)

    def is_forward(self, task: int) -> bool:
        """Returns whether a task does one of the lookups."""
        return task in self._forward

    def inputs_after(
        self, editor: StepEditor, task: int, inputs: OperatorInputs
    ) -> OperatorInputs:
        """Returns the inputs of a task after the change; the same object if they do not change."""
        if task in self._forward:
            group, new = self._forward[task]
            return rewritten_lookup(inputs, group.lookup, new)
        for group, new in self._of_rank.get(editor.rank_of(task), ()):
            changed = rewritten(inputs, group.lookup, new)
            if changed is not inputs:
                return changed
        return inputs


def _vectors(old: Lookup, new: Lookup) -> dict[int, int]:
    bags, new_bags = old.tables * old.batch, new.tables * new.batch
    return {bags: new_bags, bags + 1: new_bags + 1, old.indices: new.indices}


def _change(
    vectors: dict[int, int], matrices: dict[tuple[int, int], tuple[int, int]]
) -> ShapeChange:
    def change(shape: Shape) -> Shape:
        if len(shape) == 1:
            return (vectors.get(shape[0], shape[0]),)
        return matrices.get((shape[0], shape[1]), shape) if len(shape) == 2 else shape

    return change


def _batch(inputs: OperatorInputs | None) -> int:
    lookup = read_lookup(inputs, 1)
    return -1 if lookup is None else lookup.batch


def _gradient(inputs: OperatorInputs | None) -> tuple[int, int] | None:
    """Returns samples and columns of the gradient of the pooled result."""
    arguments = arguments_of(inputs) if inputs is not None else ()
    shapes = [one.shape for one in arguments if len(one.shape) == 2 and one.elements]
    return (shapes[0][0], shapes[0][1]) if shapes else None
