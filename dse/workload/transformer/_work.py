"""The kernels of one layer of a transformer on one rank, and of what comes before and after it.

Products are counted as in Megatron-LM (Narayanan et al., arXiv 2104.04473, § 2.3): the first
matrix of attention and of the feed-forward block is split by columns, the second by rows, so that
one sum over the tensor-parallel ranks follows each block. Elementwise kernels are streams of
bytes: every operand is read once and every result is written once.
"""

from __future__ import annotations

from dataclasses import dataclass
import math
from typing import TYPE_CHECKING, NamedTuple

from dse.model import AttentionKind, TransformerFamily
from dse.workload.transformer._types import LossKernels, RecomputeModule

if TYPE_CHECKING:
    from collections.abc import Sequence

    from dse.workload.transformer._job import TransformerJob


#: Rows of a tile of a product.
_TILE_ROWS = 128

#: Bytes that a token's score of one expert costs: a softmax in FP32, and the choice of the best.
_SCORE_BYTES = 16.0


class Product(NamedTuple):
    """`batch` products of an `(m, k)` with a `(k, n)` matrix.

    Attributes:
        m: Rows of the result.
        n: Columns of the result.
        k: Contracted length.
        batch: Independent products in one call.
        low: In the job's precision even if that is below two bytes; else in `bf16` then.
    """

    m: int
    n: int
    k: int
    batch: int = 1
    low: bool = False


class Elementwise(NamedTuple):
    """Kernels that move bytes.

    Attributes:
        traffic_bytes: Bytes read and written by all of them.
        launches: Their number.
    """

    traffic_bytes: float
    launches: int = 1


class Attention(NamedTuple):
    """A fused attention kernel.

    Attributes:
        batch: Sequences.
        heads: Heads of queries of a rank.
        kv_heads: Heads of keys and values of a rank.
        queries: Queries of a sequence on a rank.
        keys: Keys of a sequence.
        dim: Columns of a head.
        causal: Whether a query sees only keys up to its own position.
        backward: Whether it makes gradients, with the scores computed again.
    """

    batch: int
    heads: int
    kv_heads: int
    queries: int
    keys: int
    dim: int
    causal: bool
    backward: bool


Kernel = Product | Elementwise | Attention


@dataclass(frozen=True, slots=True)
class Work:
    """Kernels of a part of the model in both directions.

    Attributes:
        forward: Of the forward pass.
        backward: Of the backward pass, recomputation included.
    """

    forward: tuple[Kernel, ...]
    backward: tuple[Kernel, ...]


class LayerWork:
    """Counts the kernels of one rank for one micro-batch."""

    def __init__(self, problem: TransformerJob) -> None:
        self._problem = problem
        self._model = problem.model
        parallelism = problem.parallelism
        self._tensor = parallelism.tensor
        self._samples = parallelism.micro_batch_size
        self._queries = self._model.sequence_length // parallelism.context
        #: Tokens of a rank in products, and in what sequence parallelism splits.
        self.tokens = self._samples * self._queries
        self._rows = self.tokens / parallelism.sequence_share
        self._value = problem.precision.value_bytes
        self._mask = 1 if self._model.dropout else 0
        self._fused = problem.software.fused_elementwise

    # --- a layer --------------------------------------------------------------------------------

    def layer_forward(self) -> list[Kernel]:
        """The forward pass of a layer."""
        return [*self._before_core(), *self.core_forward(), *self._after_core()]

    def layer_recomputed(self) -> list[Kernel]:
        """What full recomputation repeats of a layer's forward pass."""
        kernels = self.layer_forward()
        # Nothing needs the output of the last product: it is not an input of its gradient.
        return kernels[:-2] if self._problem.software.stops_recomputing_early else kernels

    def module(self, module: RecomputeModule) -> list[Kernel]:
        """The forward pass of a part of a layer, as far as recomputation repeats it."""
        if module is RecomputeModule.CORE_ATTENTION:
            # A fused kernel's own backward pass repeats the scores.
            flash = self._model.attention is AttentionKind.FLASH
            return [] if flash else self.core_forward()
        if module is RecomputeModule.NORMS:
            return [self._norm(), self._norm()]
        if module is RecomputeModule.FEED_FORWARD:
            kernels = self._feed_forward(self._matrices()[2:], self.tokens)
            return kernels[:-1] if self._problem.software.stops_recomputing_early else kernels
        router, *grouped = self._expert_matrices()
        experts = self._feed_forward(grouped, self.expert_rows)
        if module is RecomputeModule.EXPERT_ACTIVATION:
            return experts[1:2]
        return [self._product(*router), *self._routed(), *experts]

    def layer_backward(self) -> list[Kernel]:
        """The backward pass of a layer without recomputation."""
        model, value = self._model, self._value
        hidden = model.hidden
        kernels: list[Kernel] = []
        for m, n, k in (*self._matrices(), *self._expert_matrices()):
            kernels += [self._product(m, k, n), self._product(k, n, m)]
        outputs = (model.qkv_width + model.ffn_width) / self._tensor + 2 * hidden
        if model.biases:
            kernels.append(Elementwise(value * outputs * self.tokens, 4))
        per_value = value * ((5 if self._fused else 8) if model.gated_ffn else 3)
        if model.ffn_hidden:
            kernels.append(Elementwise(per_value * model.ffn_hidden / self._tensor * self.tokens))
        if model.experts is not None:
            inner = model.experts.ffn_hidden / self._tensor * self.expert_rows
            kernels.append(Elementwise(per_value * inner))
            # Gradients take the way of the rows back, and each row's weight has one of its own.
            weights = value * hidden * self.expert_rows
            kernels += [*self._routed(), Elementwise(weights)]
        # Two norms, their weights' gradients, and two sums with the gradient of the residual.
        kernels += [Elementwise((3 + 2 + 3) * value * hidden * self._rows, 3)] * 2
        if self._mask:
            kernels += [Elementwise((2 * value + 1) * hidden * self._rows)] * 2
        return [*kernels, *self.core_backward()]

    def _matrices(self) -> tuple[tuple[int, int, int], ...]:
        """Sizes `(m, n, k)` of the products that every token takes part in.

        Two of attention, then two of the feed-forward block if there is one.
        """
        model, tensor, tokens = self._model, self._tensor, self.tokens
        hidden = model.hidden
        attention = (
            (tokens, model.qkv_width // tensor, hidden),
            (tokens, hidden, model.attention_width // tensor),
        )
        if not model.ffn_hidden:
            return attention
        return (
            *attention,
            (tokens, model.ffn_width // tensor, hidden),
            (tokens, hidden, model.ffn_hidden // tensor),
        )

    # --- experts --------------------------------------------------------------------------------

    @property
    def expert_rows(self) -> float:
        """Tokens that the busiest rank's experts work on, each as often as it visits one."""
        experts = self._model.experts
        return 0.0 if experts is None else self.tokens * experts.active * experts.imbalance

    def _expert_matrices(self) -> tuple[tuple[int, int, int], ...]:
        """Sizes of the router's product and of two grouped products of all experts of a rank.

        A grouped product does the arithmetic of one product with as many rows, those of each
        expert filled up to whole tiles.
        """
        model, experts = self._model, self._model.experts
        if experts is None:
            return ()
        hidden, inner = model.hidden, experts.ffn_hidden // self._tensor
        held = experts.count // self._problem.parallelism.expert
        rows = held * math.ceil(self.expert_rows / held / _TILE_ROWS) * _TILE_ROWS
        gate = 2 if model.gated_ffn else 1
        return (
            (self.tokens, experts.count, hidden),
            (rows, gate * inner, hidden),
            (rows, hidden, inner),
        )

    def _routed(self) -> list[Kernel]:
        """Scores of all experts, rows sorted by expert, and put back in order."""
        model, experts = self._model, self._model.experts
        if experts is None:
            return []
        held = experts.count // self._problem.parallelism.expert
        row = self._value * model.hidden
        # Rows that arrive from several ranks are sorted once more by the experts of a rank.
        again = 2 * row * self.expert_rows if held > 1 and held < experts.count else 0.0
        moved = row * (self.tokens + self.expert_rows) + again
        scores = _SCORE_BYTES * self.tokens * experts.count
        return [Elementwise(scores, 3), Elementwise(moved, 2), Elementwise(moved, 2)]

    def _product(self, m: int, n: int, k: int) -> Product:
        """A product of a layer's matrices, the only ones in a precision below two bytes."""
        return Product(m, n, k, low=self._problem.precision.is_low)

    def _norm(self) -> Elementwise:
        return Elementwise(2 * self._value * self._model.hidden * self._rows)

    def _residual(self) -> Elementwise:
        """Adds a block's output, after dropout, to the residual."""
        moved, launches = 3 * self._value + self._mask, 1
        if self._mask and not self._fused:
            moved, launches = moved + 2 * self._value, 2
        return Elementwise(moved * self._model.hidden * self._rows, launches)

    def _before_core(self) -> list[Kernel]:
        return [self._norm(), self._product(*self._matrices()[0])]

    def _after_core(self) -> list[Kernel]:
        _, projection, *block = self._matrices()
        kernels: list[Kernel] = [self._product(*projection), self._residual(), self._norm()]
        if experts := self._expert_matrices():
            router, *grouped = experts
            kernels += [self._product(*router), *self._routed()]
            kernels += self._feed_forward(grouped, self.expert_rows)
        if block:
            kernels += self._feed_forward(block, self.tokens)
        return [*kernels, self._residual()]

    def _feed_forward(self, products: Sequence[tuple[int, int, int]], rows: float) -> list[Kernel]:
        """Two products with the activation between them."""
        first, second = products
        values = 2
        if self._model.gated_ffn:
            values = 3 if self._fused else 5
        activation = Elementwise(values * self._value * second[2] * rows)
        return [self._product(*first), activation, self._product(*second)]

    # --- the core of attention ------------------------------------------------------------------

    @property
    def _heads(self) -> int:
        """Heads of a rank over all samples of a micro-batch."""
        return self._samples * self._model.heads // self._tensor

    def _softmax(self, moved_bytes: int) -> tuple[int, int]:
        """Returns bytes of one score and kernels of a softmax with what is done next to it.

        Args:
            moved_bytes: Bytes that the softmax itself reads and writes for one score.
        """
        launches = 1
        if not self._fused:
            # Scaling and masking are separate kernels.
            moved_bytes, launches = moved_bytes + 4 * self._value, 3
        if self._mask:
            moved_bytes, launches = moved_bytes + 2 * self._value + 1, launches + 1
        return moved_bytes, launches

    def core_forward(self) -> list[Kernel]:
        """Scores, softmax and weighted values."""
        if self._model.attention is AttentionKind.FLASH:
            return [self._attention(backward=False)]
        queries, keys, dim = self._queries, self._model.sequence_length, self._model.head_dim
        scores = self._heads * queries * keys
        moved, launches = self._softmax(2 * self._value)
        # The heads' outputs are put side by side again.
        joined = 2 * self._value * self._heads * queries * dim
        return [
            Product(queries, keys, dim, self._heads),
            Elementwise(moved * scores, launches),
            Product(queries, dim, keys, self._heads),
            Elementwise(joined),
        ]

    def core_backward(self) -> list[Kernel]:
        """Gradients of the core."""
        if self._model.attention is AttentionKind.FLASH:
            return [self._attention(backward=True)]
        queries, keys, dim = self._queries, self._model.sequence_length, self._model.head_dim
        scores = self._heads * queries * keys
        moved, launches = self._softmax(3 * self._value)
        joined = 2 * self._value * self._heads * queries * dim
        return [
            Elementwise(joined),
            Product(keys, dim, queries, self._heads),
            Product(queries, keys, dim, self._heads),
            Elementwise(moved * scores, launches),
            Product(queries, dim, keys, self._heads),
            Product(keys, dim, queries, self._heads),
        ]

    def _attention(self, *, backward: bool) -> Attention:
        model = self._model
        return Attention(
            batch=self._samples,
            heads=model.heads // self._tensor,
            kv_heads=model.kv_heads // self._tensor,
            queries=self._queries,
            keys=model.sequence_length,
            dim=model.head_dim,
            causal=model.causal,
            backward=backward,
        )

    # --- before and after the layers ------------------------------------------------------------

    def embedding(self) -> Work:
        """Token and position vectors, with dropout."""
        model, value = self._model, self._value
        moved = 2 * value + (3 * value if model.learned_positions else 0)
        moved += (2 * value + 1) if self._mask else 0
        forward = Elementwise(moved * model.hidden * self._rows, 3)
        backward = Elementwise((moved + 2 * value) * model.hidden * self._rows, 4)
        return Work((forward,), (backward,))

    def head(self) -> Work:
        """Final norm, logits and loss; BERT's transform with its activation and norm besides."""
        model, value, tokens = self._model, self._value, self.tokens
        hidden, columns = model.hidden, -(-model.vocab // self._tensor)
        forward: list[Kernel] = [self._norm(), Product(tokens, columns, hidden)]
        backward: list[Kernel] = [
            Product(tokens, hidden, columns),
            Product(hidden, columns, tokens),
            Elementwise((3 + 2) * value * hidden * self._rows, 2),
        ]
        if model.family is TransformerFamily.BERT:
            forward += [Product(tokens, hidden, hidden), Elementwise(2 * value * hidden * tokens)]
            backward += [Product(tokens, hidden, hidden), Product(hidden, hidden, tokens)]
            backward.append(Elementwise(3 * value * hidden * tokens))
        logits = columns * tokens
        forward_bytes, backward_bytes, launches = _loss_bytes(self._problem.software.loss, value)
        forward.append(Elementwise(forward_bytes * logits, launches))
        backward.append(Elementwise(backward_bytes * logits, launches))
        return Work(tuple(forward), tuple(backward))


def _loss_bytes(loss: LossKernels, value: int) -> tuple[int, int, int]:
    """Bytes that a logit costs forward and backward, and kernels of each direction."""
    if loss is LossKernels.FUSED:
        return value, 2 * value, 1
    if loss is LossKernels.TORCH:
        # Cast, log-softmax; zeros for the gradient, its own gradient from both, cast back.
        return (value + 4) + 8, 4 + 12 + (4 + value), 3
    # Cast, maximum, difference, exponential, sum, quotient; a copy, a product, the cast back.
    return (value + 4) + 4 + 8 + 8 + 4 + 8, 8 + 8 + (4 + value), 6
