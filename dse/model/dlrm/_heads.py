"""Top of a recommendation model as operators: top MLP, experts and gates, tasks, losses."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dse.model.dlrm._blocks import Block, ParameterGroup, chain

if TYPE_CHECKING:
    from collections.abc import Sequence

    from dse.model._common import Operator
    from dse.model.dlrm._architecture import Experts
    from dse.model.dlrm._blocks import Layers
    from dse.model.dlrm._model import DlrmModel

#: Values a row that the loss of one output reads and writes, each way.
_LOSS_VALUES = 4


def top_block(model: DlrmModel, layers: Layers, width: int) -> Block:
    """Returns everything behind the interaction.

    Args:
        model: The model.
        layers: Makes operators over the samples.
        width: Of the interaction's output.
    """
    shared = layers.mlp("top_mlp", (width, *model.top_mlp))
    width = (width, *model.top_mlp)[-1]
    if not model.tasks:
        return chain(shared, loss_block(layers, "loss", width))
    blocks = [shared]
    if model.experts is not None:
        for level in range(model.experts.levels):
            last = level == model.experts.levels - 1
            blocks.append(
                _experts(
                    layers,
                    f"experts.{level}",
                    model.experts,
                    tasks=len(model.tasks),
                    width=width,
                    inputs=1 if level == 0 else len(model.tasks) + 1,
                    shared_output=not last,
                )
            )
            width = model.experts.mlp[-1]
    heads = [
        chain(
            layers.mlp(f"task.{task.name}", (width, *task.top_mlp)),
            loss_block(layers, f"loss.{task.name}", task.top_mlp[-1]),
        )
        for task in model.tasks
    ]
    # Heads behind gates have an input each, and nothing to add up.
    together = 0 if model.experts is not None else len(heads) - 1
    return chain(*blocks, _side_by_side(layers, "task.input", heads, width, together))


def loss_block(layers: Layers, name: str, outputs: int) -> Block:
    """Returns the loss of so many outputs a row."""
    values = _LOSS_VALUES * outputs
    return Block(
        (layers.elementwise(f"{name}.forward", values),),
        (layers.elementwise(f"{name}.backward", values),),
    )


def _side_by_side(
    layers: Layers, name: str, blocks: Sequence[Block], width: int, additions: int
) -> Block:
    """Blocks that read the same inputs, whose gradients are added up, one at a time."""
    both = chain(*blocks)
    added: tuple[Operator, ...] = ()
    if additions:
        added = (
            layers.elementwise(f"{name}.backward", 3 * additions * width, launches=additions),
        )
    return Block(both.forward, (*both.backward, *added), both.groups, both.kept_values)


def _experts(
    layers: Layers,
    name: str,
    experts: Experts,
    *,
    tasks: int,
    width: int,
    inputs: int,
    shared_output: bool,
) -> Block:
    """One level of experts with a gate for each task, and one for the next shared experts.

    Args:
        layers: Makes operators over the samples.
        name: Prefix of the operators' names.
        experts: What a level consists of.
        tasks: Number of tasks.
        width: Of each input.
        inputs: Different inputs that experts and gates read.
        shared_output: Whether there is another level behind this one.
    """
    count = experts.shared + tasks * experts.per_task
    output = experts.mlp[-1]
    seen = [experts.shared + experts.per_task] * tasks + [count] * shared_output
    rows = layers.rows
    parts = [layers.mlp(f"{name}.{index}", (width, *experts.mlp)) for index in range(count)]
    gates = []
    for index, choices in enumerate(seen):
        gate = f"{name}.gate.{index}"
        gates.append(
            Block(
                (
                    layers.gemm(f"{gate}.forward", rows, choices, width),
                    layers.elementwise(f"{gate}.softmax", 2 * choices),
                ),
                (
                    layers.elementwise(f"{gate}.softmax.backward", 3 * choices),
                    layers.gemm(f"{gate}.input_gradient", rows, width, choices),
                    layers.gemm(f"{gate}.weight_gradient", choices, width, rows),
                ),
                (ParameterGroup(gate, width * choices, 2),),
                choices,
            )
        )
    read = _side_by_side(
        layers, f"{name}.input", [*parts, *gates], width, count + len(seen) - inputs
    )
    # A mixture reads its experts and weights, and writes one vector; backward it reads that
    # vector's gradient and the same again, and writes gradients of both. An expert in several
    # mixtures has several of them, which are added.
    choices = sum(seen)
    mixed = choices * (output + 1)
    additions = choices - count
    mixtures = Block(
        (layers.elementwise(f"{name}.mix", mixed + len(seen) * output, len(seen)),),
        (
            layers.elementwise(
                f"{name}.mix.backward",
                2 * mixed + len(seen) * output + 3 * additions * output,
                2 * len(seen) + additions,
            ),
        ),
        kept_values=len(seen) * output,
    )
    return chain(read, mixtures)
