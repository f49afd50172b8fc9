"""Measurements as arrays, one entry per row, in SI units."""

from __future__ import annotations

from dataclasses import dataclass, field, fields, replace
from typing import TYPE_CHECKING, Any, Self, TypeAlias

import numpy as np

from dse._io.tables import Origin

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    Floats: TypeAlias = NDArray[np.float64]
    Integers: TypeAlias = NDArray[np.int64]
    Words: TypeAlias = NDArray[np.str_]


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class _Points:
    """Times of an operation; every array has shape `(points,)`.

    Attributes:
        time_s: Duration.
        source_rows: Line or row of the file, from 1.
        origin: The file.
        notes: What a reader of the result should know: what was left out or assumed.
    """

    time_s: Floats
    source_rows: Integers
    origin: Origin = field(default_factory=Origin)
    notes: tuple[str, ...] = ()

    def __len__(self) -> int:
        return len(self.time_s)

    def select(self, chosen: NDArray[Any]) -> Self:
        """Returns the points of a mask or of indices."""
        names = {item.name for item in fields(self)} - {"origin", "notes"}
        return replace(self, **{name: getattr(self, name)[chosen] for name in names})


@dataclass(frozen=True, slots=True, eq=False)
class GemmSamples(_Points):
    """Times of matrix multiplications `(m, k) × (k, n)`.

    Attributes:
        m: Rows of the result.
        n: Columns of the result.
        k: Inner size.
        precision: Arithmetic, one of `GEMM_PRECISIONS`.
    """

    m: Integers
    n: Integers
    k: Integers
    precision: Words


@dataclass(frozen=True, slots=True, eq=False)
class CollectiveSamples(_Points):
    """Times of collectives.

    Attributes:
        op: Collective, one of `COLLECTIVE_OPS`.
        ranks: Number of ranks.
        nodes: Nodes that the ranks are on; 0 where the file does not say.
        size_bytes: Size as nccl-tests counts it: for all-gather and reduce-scatter the total over
            all ranks, for the others the buffer of one rank.
        dtype: Type of the elements by our name, as written where we have none; empty if unknown.
        nccl: Version of the communication library; empty if unknown.
    """

    op: Words
    ranks: Integers
    nodes: Integers
    size_bytes: Integers
    dtype: Words
    nccl: Words


def joined(measured: Sequence[CollectiveSamples]) -> CollectiveSamples:
    """Returns the collectives of several files in one; their rows keep no file unless it is one.

    A note says where several versions of the communication library are among them.

    Args:
        measured: At least one.
    """
    first, *others = measured
    names = {item.name for item in fields(first)} - {"origin", "notes"}
    arrays = {name: np.concatenate([getattr(one, name) for one in measured]) for name in names}
    notes = dict.fromkeys(note for one in measured for note in one.notes)
    versions = sorted({version for version in arrays["nccl"].tolist() if version})
    if len(versions) > 1:
        notes[f"versions of NCCL that are fitted together: {', '.join(versions)}"] = None
    origin = Origin() if others else first.origin
    return replace(first, **arrays, origin=origin, notes=tuple(notes))


@dataclass(frozen=True, slots=True, eq=False)
class EmbeddingSamples(_Points):
    """Times of pooled embedding lookups in one table.

    Attributes:
        op: `forward` or `backward` (update included).
        rows: Rows of the table.
        dim: Values of one row.
        batch: Bags.
        pooling: Lookups of one bag on average.
        value_bytes: Bytes of one value of the table.
        alpha: Exponent of the Zipf distribution of the looked-up rows; 0 is uniform.
    """

    op: Words
    rows: Integers
    dim: Integers
    batch: Integers
    pooling: Floats
    value_bytes: Integers
    alpha: Floats


@dataclass(frozen=True, slots=True, eq=False)
class AttentionSamples(_Points):
    """Times of causal forward attention.

    Attributes:
        batch: Sequences.
        heads: Heads of queries.
        kv_heads: Heads of keys and values.
        queries: Queries of a sequence.
        keys: Keys of a sequence.
        dim: Columns of a head.
    """

    batch: Integers
    heads: Integers
    kv_heads: Integers
    queries: Integers
    keys: Integers
    dim: Integers


@dataclass(frozen=True, slots=True, eq=False)
class ExpertSamples(_Points):
    """Times of blocks of gated experts in half precision.

    Attributes:
        tokens: Tokens with a row on the device, at most.
        rows: Rows of all experts of the device: tokens, once for each of its experts.
        experts: Experts of the device.
        hidden: Columns of a token.
        inner: Columns inside an expert.
    """

    tokens: Floats
    rows: Floats
    experts: Floats
    hidden: Integers
    inner: Floats


@dataclass(frozen=True, slots=True, eq=False)
class ExchangeSamples(_Points):
    """Times of sending tokens to the ranks of their experts.

    Attributes:
        tokens: Tokens of a rank.
        hidden: Columns of a token.
        copies: Ranks that a token is sent to, on average over even routing.
        ranks: Ranks that exchange.
    """

    tokens: Integers
    hidden: Integers
    copies: Floats
    ranks: Integers


Samples: TypeAlias = (
    GemmSamples
    | CollectiveSamples
    | EmbeddingSamples
    | AttentionSamples
    | ExpertSamples
    | ExchangeSamples
)
