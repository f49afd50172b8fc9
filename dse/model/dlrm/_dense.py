"""Dense part of a recommendation model as a list of operators of one rank.

GEMM shapes follow PyTorch's linear layer: forward `(b, in) · (in, out)`; backward one product for
the gradient of the input and one for the gradient of the weights. Bias and activation are one
fused elementwise operator, as are activation gradient and bias gradient.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING

from dse.model._common import Operator, OperatorKind
from dse.model.dlrm._model import InteractionKind

if TYPE_CHECKING:
    from dse.machine import Precision
    from dse.model.dlrm._model import DlrmModel


@dataclass(frozen=True, slots=True)
class ParameterGroup:
    """Parameters whose gradient is complete after one backward operator.

    Attributes:
        name: Layer.
        parameters: Number of parameters.
        ready_after: Index of the operator in the concatenation of top, interaction and bottom
            backward operators after which the gradient is complete.
    """

    name: str
    parameters: int
    ready_after: int


@dataclass(frozen=True, slots=True)
class DenseOperators:
    """Operators of one rank by phase, each in order of execution.

    Attributes:
        input_copy: Dense features and labels from the host.
        bottom_forward: Bottom MLP.
        interaction_forward: Interaction of dense and sparse features.
        top_forward: Top MLP and loss.
        top_backward: Loss and top MLP, backward.
        interaction_backward: Interaction, backward.
        bottom_backward: Bottom MLP, backward.
        optimizer: Update of the dense parameters.
        parameter_groups: In the order in which gradients become ready.
    """

    input_copy: tuple[Operator, ...]
    bottom_forward: tuple[Operator, ...]
    interaction_forward: tuple[Operator, ...]
    top_forward: tuple[Operator, ...]
    top_backward: tuple[Operator, ...]
    interaction_backward: tuple[Operator, ...]
    bottom_backward: tuple[Operator, ...]
    optimizer: tuple[Operator, ...]
    parameter_groups: tuple[ParameterGroup, ...]


def dense_operators(
    model: DlrmModel, local_batch_size: int, precision: Precision
) -> DenseOperators:
    """Returns the dense operators of one rank.

    Args:
        model: The model.
        local_batch_size: Samples of the rank.
        precision: Decides the bytes of activations and gradients.
    """
    return _DenseBuilder(model, local_batch_size, precision.value_bytes).build()


def dense_parameter_count(model: DlrmModel) -> int:
    """Returns the number of parameters of the MLPs and the interaction."""
    widths = [model.dense_features, *model.bottom_mlp]
    bottom = _mlp_parameters(widths if model.bottom_mlp else [])
    top = _mlp_parameters([interaction_width(model), *model.top_mlp])
    return bottom + top + _interaction_parameters(model)


def interaction_width(model: DlrmModel) -> int:
    """Returns the width of the top MLP's input."""
    features = sum(table.feature_count for table in model.tables)
    concatenated = sum(table.feature_count * table.dim for table in model.tables)
    kind = model.interaction.kind
    if kind is InteractionKind.DOT:
        vectors = features + 1
        return model.bottom_mlp[-1] + vectors * (vectors - 1) // 2
    dense = model.bottom_mlp[-1] if model.bottom_mlp else model.dense_features
    if kind is InteractionKind.CONCAT:
        return -(-concatenated // model.interaction.stride) + dense
    return concatenated + dense


def activation_bytes(model: DlrmModel, local_batch_size: int, precision: Precision) -> int:
    """Returns the bytes that the backward pass keeps of one rank's forward pass.

    Inputs of every layer and of every activation function, and the interaction's inputs.
    """
    concatenated = sum(table.feature_count * table.dim for table in model.tables)
    values = model.dense_features + 2 * sum(model.bottom_mlp) + 2 * sum(model.top_mlp)
    values += concatenated + interaction_width(model)
    if model.interaction.kind is InteractionKind.DCNV2_LOW_RANK:
        width = interaction_width(model)
        values += model.interaction.layers * (2 * width + model.interaction.low_rank)
    return local_batch_size * values * precision.value_bytes


def _mlp_parameters(widths: list[int]) -> int:
    return sum((inputs + 1) * outputs for inputs, outputs in pairwise(widths))


def _interaction_parameters(model: DlrmModel) -> int:
    if model.interaction.kind is not InteractionKind.DCNV2_LOW_RANK:
        return 0
    width, rank = interaction_width(model), model.interaction.low_rank
    return model.interaction.layers * (2 * width * rank + width)


class _DenseBuilder:
    def __init__(self, model: DlrmModel, batch: int, value_bytes: int) -> None:
        self._model = model
        self._batch = batch
        self._value_bytes = value_bytes
        self._features = sum(table.feature_count for table in model.tables) + 1
        self._embedded = sum(table.feature_count * table.dim for table in model.tables)
        self._width = interaction_width(model)

    def build(self) -> DenseOperators:
        model = self._model
        bottom = [model.dense_features, *model.bottom_mlp] if model.bottom_mlp else []
        top = [self._width, *model.top_mlp]
        top_backward, top_groups = self._mlp_backward("top_mlp", top, first_input=True)
        cross_backward, cross_groups = self._interaction_backward()
        bottom_backward, bottom_groups = self._mlp_backward(
            "bottom_mlp", bottom, first_input=False
        )
        top_backward = [self._elementwise("loss.backward", 4), *top_backward]
        groups = [(name, count, 1 + at) for name, count, at in top_groups]
        start = len(top_backward)
        groups += [(name, count, start + at) for name, count, at in cross_groups]
        start += len(cross_backward)
        groups += [(name, count, start + at) for name, count, at in bottom_groups]
        return DenseOperators(
            input_copy=(
                Operator(
                    "copy dense input",
                    OperatorKind.COPY_TO_DEVICE,
                    traffic_bytes=4.0 * self._batch * (model.dense_features + 1),
                ),
            ),
            bottom_forward=tuple(self._mlp_forward("bottom_mlp", bottom)),
            interaction_forward=tuple(self._interaction_forward()),
            top_forward=(
                *self._mlp_forward("top_mlp", top),
                self._elementwise("loss.forward", 4),
            ),
            top_backward=tuple(top_backward),
            interaction_backward=tuple(cross_backward),
            bottom_backward=tuple(bottom_backward),
            optimizer=(self._optimizer(),),
            parameter_groups=tuple(ParameterGroup(*group) for group in groups),
        )

    def _gemm(self, name: str, m: int, n: int, k: int) -> Operator:
        return Operator(name, OperatorKind.GEMM, m=m, n=n, k=k)

    def _elementwise(self, name: str, values_per_sample: float) -> Operator:
        traffic = float(self._batch) * values_per_sample * self._value_bytes
        return Operator(name, OperatorKind.ELEMENTWISE, traffic_bytes=traffic)

    def _concat(self, columns: int) -> Operator:
        sizes = (("rows", self._batch), ("columns", columns), ("value_bytes", self._value_bytes))
        return Operator(
            "interaction.concat",
            OperatorKind.CONCAT,
            traffic_bytes=2.0 * self._batch * columns * self._value_bytes,
            sizes=sizes,
        )

    def _mlp_forward(self, name: str, widths: list[int]) -> list[Operator]:
        operators = []
        for layer, (inputs, outputs) in enumerate(pairwise(widths)):
            operators.append(self._gemm(f"{name}.{layer}.forward", self._batch, outputs, inputs))
            operators.append(self._elementwise(f"{name}.{layer}.activation", 2 * outputs))
        return operators

    def _mlp_backward(
        self, name: str, widths: list[int], *, first_input: bool
    ) -> tuple[list[Operator], list[tuple[str, int, int]]]:
        """Backward operators, and (layer, parameters, operator that completes its gradient)."""
        operators: list[Operator] = []
        groups = []
        for layer in reversed(range(max(0, len(widths) - 1))):
            inputs, outputs = widths[layer], widths[layer + 1]
            prefix = f"{name}.{layer}"
            operators.append(self._elementwise(f"{prefix}.activation.backward", 3 * outputs))
            if layer > 0 or first_input:
                operators.append(
                    self._gemm(f"{prefix}.input_gradient", self._batch, inputs, outputs)
                )
            operators.append(self._gemm(f"{prefix}.weight_gradient", outputs, inputs, self._batch))
            groups.append((prefix, (inputs + 1) * outputs, len(operators) - 1))
        return operators, groups

    def _interaction_forward(self) -> list[Operator]:
        kind = self._model.interaction.kind
        if kind is InteractionKind.DOT:
            dim = self._model.bottom_mlp[-1]
            count = self._features
            return [
                self._concat(count * dim),
                Operator(
                    "interaction.dot",
                    OperatorKind.BATCHED_GEMM,
                    m=count,
                    n=count,
                    k=dim,
                    batch=self._batch,
                ),
                self._elementwise("interaction.triangle", count * count + self._width),
            ]
        concat = self._concat(self._concat_width())
        if kind is InteractionKind.CONCAT:
            if self._model.interaction.stride == 1:
                return [concat]
            pool = self._elementwise("interaction.pool", self._embedded + self._width)
            return [concat, pool]
        operators = [concat]
        for layer in range(self._model.interaction.layers):
            operators += self._cross_layer(f"interaction.{layer}", backward=False)
        return operators

    def _concat_width(self) -> int:
        dense = (
            self._model.bottom_mlp[-1] if self._model.bottom_mlp else self._model.dense_features
        )
        return self._embedded + dense

    def _cross_layer(self, name: str, *, backward: bool) -> list[Operator]:
        """A low-rank cross layer: x0 ⊙ (W (V x) + b) + x."""
        width, rank, batch = self._width, self._model.interaction.low_rank, self._batch
        if not backward:
            return [
                self._gemm(f"{name}.v.forward", batch, rank, width),
                self._gemm(f"{name}.w.forward", batch, width, rank),
                self._elementwise(f"{name}.cross", 4 * width),
            ]
        return [
            self._elementwise(f"{name}.cross.backward", 6 * width),
            self._gemm(f"{name}.w.input_gradient", batch, rank, width),
            self._gemm(f"{name}.w.weight_gradient", width, rank, batch),
            self._gemm(f"{name}.v.input_gradient", batch, width, rank),
            self._gemm(f"{name}.v.weight_gradient", rank, width, batch),
        ]

    def _interaction_backward(self) -> tuple[list[Operator], list[tuple[str, int, int]]]:
        kind = self._model.interaction.kind
        if kind is InteractionKind.DOT:
            dim, count = self._model.bottom_mlp[-1], self._features
            return [
                self._elementwise("interaction.triangle.backward", count * count + self._width),
                Operator(
                    "interaction.dot.backward",
                    OperatorKind.BATCHED_GEMM,
                    m=count,
                    n=dim,
                    k=count,
                    batch=2 * self._batch,
                    launches=2,
                ),
                self._elementwise("interaction.concat.backward", 3 * count * dim),
            ], []
        operators: list[Operator] = []
        groups = []
        if kind is InteractionKind.DCNV2_LOW_RANK:
            width, rank = self._width, self._model.interaction.low_rank
            for layer in reversed(range(self._model.interaction.layers)):
                operators += self._cross_layer(f"interaction.{layer}", backward=True)
                groups.append(
                    (f"interaction.{layer}", 2 * width * rank + width, len(operators) - 1)
                )
        elif self._model.interaction.stride > 1:
            operators.append(
                self._elementwise("interaction.pool.backward", self._embedded + self._width)
            )
        operators.append(
            self._elementwise("interaction.concat.backward", 2 * self._concat_width())
        )
        return operators, groups

    def _optimizer(self) -> Operator:
        """One fused multi-tensor step: read gradient, read and write weights and state."""
        parameters = dense_parameter_count(self._model)
        state = self._model.dense_optimizer.state_values_per_parameter
        return Operator(
            "dense optimizer",
            OperatorKind.OPTIMIZER_STEP,
            traffic_bytes=4.0 * parameters * (3 + 2 * state),
            sizes=(("parameters", parameters), ("state_values", state)),
        )
