"""The order in which a pipeline stage takes its passes.

**1F1B**, plain and interleaved: Narayanan et al. (arXiv 2104.04473, § 2.2). A stage first runs
forward passes until the first gradient can arrive, then one forward and one backward pass in turn,
then the remaining backward passes. Interleaved, a stage has `v` chunks of layers and takes
micro-batches in rounds of `p` through all of them. Of `m` micro-batches the bubble is
`(p − 1) / (m v)` of the work.

**GPipe** runs all forward passes before the first backward pass. Its bubble is the same, but a
stage holds the activations of all micro-batches.

**Zero-bubble** is ZB-H1 (Qi et al., arXiv 2401.10241, § 2.3): a backward pass makes the gradients
of its inputs, for which other stages wait, and a later one those of the weights. Stage `r` is `r`
passes late with these, so that it holds no more than the first stage does with 1F1B. With times
`F`, `B` and `W` of the three the bubble is `(p − 1)(F + B − W)` instead of `(p − 1)(F + B + W)`.
Interleaved, it is PyTorch's `InterleavedZeroBubble`.
"""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple

from dse.workload.transformer._types import Schedule


class Pass(NamedTuple):
    """One micro-batch through one chunk of layers.

    Attributes:
        backward: Direction.
        chunk: Which of the stage's chunks.
        micro_batch: Which micro-batch.
        weights: Backward, and makes the gradients of weights alone, with those of inputs made
            before.
    """

    backward: bool
    chunk: int
    micro_batch: int
    weights: bool = False


class InFlight(NamedTuple):
    """What a stage holds at one moment.

    Attributes:
        chunks: Passes through a chunk whose activations wait for their backward pass.
        weights: Passes of which only the gradients of weights remain to be made.
    """

    chunks: int
    weights: int


@lru_cache(maxsize=512)
def layers_by_chunk(
    layers: int, pipeline: int, interleave: int, modules: int = 0
) -> tuple[int, ...]:
    """Returns how many layers each chunk has, in the order of the model.

    All have the same number where that is possible. Else the embedding and the loss count as a
    layer each, so that the first and the last chunk have one less, or the loss alone does
    (Megatron-Core's `account_for_embedding_in_pipeline_split` and `…_loss_…`), which may leave
    them no layer at all (Llama 3, arXiv 2407.21783, § 3.3.2); else the last chunk
    has what the others leave over (`decoder_last_pipeline_num_layers`). The last is preferred
    where multi-token prediction modules follow the last layer.

    Args:
        layers: Layers of the model.
        pipeline: Stages.
        interleave: Chunks of a stage.
        modules: Multi-token prediction modules; the last chunk has them after its layers.

    Returns:
        One number a chunk, modules included; empty if there is no such split.
    """
    chunks = pipeline * interleave
    each = -(-layers // chunks)
    with_rest = [each] * (chunks - 1) + [layers - each * (chunks - 1)]
    equal, *counted = [
        (_counted_ends(layers, chunks, first, last), first, last)
        for first, last in ((0, 0), (1, 1 + modules), (0, 1 + modules))
    ]
    rest = (with_rest, 0, 0)
    for found, first, last in (equal, rest, *counted) if modules else (equal, *counted, rest):
        found[-1] += modules
        # With what counts as a layer, no chunk is empty.
        ends = (found[0] + first, found[-1] + last)
        if sum(found) == layers + modules and min((*ends, *found[1:-1])) > 0:
            return tuple(found)
    return ()


def _counted_ends(layers: int, chunks: int, first: int, last: int) -> list[int]:
    """Equal chunks, if what comes before and after the layers counts as some of them."""
    found = [(layers + first + last) // chunks] * chunks
    found[0] -= first
    found[-1] -= last
    return found


@lru_cache(maxsize=512)
def layers_by_work(layers: int, pipeline: int, head: float) -> tuple[int, ...]:
    """Returns how many layers each stage has if stages share the arithmetic, head included.

    Stages are filled in the order of the model until they reach their share of the arithmetic. A
    layer that reaches beyond it still belongs to its stage, so that later stages have less, and
    the last ones may have no layer.

    Args:
        layers: Layers of the model.
        pipeline: Stages.
        head: Arithmetic of the logits over that of a layer.

    Returns:
        One number a stage; the last one has norm, logits and loss as well.
    """
    total = layers + head
    found = [0] * pipeline
    stage = 0
    for layer in range(1, layers + 1):
        found[stage] += 1
        if layer >= total * (stage + 1) / pipeline and stage < pipeline - 1:
            stage += 1
    return tuple(found)


def warm_up_passes(
    pipeline: int,
    interleave: int,
    micro_batches: int,
    stage: int,
    schedule: Schedule,
) -> int:
    """Returns how many forward passes a stage runs before it alternates."""
    behind, total = pipeline - stage - 1, micro_batches * interleave
    if schedule is Schedule.GPIPE:
        return total
    if interleave == 1:
        return min(behind, micro_batches)
    # A gradient comes back sooner if it does not wait for those of weights.
    hops = 1 if schedule is Schedule.ZERO_BUBBLE else 2
    return min(hops * behind + (interleave - 1) * pipeline, total)


@lru_cache(maxsize=512)
def in_flight(
    pipeline: int,
    interleave: int,
    micro_batches: int,
    stage: int,
    schedule: Schedule = Schedule.ONE_F_ONE_B,
) -> tuple[InFlight, ...]:
    """Returns the moments at which a stage holds most; one but for zero-bubble schedules."""
    total = micro_batches * interleave
    if schedule is not Schedule.ZERO_BUBBLE:
        warm_up = warm_up_passes(pipeline, interleave, micro_batches, stage, schedule)
        return (InFlight(min(warm_up + 1, total), 0),)
    now, found = InFlight(0, 0), {InFlight(0, 0)}
    for one in stage_order(pipeline, interleave, micro_batches, stage, schedule):
        if one.weights:
            now = InFlight(now.chunks, now.weights - 1)
        elif one.backward:
            now = InFlight(now.chunks - 1, now.weights + 1)
        else:
            now = InFlight(now.chunks + 1, now.weights)
        found.add(now)
    most: list[InFlight] = []
    for now in sorted(found, reverse=True):
        if not most or now.weights > most[-1].weights:
            most.append(now)
    return tuple(most)


@lru_cache(maxsize=512)
def stage_order(
    pipeline: int,
    interleave: int,
    micro_batches: int,
    stage: int,
    schedule: Schedule = Schedule.ONE_F_ONE_B,
) -> tuple[Pass, ...]:
    """Returns the passes of a stage in the order in which it runs them."""
    total = micro_batches * interleave
    forward = [_pass(False, pipeline, interleave, index) for index in range(total)]
    backward = [_pass(True, pipeline, interleave, index) for index in range(total)]
    warm_up = warm_up_passes(pipeline, interleave, micro_batches, stage, schedule)
    order = forward[:warm_up]
    split = schedule is Schedule.ZERO_BUBBLE
    late = min(stage, total)
    for index in range(total):
        order += forward[warm_up + index : warm_up + index + 1]
        order.append(backward[index])
        if split and index >= late:
            order.append(backward[index - late]._replace(weights=True))
    if split:
        order += [one._replace(weights=True) for one in backward[total - late :]]
    return tuple(order)


def _pass(backward: bool, pipeline: int, interleave: int, index: int) -> Pass:
    """The `index`-th forward or backward pass of any stage."""
    if interleave == 1:
        return Pass(backward, 0, index)
    rounds, within = divmod(index, pipeline * interleave)
    chunk, offset = divmod(within, pipeline)
    if backward:
        chunk = interleave - 1 - chunk
    return Pass(backward, chunk, rounds * pipeline + offset)
