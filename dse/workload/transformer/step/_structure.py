"""What the tasks of a training step depend on, and which of them a pass consists of.

A pass is one task, or is taken apart by layer where something happens alongside each layer:

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
from typing import NamedTuple

from dse.workload.transformer._types import DataSharding, Schedule
from dse.workload.transformer.step._schedule import Pass, stage_order


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
        own_engines: Whether transfers overlap with kernels.
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
    own_engines: bool = True

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
