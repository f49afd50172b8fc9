"""The kernels of one layer's experts on one rank: router, rows in order, grouped products.

Rows are tokens, once for each expert that they visit. Megatron-Core runs the router, the
bookkeeping of the exchange, biases and limits of activations as one kernel for each operator, and
biases separately for each expert (its `router.py`, `token_dispatcher.py` and `experts.py`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from dse.machine import Precision
from dse.workload.transformer._types import ExpertDispatch
from dse.workload.transformer.kernels._operators import Elementwise, Product
from dse.workload.transformer.kernels._routing import busiest_load, places_of_token

if TYPE_CHECKING:
    from dse.workload.transformer._job import TransformerJob
    from dse.workload.transformer.kernels._operators import Kernel

#: Bytes that a token's score of one expert costs: a softmax in FP32, and the choice of the best.
_SCORE_BYTES = 16.0


class ExpertWork:
    """Counts the kernels of one rank's experts for one micro-batch.

    Args:
        problem: What is trained, where and how; a model with experts.
    """

    def __init__(self, problem: TransformerJob) -> None:
        model, parallelism = problem.model, problem.parallelism
        assert model.experts is not None
        self._problem, self._model, self._experts = problem, model, model.experts
        self._value = problem.precision.value_bytes
        self._group = parallelism.expert
        shards = parallelism.expert_shards
        tokens = problem.micro_batch_tokens
        #: Tokens that a rank routes, and that it has for itself.
        self._routed = tokens // parallelism.sequence_share
        self._own = tokens / parallelism.tensor
        #: Experts of a rank, and columns of each on it.
        self._held = model.experts.count // parallelism.expert
        self._inner = model.experts.ffn_hidden // shards
        #: Rows of a rank on average, and of the busiest one.
        self.mean_rows = self._own * shards * model.experts.active
        self.rows = self.mean_rows * busiest_load(model.experts, parallelism.expert).mean
        # Grouped products that add biases and activate exist in MXFP8 alone.
        fused = problem.software.fused_experts
        self._separate = not fused and problem.precision is not Precision.MXFP8
        self._pads = not fused and problem.precision.is_low

    def forward(self) -> list[Kernel]:
        """The forward pass."""
        first, _ = self._matrices()
        kernels: list[Kernel] = [self._router(), self._scores(), self._ordered(back=False)]
        return [*kernels, self._grouped(*first), *self.activation(), *self.after_activation()]

    def activation(self) -> list[Kernel]:
        """What comes between both products, forward."""
        values = 2
        if self._model.gated_ffn:
            values = 3 if self._problem.software.fused_elementwise else 5
        before = self._input_bias_and_limit() if self._separate else []
        return [*before, Elementwise(values * self._value * self._inner * self.rows, routed=True)]

    def after_activation(self) -> list[Kernel]:
        """Kernels whose results the backward pass does not need."""
        _, second = self._matrices()
        kernels: list[Kernel] = [self._grouped(*second)]
        if self._separate and self._experts.biases:
            # In FP32: weight times bias, and its sum with the output; all experts concatenated,
            # and cast.
            moved = (24 + 2 * self._value) * self._model.hidden * self.rows
            kernels.append(Elementwise(moved, 2 * self._held + 2, separate=True, routed=True))
        return [*kernels, self._ordered(back=True)]

    def backward(self) -> list[Kernel]:
        """The backward pass."""
        tokens, count, hidden = self._routed, self._experts.count, self._model.hidden
        kernels: list[Kernel] = [Product(tokens, hidden, count)]
        kernels += [self._grouped(m, k, n) for m, n, k in self._matrices()]
        kernels += self.weight_gradients()
        per_value = self._value * 3
        if self._model.gated_ffn:
            per_value = self._value * (5 if self._problem.software.fused_elementwise else 8)
        kernels.append(Elementwise(per_value * self._inner * self.rows, routed=True))
        if self._separate:
            kernels += self._bias_and_limit_gradients()
        # Gradients take the way of the rows back, and each row's weight has one of its own.
        weights = Elementwise(self._value * hidden * self.rows, routed=True)
        ordered = [self._ordered(back=False), self._ordered(back=True)]
        return [*kernels, self._scores(), *ordered, weights]

    def weight_gradients(self) -> list[Kernel]:
        """The kernels of the backward pass on which no other gradient depends."""
        made: list[Kernel] = [Product(self._model.hidden, self._experts.count, self._routed)]
        for rows, columns, depth in self._matrices():
            # The gradient of every expert's matrix contracts that expert's rows.
            each = max(1, round(rows / self._held))
            made.append(self._grouped(self._held * depth, columns, each))
        return made

    def _router(self) -> Product:
        return Product(self._routed, self._experts.count, self._model.hidden)

    def _matrices(self) -> tuple[tuple[int, int, int], tuple[int, int, int]]:
        """Sizes `(m, n, k)` of both grouped products, with the rows of all experts of a rank."""
        rows, hidden = max(1, round(self.rows)), self._model.hidden
        gate = 2 if self._model.gated_ffn else 1
        return (rows, gate * self._inner, hidden), (rows, hidden, self._inner)

    def _grouped(self, m: int, n: int, k: int) -> Product:
        low = self._problem.precision.is_low
        return Product(m, n, k, low=low, experts=self._held, routed=True)

    def _scores(self) -> Elementwise:
        """Scores of all experts, the choice, and what the exchange has to know."""
        moved = _SCORE_BYTES * self._routed * self._experts.count
        return Elementwise(moved, round(self._problem.software.router_kernels))

    def _ordered(self, *, back: bool) -> Elementwise:
        """Rows sorted by expert before the exchange, or back into the order of tokens after it."""
        dispatch = self._problem.expert_dispatch
        if self._group == 1:
            values = self._own + self.rows
        elif dispatch is ExpertDispatch.ALL_GATHER:
            # All ranks' tokens arrive; back, sums over the rows here go out for all of them.
            gathered = self._own * self._group
            values = (gathered if back else self.rows) + self.rows
        elif dispatch is ExpertDispatch.DEDUPLICATED:
            copies = places_of_token(self._experts, self._group)
            values = self._own * copies + self.rows
        else:
            # By rank before the exchange, and by the experts of a rank behind it.
            again = 2 * self.rows if self._held > 1 else 0.0
            values = self._own + self.rows + again
        launches = 2
        if self._pads:
            # Rows of each expert are copied to where their number is that of whole scale factors,
            # and back without those that fill up.
            values, launches = values + 2 * self.rows, 3
        return Elementwise(self._value * self._model.hidden * values, launches, routed=True)

    def _input_bias_and_limit(self) -> list[Kernel]:
        """What comes between the first product and the activation, forward."""
        kernels: list[Kernel] = []
        columns = (2 if self._model.gated_ffn else 1) * self._inner * self.rows
        if self._experts.biases:
            # Each expert's sum, and all experts concatenated.
            moved = 4 * self._value * columns
            kernels.append(Elementwise(moved, self._held + 1, separate=True, routed=True))
        if self._experts.limited:
            # Each half, and both concatenated.
            kernels.append(Elementwise(4 * self._value * columns, 3, separate=True, routed=True))
        return kernels

    def _bias_and_limit_gradients(self) -> list[Kernel]:
        """Gradients of biases and limits, and through them."""
        kernels: list[Kernel] = []
        columns = (2 if self._model.gated_ffn else 1) * self._inner * self.rows
        outputs = self._model.hidden * self.rows
        if self._experts.limited:
            kernels.append(Elementwise(5 * self._value * columns, 4, separate=True, routed=True))
        if self._experts.biases:
            # The sum over rows, and all experts concatenated; then those of weight times bias in
            # FP32: both casts, each factor's gradient with its sum, all experts concatenated.
            kernels += [
                Elementwise(3 * self._value * columns, self._held + 1, separate=True, routed=True),
                Elementwise(
                    (32 + 4 * self._value) * outputs,
                    5 * self._held + 2,
                    separate=True,
                    routed=True,
                ),
            ]
        return kernels
