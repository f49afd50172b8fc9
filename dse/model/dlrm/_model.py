"""Deep-learning recommendation model as plain values."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from dse.indices import IndexDistribution
    from dse.machine import Precision
    from dse.model._common import Optimizer
    from dse.model.dlrm._architecture import Experts, SequenceLayers, Task, Tower
    from dse.model.dlrm._traced import TracedDense


#: Standard deviation of the logarithm of log-normal lengths.
LENGTH_SPREAD = 1.0


#: Bytes of the weight of a lookup.
_WEIGHT_BYTES = 4
#: Scale and offset of a row, four bytes each.
_SCALE_BYTES = 8


class DataType(StrEnum):
    """Storage type of embedding rows."""

    FP32 = "fp32"
    FP16 = "fp16"
    BF16 = "bf16"
    FP8 = "fp8"
    INT8 = "int8"

    @property
    def value_bytes(self) -> int:
        """Bytes of one stored value."""
        return {"fp32": 4, "fp16": 2, "bf16": 2, "fp8": 1, "int8": 1}[self.value]

    def row_bytes(self, columns: int) -> int:
        """Returns the bytes of a row, with its scale and offset where it has some, as in FBGEMM.

        Args:
            columns: Columns of the table, or of a shard of it.
        """
        return columns * self.value_bytes + (_SCALE_BYTES if self is DataType.INT8 else 0)


class IndexType(StrEnum):
    """Type of row numbers in the input."""

    INT64 = "int64"
    INT32 = "int32"

    @property
    def value_bytes(self) -> int:
        """Bytes of one index."""
        return {"int64": 8, "int32": 4}[self.value]


class InteractionKind(StrEnum):
    """How dense and sparse features are combined."""

    DOT = "dot"
    DCNV2 = "dcnv2"
    DCNV2_LOW_RANK = "dcnv2_low_rank"
    FM = "fm"
    CONCAT = "concat"


class PoolingDistribution(StrEnum):
    """How the number of lookups of one bag varies around its mean."""

    FIXED = "fixed"
    POISSON = "poisson"
    LOGNORMAL = "lognormal"


@dataclass(frozen=True, slots=True)
class Interaction:
    """The interaction layer.

    Attributes:
        kind: Which interaction.
        layers: Cross layers (DCNv2 only).
        low_rank: Inner width of a cross layer (low-rank DCNv2 only).
        stride: Average-pooling stride over the concatenated features (concat only; 1 = none).
    """

    kind: InteractionKind
    layers: int = 0
    low_rank: int = 0
    stride: int = 1


@dataclass(frozen=True, slots=True)
class EmbeddingTable:
    """One embedding table and the features that look it up.

    Attributes:
        name: Unique in its model.
        rows: Number of rows.
        dim: Columns of a row.
        pooling_factors: Mean lookups of a bag, one entry per feature that shares the table; each
            feature yields one pooled vector of `dim` values a sample.
        pooled: Whether a bag's rows are summed; otherwise every lookup yields a vector (TorchRec's
            `EmbeddingCollection`), a position of the model's sequence.
        pooling_distribution: How a bag's length varies around its mean.
        indices: Which rows are drawn.
        data_type: Storage type.
        weighted: Whether each lookup comes with a weight, of four bytes, by which its row is
            multiplied.
        bags_per_sample: Bags of each feature for one sample: less than 1 where samples share bags,
            as those of one user do (TorchRec's variable batch per feature). Pooling factors are
            those of a bag.
        output_data_type: Type of pooled values and their gradients; the same for all tables.
        index_type: Type of indices; the same for all tables.
    """

    name: str
    rows: int
    dim: int
    pooling_factors: tuple[float, ...]
    pooling_distribution: PoolingDistribution
    indices: IndexDistribution
    data_type: DataType
    weighted: bool = False
    bags_per_sample: float = 1.0
    output_data_type: DataType = DataType.FP32
    index_type: IndexType = IndexType.INT64
    pooled: bool = True

    @property
    def pooling(self) -> tuple[float, ...]:
        """Mean lookups of a bag of each feature, under the name that it has in files."""
        return self.pooling_factors

    @property
    def lookups_per_sample(self) -> float:
        """Mean lookups a sample over all features of the table."""
        return sum(self.pooling_factors) * self.bags_per_sample

    @property
    def feature_count(self) -> int:
        """Features that read the table, each a vector of every sample."""
        return len(self.pooling_factors)

    @property
    def vectors_per_sample(self) -> float:
        """Vectors a sample that the dense part reads: of bags, or of single lookups."""
        return self.feature_count if self.pooled else self.lookups_per_sample

    @property
    def bag_count(self) -> float:
        """Bags that are looked up for a sample, over all features of the table."""
        return self.feature_count * self.bags_per_sample

    @property
    def lookup_bytes(self) -> int:
        """Bytes of one lookup in the input: its index, and its weight if it has one."""
        return self.index_type.value_bytes + (_WEIGHT_BYTES if self.weighted else 0)

    @property
    def weight_bytes(self) -> int:
        """Bytes of all rows."""
        return self.rows * self.data_type.row_bytes(self.dim)


@dataclass(frozen=True, slots=True)
class DlrmModel:
    """A recommendation model with its training recipe.

    Attributes:
        name: Name of the model.
        description: One line for listings.
        source: Where its figures come from.
        dense_features: Width of the dense input; 0 without one.
        bottom_mlp: Output widths of the bottom MLP's layers; empty without one.
        interaction: The interaction layer; the vectors side by side if the dense part is traced.
        top_mlp: Output widths of the top MLP's layers, the output layer included; with tasks, of
            the layers that these share, which may be none.
        tables: The embedding tables.
        precision: Default arithmetic.
        dense_optimizer: Update rule of the dense part.
        sparse_optimizer: Update rule of the tables.
        global_batch_size: Samples of one iteration over all ranks, in the recipe.
        towers: MLPs over the vectors of some tables, whose outputs take their place.
        experts: Experts between the shared layers and the tasks; None without.
        tasks: What is predicted, each with its own head and loss; empty if the top MLP ends with
            the outputs.
        sequence: Attention over the vectors of tables without pooling; None without such tables.
        traced: The dense part operator by operator, which takes the place of MLPs, interaction,
            towers, experts, tasks and sequence; None if these describe it.
    """

    name: str
    description: str
    source: str
    dense_features: int
    bottom_mlp: tuple[int, ...]
    interaction: Interaction
    top_mlp: tuple[int, ...]
    tables: tuple[EmbeddingTable, ...]
    precision: Precision
    dense_optimizer: Optimizer
    sparse_optimizer: Optimizer
    global_batch_size: int
    towers: tuple[Tower, ...] = ()
    experts: Experts | None = None
    tasks: tuple[Task, ...] = ()
    sequence: SequenceLayers | None = None
    traced: TracedDense | None = None

    def __hash__(self) -> int:
        # Many caches have a model in their keys; few models of one name are in use at a time.
        return hash((self.name, len(self.tables)))

    @property
    def outputs(self) -> int:
        """Predictions a sample, each with a label."""
        if self.traced:
            return self.traced.outputs
        if self.tasks:
            at_once = sum(task.top_mlp[-1] for task in self.tasks)
        else:
            at_once = self.top_mlp[-1] if self.top_mlp else 1
        return at_once * self.predicted_positions

    @property
    def predicted_positions(self) -> int:
        """How often the layers behind the sequence run for a sample."""
        return self.sequence.predictions if self.sequence else 1

    def __repr__(self) -> str:
        size_gib = self.embedding_bytes / 2**30
        return f"DlrmModel({self.name}: {len(self.tables)} tables, {size_gib:.3g} GiB)"

    @property
    def output_data_type(self) -> DataType:
        """Type of pooled values and their gradients."""
        return self.tables[0].output_data_type if self.tables else DataType.FP32

    @property
    def embedding_bytes(self) -> int:
        """Bytes of all tables' weights."""
        return sum(table.weight_bytes for table in self.tables)
