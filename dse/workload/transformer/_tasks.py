"""Tasks of a training step and their dependencies, without durations.

One rank stands for all that do the same work: a pipeline stage has one representative, and a
collective counts with the time of its whole group. The structure depends on few numbers, so it is
made once for each of them and shared by all configurations that a search compares; only the
durations of the few kinds of tasks change.

* **Pipeline** (also of one stage): a task for each chunk, micro-batch and direction, in the order
  of :mod:`_schedule`. The last backward pass of a chunk is taken apart by layer
  where gradients are reduced during it.
* **Sharded**: each layer's parameters are gathered one layer ahead in both directions, and its
  gradient is reduced and scattered during the next layer's backward pass, for every micro-batch
  (FSDP: Zhao et al., arXiv 2304.11277, § 3.3).
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from functools import lru_cache
from typing import NamedTuple

from dse.workload.transformer._schedule import stage_order
from dse.workload.transformer._types import DataSharding


class Role(StrEnum):
    """What a task does; also its name in time lines."""

    FORWARD = "forward"
    BACKWARD = "backward"
    HEAD_BACKWARD = "head backward"
    LAYER_BACKWARD = "layer backward"
    EMBEDDING_BACKWARD = "embedding backward"
    RECEIVE = "receive"
    REDUCE_LAYER = "reduce layer gradients"
    REDUCE_ENDS = "reduce other gradients"
    REDUCE_ALL = "reduce gradients"
    REDUCE_EMBEDDING = "reduce shared embedding"
    OPTIMIZER = "optimizer"
    GATHER_UPDATED = "gather updated parameters"
    GATHER_ROOT = "gather embedding"
    EMBEDDING_FORWARD = "embedding forward"
    GATHER_LAYER = "gather layer"
    LAYER_FORWARD = "layer forward"
    HEAD = "head"

    @property
    def is_transfer(self) -> bool:
        """Whether it only moves data, next to the compute stream."""
        return self in _TRANSFERS


_TRANSFERS = {
    Role.RECEIVE,
    Role.REDUCE_LAYER,
    Role.REDUCE_ENDS,
    Role.REDUCE_ALL,
    Role.REDUCE_EMBEDDING,
    Role.GATHER_UPDATED,
    Role.GATHER_ROOT,
    Role.GATHER_LAYER,
}


class StreamName(StrEnum):
    """Serial resources of a rank."""

    COMPUTE = "compute"
    DATA = "data communication"
    FORWARD = "receive activations"
    BACKWARD = "receive gradients"


class Kind(NamedTuple):
    """Tasks of one kind take equally long.

    Attributes:
        role: What it does.
        stage: On which pipeline stage.
        chunk: In which of its chunks of layers.
        layer: Of tasks of one layer: its kind.
    """

    role: Role
    stage: int
    chunk: int = 0
    layer: int = 0


@dataclass(frozen=True, slots=True)
class Structure:
    """What the structure of a step depends on.

    Attributes:
        pipeline: Stages.
        interleave: Chunks of a stage.
        micro_batches: Passes of a chunk.
        layers: Layers of each chunk, in the order of the model.
        kinds: Kind of each of these layers.
        reduces: Whether gradients are summed over replicas.
        overlaps_reduce: Whether that starts before the backward pass has ended.
        gathers_updated: Whether updated parameters are gathered after the optimizer.
        ties_ends: Whether first and last stage share the embedding.
        overlaps_receive: Whether stages receive while they compute.
        sharding: What replicas keep only a part of.
        prefetches: Whether sharded parameters are gathered one layer ahead.
    """

    pipeline: int
    interleave: int
    micro_batches: int
    layers: tuple[int, ...]
    kinds: tuple[int, ...]
    reduces: bool
    overlaps_reduce: bool
    gathers_updated: bool
    ties_ends: bool
    overlaps_receive: bool
    sharding: DataSharding
    prefetches: bool

    def chunk_kinds(self, stage: int, chunk: int) -> tuple[int, ...]:
        """Returns the kind of each layer of a chunk of a stage."""
        index = chunk * self.pipeline + stage
        first = sum(self.layers[:index])
        return self.kinds[first : first + self.layers[index]]

    @property
    def by_layer(self) -> bool:
        """Whether layers are tasks of their own, because replicas share their parameters."""
        return self.sharding.shards_gradients and self.reduces


@dataclass(frozen=True, slots=True)
class StepTasks:
    """Tasks in an order in which none comes before those it waits for.

    Attributes:
        streams: Stage and name of each serial resource.
        kinds: Kinds of tasks.
        kind: Index of the kind of each task.
        stream: Index of the stream of each task.
        waits: What each task waits for, its predecessor on the stream included.
    """

    streams: tuple[tuple[int, StreamName], ...]
    kinds: tuple[Kind, ...]
    kind: tuple[int, ...]
    stream: tuple[int, ...]
    waits: tuple[tuple[int, ...], ...]


@lru_cache(maxsize=32)
def make_tasks(structure: Structure) -> StepTasks:
    """Returns the tasks of a step with a given structure."""
    builder = _Builder()
    if structure.by_layer:
        _sharded(structure, builder)
    else:
        _pipeline(structure, builder)
    return builder.build()


class _Builder:
    def __init__(self) -> None:
        self._streams: dict[tuple[int, StreamName], int] = {}
        self._kinds: dict[Kind, int] = {}
        self._kind: list[int] = []
        self._stream: list[int] = []
        self._waits: list[tuple[int, ...]] = []
        self._last: dict[int, int] = {}

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
        )


def _pipeline(structure: Structure, builder: _Builder) -> None:
    stages = range(structure.pipeline)
    orders = [
        stage_order(structure.pipeline, structure.interleave, structure.micro_batches, stage)
        for stage in stages
    ]
    position = [0] * structure.pipeline
    done: dict[tuple[int, bool, int, int], int] = {}
    progress = True
    while progress:
        progress = False
        for stage in stages:
            while position[stage] < len(orders[stage]):
                backward, chunk, micro_batch = orders[stage][position[stage]]
                source = _source(structure, stage, backward, chunk)
                waits: tuple[int, ...] = ()
                if source is not None:
                    key = (source[0], backward, source[1], micro_batch)
                    if key not in done:
                        break
                    waits = (done[key],)
                    if structure.overlaps_receive:
                        stream = StreamName.BACKWARD if backward else StreamName.FORWARD
                        waits = (builder.add(Role.RECEIVE, stage, waits, stream=stream),)
                task = _add_pass(structure, builder, stage, (backward, chunk, micro_batch), waits)
                done[stage, backward, chunk, micro_batch] = task
                position[stage] += 1
                progress = True
    _after_backward(structure, builder)


def _source(
    structure: Structure, stage: int, backward: bool, chunk: int
) -> tuple[int, int] | None:
    """Stage and chunk whose output a pass takes in, or None at the ends of the model."""
    last_stage, last_chunk = structure.pipeline - 1, structure.interleave - 1
    if backward:
        if stage < last_stage:
            return stage + 1, chunk
        return (0, chunk + 1) if chunk < last_chunk else None
    if stage > 0:
        return stage - 1, chunk
    return (last_stage, chunk - 1) if chunk > 0 else None


def _add_pass(
    structure: Structure,
    builder: _Builder,
    stage: int,
    which: tuple[bool, int, int],
    waits: tuple[int, ...],
) -> int:
    backward, chunk, micro_batch = which
    if not backward:
        return builder.add(Role.FORWARD, stage, waits, chunk=chunk)
    last = micro_batch == structure.micro_batches - 1
    layers = structure.chunk_kinds(stage, chunk)
    if not (last and layers and structure.reduces and structure.overlaps_reduce):
        return builder.add(Role.BACKWARD, stage, waits, chunk=chunk)
    ends = stage == structure.pipeline - 1 and chunk == structure.interleave - 1
    if ends:
        task = builder.add(Role.HEAD_BACKWARD, stage, waits)
        builder.add(Role.REDUCE_ENDS, stage, (task,), chunk=1, stream=StreamName.DATA)
    for layer in reversed(layers):
        task = builder.add(Role.LAYER_BACKWARD, stage, waits, chunk=chunk, layer=layer)
        builder.add(Role.REDUCE_LAYER, stage, (task,), layer=layer, stream=StreamName.DATA)
    if stage == 0 and chunk == 0:
        task = builder.add(Role.EMBEDDING_BACKWARD, stage)
        builder.add(Role.REDUCE_ENDS, stage, (task,), stream=StreamName.DATA)
    return task


def _after_backward(structure: Structure, builder: _Builder) -> None:
    stages = range(structure.pipeline)
    if structure.reduces and not structure.overlaps_reduce:
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


def _sharded(structure: Structure, builder: _Builder) -> None:
    gathers = structure.sharding is DataSharding.PARAMETERS
    layers = structure.kinds
    ahead = 2 if structure.prefetches else 1
    computed: list[int] = []

    def gather(role: Role, layer: int = 0) -> tuple[int, ...]:
        """Gathers once the layer before the one at work is over: two are held at most."""
        if not gathers:
            return ()
        waits = (computed[-ahead],) if len(computed) >= ahead else ()
        return (builder.add(role, 0, waits, layer=layer, stream=StreamName.DATA),)

    def compute(role: Role, waits: tuple[int, ...], layer: int = 0) -> int:
        computed.append(builder.add(role, 0, waits, layer=layer))
        return computed[-1]

    for _ in range(structure.micro_batches):
        compute(Role.EMBEDDING_FORWARD, gather(Role.GATHER_ROOT))
        for layer in layers:
            compute(Role.LAYER_FORWARD, gather(Role.GATHER_LAYER, layer), layer)
        compute(Role.HEAD, ())
        gathered = gather(Role.GATHER_LAYER, layers[-1])
        for index in reversed(range(len(layers))):
            task = compute(Role.LAYER_BACKWARD, gathered, layers[index])
            if index:
                # The next layer is gathered before this one's gradient is reduced.
                gathered = gather(Role.GATHER_LAYER, layers[index - 1])
            builder.add(Role.REDUCE_LAYER, 0, (task,), layer=layers[index], stream=StreamName.DATA)
        task = compute(Role.EMBEDDING_BACKWARD, ())
        builder.add(Role.REDUCE_ENDS, 0, (task,), stream=StreamName.DATA)
    task = builder.add(Role.OPTIMIZER, 0, builder.last_tasks(0))
    if structure.gathers_updated:
        builder.add(Role.GATHER_UPDATED, 0, (task,), stream=StreamName.DATA)
