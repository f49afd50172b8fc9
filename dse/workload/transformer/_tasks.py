"""Tasks of a training step and their dependencies, without durations.

One rank stands for all that do the same work: a pipeline stage has one representative, and a
collective counts with the time of its whole group. The structure depends on few numbers, so it is
made once for each of them and shared by all configurations that a search compares; only the
durations of the few kinds of tasks change.

Each stage takes its passes in the order of :mod:`_schedule`. A pass is one task, or is taken apart
by layer where something happens beside each layer:

* The gradient of a layer is reduced during the next layer's backward pass, in the last pass of a
  chunk, or with sharded gradients in every pass.
* Sharded parameters are gathered one layer ahead (FSDP: Zhao et al., arXiv 2304.11277, § 3.3), for
  every forward pass and again for every backward pass. Without resharding they stay until the
  backward pass, and with several stages until the last one, since the passes of other
  micro-batches come in between.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from functools import lru_cache
from typing import NamedTuple

from dse.workload.transformer._schedule import Pass, stage_order
from dse.workload.transformer._types import DataSharding, Schedule


class Role(StrEnum):
    """What a task does; also its name in time lines."""

    FORWARD = "forward"
    BACKWARD = "backward"
    INPUT_GRADIENTS = "input gradients"
    WEIGHT_GRADIENTS = "weight gradients"
    HEAD_BACKWARD = "head backward"
    HEAD_INPUT_GRADIENTS = "head input gradients"
    HEAD_WEIGHT_GRADIENTS = "head weight gradients"
    LAYER_BACKWARD = "layer backward"
    LAYER_BACKWARD_UNREDUCED = "layer backward, not reduced"
    LAYER_INPUT_GRADIENTS = "layer input gradients"
    LAYER_WEIGHT_GRADIENTS = "layer weight gradients"
    SEND = "send"
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
        """Whether it only moves data."""
        return self in _TRANSFERS


_TRANSFERS = {
    Role.SEND,
    Role.RECEIVE,
    Role.REDUCE_LAYER,
    Role.REDUCE_ENDS,
    Role.REDUCE_ALL,
    Role.REDUCE_EMBEDDING,
    Role.GATHER_UPDATED,
    Role.GATHER_ROOT,
    Role.GATHER_LAYER,
}


#: Tasks that are the same in all chunks of a stage.
_SAME_IN_ALL_CHUNKS = {Role.LAYER_FORWARD, Role.EMBEDDING_FORWARD, Role.EMBEDDING_BACKWARD}


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
        schedule: Order of the passes of a stage.
        reshards: Whether sharded parameters are gathered again for a backward pass.
        reduces_once: Whether sharded gradients are reduced after the last micro-batch alone.
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
    schedule: Schedule = Schedule.ONE_F_ONE_B
    reshards: bool = True
    reduces_once: bool = False

    def chunk_kinds(self, stage: int, chunk: int) -> tuple[int, ...]:
        """Returns the kind of each layer of a chunk of a stage."""
        index = chunk * self.pipeline + stage
        first = sum(self.layers[:index])
        return self.kinds[first : first + self.layers[index]]

    def order(self, stage: int) -> tuple[Pass, ...]:
        """Returns the passes of a stage in the order in which it runs them."""
        return stage_order(
            self.pipeline, self.interleave, self.micro_batches, stage, self.schedule
        )

    def gathers(self, one: Pass) -> bool:
        """Whether layers of sharded parameters are gathered for a pass."""
        if self.sharding is not DataSharding.PARAMETERS or one.weights:
            return False
        return self.reshards or (not one.backward and self._comes_back(one))

    def gathers_root(self, one: Pass) -> bool:
        """Whether the parameters outside the layers are gathered for a forward pass."""
        return self.sharding is DataSharding.PARAMETERS and self._comes_back(one)

    def _comes_back(self, one: Pass) -> bool:
        """Whether nothing else of the step has gathered the parameters of a pass before."""
        return self.pipeline == 1 or one.micro_batch == 0

    def reduces_in(self, one: Pass) -> bool:
        """Whether gradients are reduced layer by layer during a backward pass."""
        splits = self.schedule is Schedule.ZERO_BUBBLE
        if not self.reduces or not one.backward or one.weights is not splits:
            return False
        last = one.micro_batch == self.micro_batches - 1
        if self.sharding.shards_gradients:
            return last or not self.reduces_once
        return last and self.overlaps_reduce


class Part(NamedTuple):
    """A task of a pass on the compute stream, with the transfers that belong to it.

    Attributes:
        role: What it does.
        gather: What is gathered for it, if anything.
        reduce: How its gradient is reduced, if it is.
        layer: The kind of its layer.
    """

    role: Role
    gather: Role | None = None
    reduce: Role | None = None
    layer: int = 0


def pass_parts(structure: Structure, stage: int, one: Pass) -> tuple[Part, ...]:
    """Returns what a pass consists of, in its order.

    Args:
        structure: What the structure of the step depends on.
        stage: The pipeline stage.
        one: The pass.
    """
    first = stage == 0 and one.chunk == 0
    last = stage == structure.pipeline - 1 and one.chunk == structure.interleave - 1
    gathers, reduces = structure.gathers(one), structure.reduces_in(one)
    gather = Role.GATHER_LAYER if gathers else None
    root = Role.GATHER_ROOT if not one.backward and structure.gathers_root(one) else None
    reduce = Role.REDUCE_LAYER if reduces else None
    rest = Role.REDUCE_ENDS if reduces else None
    apart = structure.schedule is Schedule.ZERO_BUBBLE
    # With one stage, all parameters outside the layers are gathered and reduced together.
    together = structure.pipeline == 1 and structure.sharding.shards_gradients
    layers = structure.chunk_kinds(stage, one.chunk)
    parts: list[Part] = []
    if not one.backward:
        if not gathers and not (together and structure.reduces):
            return (Part(Role.FORWARD),)
        if first:
            parts.append(Part(Role.EMBEDDING_FORWARD, root))
        parts += [Part(Role.LAYER_FORWARD, gather, layer=layer) for layer in layers]
        if last:
            parts.append(Part(Role.HEAD, None if together else root))
        return tuple(parts) or (Part(Role.FORWARD),)
    whole, head, single = Role.BACKWARD, Role.HEAD_BACKWARD, Role.LAYER_BACKWARD
    if not reduces:
        single = Role.LAYER_BACKWARD_UNREDUCED
    if one.weights:
        whole, head = Role.WEIGHT_GRADIENTS, Role.HEAD_WEIGHT_GRADIENTS
        single = Role.LAYER_WEIGHT_GRADIENTS
    elif apart:
        whole, head = Role.INPUT_GRADIENTS, Role.HEAD_INPUT_GRADIENTS
        single = Role.LAYER_INPUT_GRADIENTS
    if not gathers and not reduces:
        return (Part(whole),)
    if last:
        parts.append(Part(head, reduce=None if together else rest))
    parts += [Part(single, gather, reduce, layer) for layer in reversed(layers)]
    if first and (one.weights or not apart):
        parts.append(Part(Role.EMBEDDING_BACKWARD, reduce=rest))
    return tuple(parts) or (Part(whole),)


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
    _passes(structure, builder)
    _after_passes(structure, builder)
    return builder.build()


class _Builder:
    def __init__(self) -> None:
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
