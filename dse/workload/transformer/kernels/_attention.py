"""The kernels of attention of one layer on one rank: its products, and its core.

Latent attention (DeepSeek-V2, arXiv 2405.04434, § 2.1) projects down to latent columns, norms
them and projects up to heads. As in Megatron-Core the projections down are on all tensor-parallel
ranks, which share the tokens there if they are sequence-parallel.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from dse.model import AttentionKind
from dse.workload.transformer._types import ContextExchange, RotaryKernels
from dse.workload.transformer.kernels._operators import Attention, Elementwise, Product

if TYPE_CHECKING:
    from dse.workload.transformer._job import TransformerJob
    from dse.workload.transformer.kernels._operators import Kernel

#: Bytes that a norm moves for each byte of its input, and kernels: forward, and backward with the
#: gradient of its weights.
_NORM = (2, 1)
_NORM_BACKWARD = (3 + 2, 2)


class AttentionWork:
    """Counts the kernels of attention of one rank for one micro-batch.

    Args:
        problem: What is trained, where and how; its layers are all alike.
    """

    def __init__(self, problem: TransformerJob) -> None:
        self._model = problem.model
        parallelism = problem.parallelism
        self._tensor = parallelism.tensor
        self._samples = parallelism.micro_batch_size
        ulysses = parallelism.context_exchange is ContextExchange.ULYSSES
        #: Context-parallel ranks that share the heads in the core, with whole sequences each.
        self._head_share = parallelism.context if ulysses else 1
        self._core_queries = self._model.sequence_length // parallelism.context * self._head_share
        self._tokens = problem.micro_batch_tokens
        self._rows = self._tokens // parallelism.sequence_share
        self._value = problem.precision.value_bytes
        self._mask = 1 if self._model.dropout else 0
        self._fused = problem.software.fused_elementwise
        self._softmax_group = problem.software.softmax_group
        rotates = not self._model.learned_positions and self._model.latent is None
        self._rotary = problem.software.rotary if rotates else RotaryKernels.NONE

    # --- products -------------------------------------------------------------------------------

    def inputs(self) -> tuple[tuple[int, int, int], ...]:
        """Returns sizes `(m, n, k)` of the products that make queries, keys and values."""
        model, tensor, hidden = self._model, self._tensor, self._model.hidden
        latent = model.latent
        if latent is None:
            return ((self._tokens, model.qkv_width_of(tensor), hidden),)
        heads = model.heads // tensor
        down = [(self._rows, latent.query_rank, hidden)] if latent.query_rank else []
        down.append((self._rows, latent.kv_rank + latent.rope_dim, hidden))
        keys_values = heads * (model.head_dim - latent.rope_dim + latent.value_dim)
        return (
            *down,
            (self._tokens, heads * model.head_dim, latent.query_rank or hidden),
            (self._tokens, keys_values, latent.kv_rank),
        )

    def keys(self) -> tuple[int, int, int]:
        """Returns the sizes of a product that makes keys alone, without latent columns."""
        columns = self._model.key_heads(self._tensor) * self._model.head_dim
        return self._tokens, columns, self._model.hidden

    @property
    def products(self) -> int:
        """Products of attention's matrices in a forward pass."""
        return len(self.inputs()) + 1

    def output(self) -> tuple[int, int, int]:
        """Returns the sizes of the product that brings all heads together."""
        return self._tokens, self._model.hidden, self._model.attention_width // self._tensor

    def between(self, *, backward: bool) -> list[Kernel]:
        """Returns the kernels between the products of latent attention.

        Norms of the latent columns; columns with the position are rotated, and keys and values are
        concatenated by head.
        """
        model, latent = self._model, self._model.latent
        if latent is None:
            return []
        moved, launches = _NORM_BACKWARD if backward else _NORM
        norms = [rank for rank in (latent.query_rank, latent.kv_rank) if rank]
        by_head = 2 * latent.rope_dim + 2 * (model.head_dim + latent.value_dim)
        heads = model.heads // self._tensor
        return [
            Elementwise(self._value * moved * sum(norms) * self._rows, launches * len(norms)),
            Elementwise(self._value * by_head * heads * self._tokens, 2),
        ]

    def positions(self, *, backward: bool) -> list[Kernel]:
        """Returns the kernels that rotate positions into queries and keys, with their copies.

        Counted in the code of Megatron-Core (`get_query_key_value_tensors`), torchtitan
        (`apply_rotary_emb`, `repeat_kv`) and nanotron (`CausalSelfAttention`). The framework's
        calls for copies and casts are among those of each kernel.
        """
        model, value = self._model, self._value
        queries = model.heads // self._tensor * model.head_dim
        keys = model.key_heads(self._tensor) * model.head_dim
        both, every = 2 * value * (queries + keys), 2 * value * (queries + 2 * keys)
        repeated = both if keys < queries else 0
        match self._rotary:
            case RotaryKernels.NONE:
                return []
            case RotaryKernels.FUSED:
                # Values, and queries of shared keys, are copied out of what the product made;
                # gradients of all three are joined again.
                copied = 2 * value * (keys + (queries if repeated else 0))
                moved = both + (every if backward else copied)
            case RotaryKernels.SEPARATE:
                # A cast to FP32, a complex product, and the cast back; keys and values repeated.
                moved = (2 * (value + 4) + 8) * (queries + keys) + 2 * repeated
            case RotaryKernels.COPIED:
                # Samples are brought together, and the output apart. Keys and values are put side
                # by side and keys rotated there; backward, gradients are joined twice.
                around = 2 * value * queries + (2 * every if backward else every)
                moved = both + around + 2 * value * keys * (2 if backward else 4)
        return [Elementwise(float(moved * self._tokens), 2, copies=True)]

    # --- core -----------------------------------------------------------------------------------

    @property
    def _heads(self) -> int:
        """Heads of a rank over all samples of a micro-batch."""
        return self._samples * self._model.heads // (self._tensor * self._head_share)

    def _softmax(self, *, backward: bool) -> list[Kernel]:
        """Returns the kernels of a softmax with what is done next to it."""
        scores = float(self._heads * self._core_queries * self._model.sequence_length)
        value = self._value
        kernels: list[Kernel] = []
        moved, launches = (3 if backward else 2) * value, 1
        if not self._fused:
            # Scaling and masking are separate kernels.
            moved, launches = moved + 4 * value, 3
        elif self._heads % self._softmax_group:
            # A cast to FP32, scaling, masking in place, the softmax, and the cast back.
            separate = 2 * (value + 4) + 8 + 9 + (12 if backward else 8)
            kernels.append(Elementwise(separate * scores, 5, separate=True))
            moved, launches = 0, 0
        if self._mask:
            moved, launches = moved + 2 * value + 1, launches + 1
        if launches:
            kernels.append(Elementwise(moved * scores, launches))
        return kernels

    def core_forward(self) -> list[Kernel]:
        """Returns scores, softmax and weighted values."""
        if self._model.attention is AttentionKind.FLASH:
            return [self._attention(backward=False)]
        queries, keys, dim = self._core_queries, self._model.sequence_length, self._model.head_dim
        # The heads' outputs are concatenated again.
        joined = 2 * self._value * self._heads * queries * dim
        return [
            Product(queries, keys, dim, self._heads),
            *self._softmax(backward=False),
            Product(queries, dim, keys, self._heads),
            Elementwise(joined),
        ]

    def core_backward(self) -> list[Kernel]:
        """Returns the gradients of the core."""
        if self._model.attention is AttentionKind.FLASH:
            return [self._attention(backward=True)]
        queries, keys, dim = self._core_queries, self._model.sequence_length, self._model.head_dim
        joined = 2 * self._value * self._heads * queries * dim
        return [
            Elementwise(joined),
            Product(keys, dim, queries, self._heads),
            Product(queries, keys, dim, self._heads),
            *self._softmax(backward=True),
            Product(queries, dim, keys, self._heads),
            Product(keys, dim, queries, self._heads),
        ]

    def _attention(self, *, backward: bool) -> Attention:
        model = self._model
        return Attention(
            batch=self._samples,
            heads=model.heads // (self._tensor * self._head_share),
            kv_heads=model.key_heads(self._tensor) // self._head_share,
            queries=self._core_queries,
            keys=model.sequence_length,
            dim=model.head_dim,
            value_dim=model.value_dim,
            window=model.window_tokens,
            causal=model.causal,
            backward=backward,
        )
