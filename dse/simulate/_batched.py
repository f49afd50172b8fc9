"""Longest-path simulation of one graph under many sets of durations at once.

Within a layout only some durations vary between candidates. The graph is reduced once to what
depends on them (:mod:`dse.simulate._reduce`) and compiled to vector instructions
(:mod:`dse.simulate._program`), which evaluate the (max, +) recurrence
``end(v) = max(floor(v), max over u (end(u) + weight(u, v))) + duration(v)`` for a vector of
candidates at a time (Baccelli et al., *Synchronization and Linearity*, Wiley 1992, on event graphs
as linear systems over this algebra).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from dse.errors import SimulationError
from dse.simulate._program import compile_nodes
from dse.simulate._reduce import reduce_graph

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

    from dse.graph import ExecutionGraph
    from dse.simulate._program import Program

_DEFAULT_MAX_BYTES = 64 * 2**20

#: Bytes of the buffer at which throughput levels off: larger ones leave the cache, smaller ones
#: spend their time in calls.
_CACHE_BYTES = 2 * 2**20

#: Candidates that one pass takes at least, so that calls are worth their overhead.
_MIN_WIDTH = 512


class BatchedSimulator:
    """A compiled graph.

    Durations are expected to be finite and not negative, which is not checked: looking at every
    value would take as long as the simulation.

    Args:
        graph: The graph; durations of tasks that do not vary are taken from it.
        variable: Marks the tasks whose duration differs between candidates; shape `(tasks,)`, all
            by default.
        max_bytes: Bound on intermediate memory; candidates are processed in chunks to keep it (but
            one candidate at least).

    Raises:
        SimulationError: Some tasks wait for each other, or `variable` does not fit the graph.
    """

    def __init__(
        self,
        graph: ExecutionGraph,
        variable: NDArray[np.bool_] | None = None,
        *,
        max_bytes: int = _DEFAULT_MAX_BYTES,
    ) -> None:
        mask = np.ones(graph.task_count, dtype=bool) if variable is None else variable
        if mask.shape != (graph.task_count,) or mask.dtype != np.bool_:
            raise SimulationError(
                f"`variable` has shape {mask.shape} and type {mask.dtype}; expected "
                f"({graph.task_count},) and bool, one mark for each task"
            )
        self._row_count = int(np.count_nonzero(mask))
        self._max_bytes = max_bytes
        self._reduction = reduce_graph(graph, mask)
        self._program = compile_nodes(self._reduction.nodes, self._reduction.last_end.edges)
        self._full_program: Program | None = None
        self._spare: NDArray[np.float64] | None = None

    @property
    def variable_count(self) -> int:
        """Rows of durations that a call expects."""
        return self._row_count

    @property
    def node_count(self) -> int:
        """Nodes left after the reduction; the cost of a candidate is proportional to it."""
        return self._program.slot_count

    @property
    def instruction_count(self) -> int:
        """Vector instructions that evaluate the nodes; the cost of a call grows with it."""
        return len(self._program.instructions)

    def makespan_s(self, durations_s: NDArray[np.float64]) -> NDArray[np.float64]:
        """Returns the end of the last task of every candidate.

        Args:
            durations_s: Durations of the variable tasks in ascending order of task; shape
                `(variable tasks, candidates)`.

        Returns:
            Seconds; shape `(candidates,)`.

        Raises:
            SimulationError: The number of rows is not that of the variable tasks.
        """
        self._check(durations_s)
        last_end, program = self._reduction.last_end, self._program
        result = np.full(durations_s.shape[1], last_end.floor_s)
        for node, weight_s in last_end.edges.items():
            slot, shift_s = program.slot[node], program.potential_s[node] + weight_s
            for chunk, ends in self._chunks(program, durations_s):
                np.add(ends[slot], shift_s, out=result[chunk])
            if last_end.floor_s > -np.inf:
                np.maximum(result, last_end.floor_s, out=result)
        return result

    def end_s(self, durations_s: NDArray[np.float64]) -> NDArray[np.float64]:
        """Returns the end of every task of every candidate.

        Args:
            durations_s: Durations of the variable tasks in ascending order of task; shape
                `(variable tasks, candidates)`.

        Returns:
            Seconds; shape `(tasks, candidates)`.

        Raises:
            SimulationError: The number of rows is not that of the variable tasks.
        """
        self._check(durations_s)
        ends_of_tasks = self._reduction.task_ends
        if self._full_program is None:
            nodes = self._reduction.nodes
            self._full_program = compile_nodes(nodes, range(len(nodes)))
        program = self._full_program
        floor_s = np.array([[end.floor_s] for end in ends_of_tasks])
        result = np.empty((len(ends_of_tasks), durations_s.shape[1]))
        result[:] = floor_s.reshape(-1, 1)
        edges = [
            (task, program.slot[node], program.potential_s[node] + weight_s)
            for task, end in enumerate(ends_of_tasks)
            for node, weight_s in end.edges.items()
        ]
        if not edges:
            return result
        tasks = np.array([task for task, _, _ in edges])
        slots = np.array([slot for _, slot, _ in edges])
        shift_s = np.array([[shift] for _, _, shift in edges])
        for chunk, ends in self._chunks(program, durations_s):
            result[tasks, chunk] = np.maximum(ends[slots] + shift_s, floor_s[tasks])
        return result

    def _check(self, durations_s: NDArray[np.float64]) -> None:
        if durations_s.ndim != 2 or durations_s.shape[0] != self._row_count:
            raise SimulationError(
                f"durations of shape {durations_s.shape}; expected {self._row_count} rows, one "
                "for each variable task, and a column for each candidate"
            )

    def _chunks(
        self, program: Program, durations_s: NDArray[np.float64]
    ) -> Iterator[tuple[slice, NDArray[np.float64]]]:
        """Yields slices of the candidates with the buffer of their ends, valid until the next."""
        candidates = durations_s.shape[1]
        rows = program.slot_count + program.scratch_count
        width = max(_MIN_WIDTH, _CACHE_BYTES // (8 * rows))
        width = max(1, min(width, self._max_bytes // (8 * rows), candidates))
        # Taken, not shared: a second thread that comes here meanwhile makes its own.
        buffer, self._spare = self._spare, None
        if buffer is None or buffer.size < rows * width:
            buffer = np.empty(rows * width)
        block = buffer[: rows * width].reshape(rows, width)
        for first in range(0, candidates, width):
            chunk = slice(first, min(first + width, candidates))
            part = durations_s[:, chunk]
            if part.strides[1] != part.itemsize:
                part = np.ascontiguousarray(part)
            used = block[:, : part.shape[1]]
            ends, scratch = used[: program.slot_count], used[program.slot_count :]
            program.run(ends, part, scratch)
            yield chunk, ends
        self._spare = buffer
