"""The kernels of one layer of a transformer on one rank, and of what comes before and after it.

Products are counted as in Megatron-LM (Narayanan et al., arXiv 2104.04473, § 2.3): the first
matrix of attention and of the feed-forward block is split by columns, the second by rows, so that
one sum over the tensor-parallel ranks follows each block. Elementwise kernels are streams of
bytes: every operand is read once and every result is written once.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from dse.model import Activation, AttentionKind, TransformerFamily
from dse.workload.transformer._types import LossKernels, RecomputeModule
from dse.workload.transformer.kernels._attention import AttentionWork
from dse.workload.transformer.kernels._experts import ExpertWork
from dse.workload.transformer.kernels._operators import (
    Elementwise,
    OperatorCall,
    Product,
    Work,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from dse.workload.transformer._job import TransformerJob
    from dse.workload.transformer.kernels._operators import Kernel


class LayerWork:
    """Counts the kernels of one rank for one micro-batch.

    Args:
        problem: What is trained, where and how; its layers are all alike
            (:attr:`TransformerJob.layer_jobs`).
    """

    def __init__(self, problem: TransformerJob) -> None:
        self._problem = problem
        self._model = problem.model
        parallelism = problem.parallelism
        self._tensor = parallelism.tensor
        #: Tokens of a rank in products, and in what sequence parallelism splits.
        self.tokens = problem.micro_batch_tokens
        self._rows = self.tokens / parallelism.sequence_share
        self._value = problem.precision.value_bytes
        self._mask = 1 if self._model.dropout else 0
        self._fused = problem.software.fused_elementwise
        #: The layer's attention.
        self.attention = AttentionWork(problem)
        #: The layer's experts; None in a dense model.
        self.experts = None if self._model.experts is None else ExpertWork(problem)

    # --- a layer --------------------------------------------------------------------------------

    def layer_forward(self) -> list[Kernel]:
        """The forward pass of a layer."""
        return [*self._before_core(), *self.attention.core_forward(), *self._after_core()]

    def layer_recomputed(self) -> list[Kernel]:
        """What full recomputation repeats of a layer's forward pass."""
        kernels = self.layer_forward()
        if not self._problem.software.stops_recomputing_early:
            return kernels
        # Nothing needs the output of the last product: it is not an input of its gradient.
        last = 1
        if self.experts is not None and not self._model.ffn_hidden:
            last = len(self.experts.after_activation())
        return kernels[: -last - 1]

    def module(self, module: RecomputeModule) -> list[Kernel]:
        """The forward pass of a part of a layer, as far as recomputation repeats it."""
        if module is RecomputeModule.CORE_ATTENTION:
            # A fused kernel's own backward pass repeats the scores.
            flash = self._model.attention is AttentionKind.FLASH
            return [] if flash else self.attention.core_forward()
        if module is RecomputeModule.NORMS:
            return [self._norm(), self._norm()]
        if module is RecomputeModule.LATENT_UP:
            if self._model.latent is None:
                return []
            up = [self._product(*sizes) for sizes in self.attention.inputs()[-2:]]
            return [*up, *self.attention.between(backward=False)[-1:]]
        if module is RecomputeModule.OPERATORS:
            return self._every_other_product()
        matrices = self._block_matrices()
        block = self._feed_forward(matrices, self.tokens) if matrices else []
        if self.experts is None:
            early = self._problem.software.stops_recomputing_early
            kernels = block[:-1] if early else block
            return kernels if module is RecomputeModule.FEED_FORWARD else []
        if module is RecomputeModule.FEED_FORWARD:
            return []
        if module is RecomputeModule.EXPERT_ACTIVATION:
            return self.experts.activation()
        return [*self.experts.forward(), *block]

    def _every_other_product(self) -> list[Kernel]:
        """What torchtitan repeats of a layer if it selects operators.

        Its policy keeps attention's output and, of the products in their order (queries, keys,
        values, projection, gate, and the two of the block), those with odd numbers. Nothing needs
        the output of the last one again.
        """
        block, projection = self._block_matrices(), self._product(*self.attention.output())
        repeats_core = self._model.attention is not AttentionKind.FLASH
        kernels: list[Kernel] = [
            self._norm(),
            self._product(*self.attention.keys()),
            *self.attention.positions(backward=False),
            *(self.attention.core_forward() if repeats_core else ()),
            *(projection, self._residual(), self._norm()),
        ]
        if self._model.gated_ffn:
            kernels.append(self._product(self.tokens, block[1][2], self._model.hidden))
        return [*kernels, self._activated(block[1][2] * self.tokens)]

    def layer_backward(self) -> list[Kernel]:
        """The backward pass of a layer without recomputation."""
        model, value = self._model, self._value
        hidden = model.hidden
        kernels: list[Kernel] = []
        for m, n, k in self._matrices():
            kernels += [self._product(m, k, n), self._product(k, n, m)]
        kernels += self.attention.between(backward=True)
        kernels += self.attention.positions(backward=True)
        kernels += self._bias_gradients()
        if model.ffn_hidden:
            moved = value * self._gradient_values * model.ffn_hidden / self._tensor * self.tokens
            inner = model.ffn_hidden / self._tensor * self.tokens
            kernels.append(Elementwise(moved, calls=self._activation(inner, backward=True)))
        if self.experts is not None:
            kernels += self.experts.backward()
        # Two norms, their weights' gradients, and two sums with the gradient of the residual.
        norm = (*self._norm_backward_calls(), self._stream(3 * hidden * self._rows))
        kernels += [Elementwise((3 + 2 + 3) * value * hidden * self._rows, 3, calls=norm)] * 2
        if self._mask:
            kernels += [Elementwise((2 * value + 1) * hidden * self._rows)] * 2
        return [*kernels, *self.attention.core_backward()]

    @property
    def _gradient_values(self) -> int:
        """Values that the gradient of an activation reads and writes for each inner column.

        With separate kernels a gate takes three: its product has two gradients, each from two
        values, beside that of the activation. Halves of one product are put together again.
        """
        if not self._model.gated_ffn:
            return 3
        if self._fused:
            return 5
        return 13 if self._problem.software.joins_gates else 9

    def weight_gradients(self) -> list[Kernel]:
        """The kernels of a layer's backward pass on which no other gradient depends."""
        made: list[Kernel] = [self._product(k, n, m) for m, n, k in self._matrices()]
        made += self._bias_gradients()
        if self.experts is not None:
            made += self.experts.weight_gradients()
        if self._model.of_modules:
            m, n, k = self._joined()
            made += [self._product(k, n, m), *self.head_weight_gradients()]
        return made

    def _bias_gradients(self) -> list[Kernel]:
        model = self._model
        if not model.biases:
            return []
        outputs = model.qkv_width_of(self._tensor) + model.ffn_width / self._tensor
        return [Elementwise(self._value * (outputs + 2 * model.hidden) * self.tokens, 4)]

    def _matrices(self) -> tuple[tuple[int, int, int], ...]:
        """Sizes `(m, n, k)` of the products that every token takes part in."""
        attention = (*self.attention.inputs(), self.attention.output())
        return (*attention, *self._block_matrices())

    def _block_matrices(self) -> tuple[tuple[int, int, int], ...]:
        """Sizes of two products of the feed-forward block that every token visits, if any."""
        model, tensor, tokens = self._model, self._tensor, self.tokens
        if not model.ffn_hidden:
            return ()
        return (
            (tokens, model.ffn_width // tensor, model.hidden),
            (tokens, model.hidden, model.ffn_hidden // tensor),
        )

    def _product(self, m: int, n: int, k: int) -> Product:
        """A product of a layer's matrices, the only ones in a precision below two bytes."""
        return Product(m, n, k, low=self._problem.precision.is_low)

    def _norm(self) -> Elementwise:
        calls = (self._by_rows(self._model.norm.value, self._model.hidden),)
        return Elementwise(2 * self._value * self._model.hidden * self._rows, calls=calls)

    def _residual(self) -> Elementwise:
        """Adds a block's output, after dropout, to the residual."""
        moved, launches = 3 * self._value + self._mask, 1
        if self._mask and not self._fused:
            moved, launches = moved + 2 * self._value, 2
        return Elementwise(moved * self._model.hidden * self._rows, launches)

    # --- operators of PyTorch -------------------------------------------------------------------

    def _by_rows(self, op: str, columns: float) -> OperatorCall:
        return OperatorCall.of(op, rows=self._rows, columns=columns, value_bytes=self._value)

    def _norm_backward_calls(self) -> tuple[OperatorCall, ...]:
        return (self._by_rows(f"{self._model.norm.value}_backward", self._model.hidden),)

    def _stream(self, values: float) -> OperatorCall:
        """An operator that reads or writes so many values."""
        return OperatorCall.of("elementwise", traffic_bytes=self._value * values)

    def _activation(self, values: float, *, backward: bool) -> tuple[OperatorCall, ...]:
        """The activation of a feed-forward block, and the product with what its gate gives.

        The square of a ReLU is two streams; a gate's product is one, and two backward.
        """
        gated = self._model.gated_ffn
        kind, passes = self._model.activation, 3 if backward else 2
        products = (self._stream(3 * values),) * ((2 if backward else 1) if gated else 0)
        if kind is Activation.RELU2:
            return (*(self._stream(passes * values),) * 2, *products)
        op = f"{kind.value}_backward" if backward else kind.value
        return (OperatorCall.of(op, traffic_bytes=passes * self._value * values), *products)

    def _before_core(self) -> list[Kernel]:
        inputs = [self._product(*sizes) for sizes in self.attention.inputs()]
        between = self.attention.between(backward=False)
        return [self._norm(), *inputs, *between, *self.attention.positions(backward=False)]

    def _after_core(self) -> list[Kernel]:
        block, projection = self._block_matrices(), self._product(*self.attention.output())
        kernels: list[Kernel] = [projection, self._residual(), self._norm()]
        if self.experts is not None:
            kernels += self.experts.forward()
        if block:
            kernels += self._feed_forward(block, self.tokens)
        return [*kernels, self._residual()]

    def _feed_forward(self, products: Sequence[tuple[int, int, int]], rows: float) -> list[Kernel]:
        """Two products with the activation between them."""
        first, second = products
        return [self._product(*first), self._activated(second[2] * rows), self._product(*second)]

    def _activated(self, inner: float) -> Elementwise:
        """The activation of so many values, and their product with what a gate gives."""
        values = 2
        if self._model.gated_ffn:
            values = 3 if self._fused else 5
        calls = self._activation(inner, backward=False)
        return Elementwise(values * self._value * inner, calls=calls)

    # --- before and after the layers ------------------------------------------------------------

    def embedding(self) -> Work:
        """Token and position vectors, with dropout."""
        model, value = self._model, self._value
        moved = 2 * value + (3 * value if model.learned_positions else 0)
        moved += (2 * value + 1) if self._mask else 0
        forward = Elementwise(moved * model.hidden * self._rows, 3)
        # PyTorch adds the gradients of tokens to zeros for the whole embedding.
        rows = -(-model.vocab // self._tensor)
        calls = (
            self._stream(rows * model.hidden),
            OperatorCall.of(
                "elementwise", traffic_bytes=(moved + 2 * value) * model.hidden * self._rows
            ),
        )
        backward = Elementwise((moved + 2 * value) * model.hidden * self._rows, 4, calls=calls)
        return Work((forward,), (backward,))

    def head(self) -> Work:
        """Final norm, logits and loss; also BERT's transform with its activation and norm."""
        model, value, tokens = self._model, self._value, self.tokens
        hidden, columns = model.hidden, -(-model.vocab // self._tensor)
        forward: list[Kernel] = [self._norm(), Product(tokens, columns, hidden)]
        backward: list[Kernel] = [
            Product(tokens, hidden, columns),
            Product(hidden, columns, tokens),
            Elementwise(
                (3 + 2) * value * hidden * self._rows, 2, calls=self._norm_backward_calls()
            ),
        ]
        if model.family is TransformerFamily.BERT:
            forward += [Product(tokens, hidden, hidden), Elementwise(2 * value * hidden * tokens)]
            backward += [Product(tokens, hidden, hidden), Product(hidden, hidden, tokens)]
            backward.append(Elementwise(3 * value * hidden * tokens))
        logits = columns * tokens
        forward_bytes, backward_bytes, launches = _loss_bytes(self._problem.software.loss, value)
        loss = {"rows": float(tokens), "columns": float(columns), "value_bytes": float(value)}
        for kernels, op, moved in (
            (forward, "cross_entropy", forward_bytes),
            (backward, "cross_entropy_backward", backward_bytes),
        ):
            calls = (OperatorCall.of(op, **loss),)
            # What splits the vocabulary are casts, sums and products: streams, whatever is fused.
            streams = self._problem.software.loss is LossKernels.SPLIT_VOCABULARY
            kernels.append(Elementwise(moved * logits, launches, copies=streams, calls=calls))
        return Work(tuple(forward), tuple(backward))

    def head_weight_gradients(self) -> list[Kernel]:
        """The kernels of the head's backward pass on which no other gradient depends."""
        model, tokens, hidden = self._model, self.tokens, self._model.hidden
        kernels: list[Kernel] = [Product(hidden, -(-model.vocab // self._tensor), tokens)]
        if model.family is TransformerFamily.BERT:
            kernels.append(Product(hidden, hidden, tokens))
        return kernels

    def _joined(self) -> tuple[int, int, int]:
        """Sizes of the product of a prediction module that joins what it takes in."""
        hidden = self._model.hidden
        return self.tokens, hidden // self._tensor, 2 * hidden

    def prediction_module(self) -> Work:
        """What a multi-token prediction module adds to its layer; nothing in other layers.

        The next token's vector and the residual stream are normalized and projected together; the
        language head predicts from it.
        """
        model = self._model
        if not model.of_modules:
            return Work((), ())
        m, n, k = self._joined()
        norms = Elementwise((3 + 2) * self._value * model.hidden * self._rows, 2)
        embedding, head = self.embedding(), self.head()
        joined = (self._norm(), self._norm(), self._product(m, n, k))
        apart = (self._product(m, k, n), self._product(k, n, m), norms, norms)
        return Work(
            (*embedding.forward, *joined, *head.forward),
            (*head.backward, *apart, *embedding.backward),
        )


def _loss_bytes(loss: LossKernels, value: int) -> tuple[int, int, int]:
    """Bytes that a logit costs forward and backward, and kernels of each direction."""
    if loss is LossKernels.FUSED:
        return value, 2 * value, 1
    if loss is LossKernels.TORCH:
        # Cast, log-softmax; zeros for the gradient, its own gradient from both, cast back.
        return (value + 4) + 8, 4 + 12 + (4 + value), 3
    # Cast, maximum, difference, exponential, sum, quotient; a product in place, the cast back.
    return (value + 4) + 4 + 8 + 8 + 4 + 8, 8 + (4 + value), 6
