"""Tasks of a training step and their dependencies, without durations.

One rank stands for all that do the same work: a pipeline stage has one representative, and a
collective counts with the time of its whole group. The structure depends on few numbers, so it is
made once for each of them and shared by all configurations that a search compares; only the
durations of the few kinds of tasks change. Each stage takes its passes in the order of
:mod:`_schedule`, and each pass consists of what :mod:`_structure` says.

Without pipeline stages, the passes of thousands of micro-batches repeat each other. Then a few
dozen of them stand for all: each of their tasks takes as long as the tasks that it stands for.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, replace
from enum import StrEnum
from functools import lru_cache
from typing import TYPE_CHECKING

from dse.workload.transformer.step._structure import Kind, Part, Role, Structure, pass_parts

if TYPE_CHECKING:
    from dse.workload.transformer.step._schedule import Pass

#: Micro-batches that stand for all of a step without pipeline stages. What is not repeated, such
#: as the first layer that is gathered, is then taken for as much longer as tasks are.
MOST_MICRO_BATCHES = 64

#: Tasks that are the same in all chunks of a stage.
_SAME_IN_ALL_CHUNKS = {Role.LAYER_FORWARD, Role.EMBEDDING_FORWARD, Role.EMBEDDING_BACKWARD}


class StreamName(StrEnum):
    """Serial resources of a rank."""

    COMPUTE = "compute"
    DATA = "data communication"
    FORWARD = "receive activations"
    BACKWARD = "receive gradients"


@dataclass(frozen=True, slots=True)
class StepTasks:
    """Tasks in an order in which none comes before those it waits for.

    Attributes:
        streams: Stage and name of each serial resource.
        kinds: Kinds of tasks.
        kind: Index of the kind of each task.
        stream: Index of the stream of each task.
        waits: What each task waits for, its predecessor on the stream included.
        stands_for: How many tasks of the step a task of each kind stands for.
    """

    streams: tuple[tuple[int, StreamName], ...]
    kinds: tuple[Kind, ...]
    kind: tuple[int, ...]
    stream: tuple[int, ...]
    waits: tuple[tuple[int, ...], ...]
    stands_for: tuple[float, ...]


@lru_cache(maxsize=32)
def make_tasks(structure: Structure) -> StepTasks:
    """Returns the tasks of a step with a given structure."""
    left_out = structure.micro_batches - MOST_MICRO_BATCHES
    if structure.pipeline > 1 or left_out <= 0:
        return _every_task(structure)
    tasks = _every_task(replace(structure, micro_batches=MOST_MICRO_BATCHES))
    fewer = _every_task(replace(structure, micro_batches=MOST_MICRO_BATCHES - 1))
    count, less = (Counter(one.kinds[kind] for kind in one.kind) for one in (tasks, fewer))
    stands_for = (1 + left_out * (count[kind] - less[kind]) / count[kind] for kind in tasks.kinds)
    return replace(tasks, stands_for=tuple(stands_for))


def _every_task(structure: Structure) -> StepTasks:
    builder = _Builder(own_engines=structure.own_engines)
    _passes(structure, builder)
    _after_passes(structure, builder)
    return builder.build()


class _Builder:
    def __init__(self, *, own_engines: bool) -> None:
        self._own_engines = own_engines
        self._streams: dict[tuple[int, StreamName], int] = {}
        self._kinds: dict[Kind, int] = {}
        self._kind: list[int] = []
        self._stream: list[int] = []
        self._waits: list[tuple[int, ...]] = []
        self._last: dict[int, int] = {}
        #: Tasks of passes by stage, of which each may hold a gathered layer.
        self.computed: dict[int, list[int]] = {}

    def add(
        self,
        role: Role,
        stage: int,
        after: tuple[int, ...] = (),
        *,
        chunk: int = 0,
        layer: int = 0,
        stream: StreamName = StreamName.COMPUTE,
    ) -> int:
        """Adds a task at the end of a stream and returns its index."""
        if not self._own_engines:
            stream = StreamName.COMPUTE
        task = len(self._kind)
        index = self._streams.setdefault((stage, stream), len(self._streams))
        kind = Kind(role, stage, chunk, layer)
        self._kind.append(self._kinds.setdefault(kind, len(self._kinds)))
        self._stream.append(index)
        waits = dict.fromkeys(after)
        if index in self._last:
            waits[self._last[index]] = None
        self._waits.append(tuple(waits))
        self._last[index] = task
        return task

    def last_tasks(self, stage: int) -> tuple[int, ...]:
        """The last task of every stream of a stage."""
        return tuple(
            self._last[index] for (owner, _), index in self._streams.items() if owner == stage
        )

    def build(self) -> StepTasks:
        """Packs all tasks."""
        return StepTasks(
            tuple(self._streams),
            tuple(self._kinds),
            tuple(self._kind),
            tuple(self._stream),
            tuple(self._waits),
            (1.0,) * len(self._kinds),
        )


def _passes(structure: Structure, builder: _Builder) -> None:
    stages = range(structure.pipeline)
    orders = [structure.order(stage) for stage in stages]
    position = [0] * structure.pipeline
    done: dict[tuple[int, bool, int, int], int] = {}
    progress = True
    while progress:
        progress = False
        for stage in stages:
            while position[stage] < len(orders[stage]):
                one = orders[stage][position[stage]]
                source = None if one.weights else _source(structure, stage, one)
                waits: tuple[int, ...] = ()
                if source is not None:
                    key = (source[0], one.backward, source[1], one.micro_batch)
                    if key not in done:
                        break
                    waits = (done[key],)
                    if structure.overlaps_receive:
                        stream = StreamName.BACKWARD if one.backward else StreamName.FORWARD
                        waits = (builder.add(Role.RECEIVE, stage, waits, stream=stream),)
                task = _add_pass(structure, builder, stage, one, waits)
                if not one.weights:
                    done[stage, one.backward, one.chunk, one.micro_batch] = task
                position[stage] += 1
                progress = True


def _source(structure: Structure, stage: int, one: Pass) -> tuple[int, int] | None:
    """Stage and chunk whose output a pass takes in, or None at the ends of the model."""
    last_stage, last_chunk = structure.pipeline - 1, structure.interleave - 1
    chunk = one.chunk
    if one.backward:
        if stage < last_stage:
            return stage + 1, chunk
        return (0, chunk + 1) if chunk < last_chunk else None
    if stage > 0:
        return stage - 1, chunk
    return (last_stage, chunk - 1) if chunk > 0 else None


def _add_pass(
    structure: Structure, builder: _Builder, stage: int, one: Pass, waits: tuple[int, ...]
) -> int:
    """Adds a pass, and returns the task that ends it."""
    parts = pass_parts(structure, stage, one)
    computed = builder.computed.setdefault(stage, [])
    ahead = 2 if structure.prefetches else 1

    def gathered(part: Part) -> tuple[int, ...]:
        """Gathers once the layer before the one at work is over: two are held at most."""
        if part.gather is None:
            return ()
        after = (computed[-ahead],) if len(computed) >= ahead else ()
        data = StreamName.DATA
        return (builder.add(part.gather, stage, after, layer=part.layer, stream=data),)

    task, ready = -1, gathered(parts[0])
    for part, following in zip(parts, (*parts[1:], None), strict=True):
        chunk = 0 if part.role in _SAME_IN_ALL_CHUNKS else one.chunk
        task = builder.add(part.role, stage, (*waits, *ready), chunk=chunk, layer=part.layer)
        waits = ()
        if part.role is Role.HEAD_BACKWARD and computed:
            # Both directions of the head count as one.
            computed[-1] = task
        else:
            computed.append(task)
        # The next layer is gathered before this one's gradient is reduced.
        ready = () if following is None else gathered(following)
        if part.reduce is not None:
            head = part.role in (Role.HEAD_BACKWARD, Role.HEAD_WEIGHT_GRADIENTS)
            chunk, data = int(head), StreamName.DATA
            builder.add(part.reduce, stage, (task,), chunk=chunk, layer=part.layer, stream=data)
    if len(parts) > 1 and not one.weights and _waits_to_send(structure, stage, one):
        task = builder.add(Role.SEND, stage)
    return task


def _waits_to_send(structure: Structure, stage: int, one: Pass) -> bool:
    """Whether a stage does nothing else until the output of a pass has arrived."""
    if structure.overlaps_receive or structure.pipeline == 1:
        return False
    end = (0, 0) if one.backward else (structure.pipeline - 1, structure.interleave - 1)
    return (stage, one.chunk) != end


def _after_passes(structure: Structure, builder: _Builder) -> None:
    stages = range(structure.pipeline)
    apart = structure.overlaps_reduce or structure.sharding.shards_gradients
    if structure.reduces and not apart:
        for stage in stages:
            builder.add(Role.REDUCE_ALL, stage, builder.last_tasks(stage), stream=StreamName.DATA)
    if structure.ties_ends:
        ends = (0, structure.pipeline - 1)
        both = tuple(task for stage in ends for task in builder.last_tasks(stage))
        for stage in ends:
            builder.add(Role.REDUCE_EMBEDDING, stage, both, stream=StreamName.DATA)
    # The norm of all gradients is known only when the last stage has its own.
    everything = tuple(task for stage in stages for task in builder.last_tasks(stage))
    for stage in stages:
        task = builder.add(Role.OPTIMIZER, stage, everything)
        if structure.gathers_updated:
            builder.add(Role.GATHER_UPDATED, stage, (task,), stream=StreamName.DATA)
