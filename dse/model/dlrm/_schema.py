"""YAML of a recommendation model: pydantic classes that expand to a `DlrmModel`."""

from __future__ import annotations

from dataclasses import replace
from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field, ValidationError, model_validator
from pydantic_core import PydanticCustomError

from dse.config import (
    Count,
    Document,
    NonNegativeFloat,
    Number,
    OneOrMany,
    PositiveFloat,
    StrictModel,
    WholeNumber,
)
from dse.indices import IdOrder, IndexDistribution, ReuseHistogram, Uniform, Zipf
from dse.machine import Precision
from dse.model._common import Name, Optimizer, Width
from dse.model.dlrm._architecture_schema import (
    ExpertsBlock,
    SequenceBlock,
    TaskBlock,
    TowerBlock,
    Widths,
    problem,
)
from dse.model.dlrm._consistency import (
    names_of_blocks,
    no_tables,
    pooled,
    repeated_names,
    table_names,
    without_dim,
    wrong_dense,
    wrong_indices,
    wrong_top,
)
from dse.model.dlrm._model import (
    DataType,
    DlrmModel,
    EmbeddingTable,
    IndexType,
    Interaction,
    InteractionKind,
    PoolingDistribution,
)
from dse.model.dlrm._statistics import STATISTICS, generate_tables
from dse.model.dlrm._traced_schema import TracedBlock

_MAX_TABLES = 100_000

Rows = Annotated[Count, Field(le=10**12)]


class UniformBlock(StrictModel):
    """Every row is equally likely.

    Attributes:
        kind: The distribution.
    """

    kind: Literal["uniform"]

    def to_distribution(self) -> IndexDistribution:
        """Returns the distribution."""
        return Uniform()


class ZipfBlock(StrictModel):
    """Popularity falls with the rank to the power of alpha.

    Attributes:
        kind: The distribution.
        ids: Whether row numbers follow popularity.
    """

    described_by: ClassVar = Zipf

    kind: Literal["zipf"]
    alpha: Annotated[PositiveFloat, Field(le=10)]
    ids: IdOrder = IdOrder.HASHED

    def to_distribution(self) -> IndexDistribution:
        """Returns the distribution."""
        return Zipf(self.alpha, ids=self.ids)


class ReuseHistogramBlock(StrictModel):
    """A measured histogram of reuse in one batch.

    Attributes:
        kind: The distribution.
        ids: Whether row numbers follow popularity.
    """

    described_by: ClassVar = ReuseHistogram

    kind: Literal["reuse_histogram"]
    row_share: Annotated[list[NonNegativeFloat], Field(min_length=1, max_length=1000)]
    lookup_share: Annotated[list[NonNegativeFloat], Field(min_length=1, max_length=1000)]
    mean_reuse: Annotated[Number, Field(ge=1)]
    touched_share: Annotated[Number, Field(gt=0, le=1)]
    ids: IdOrder = IdOrder.HASHED

    @model_validator(mode="after")
    def _check(self) -> ReuseHistogramBlock:
        if len(self.row_share) != len(self.lookup_share):
            raise PydanticCustomError(
                "histogram",
                f"expected as many shares of rows as of lookups, found {len(self.row_share)} and "
                f"{len(self.lookup_share)}",
            )
        both = zip(self.row_share, self.lookup_share, strict=True)
        if not any(rows > 0 and lookups > 0 for rows, lookups in both):
            raise PydanticCustomError("histogram", "expected at least one bin that is not empty")
        return self

    def to_distribution(self) -> IndexDistribution:
        """Returns the distribution."""
        return ReuseHistogram(
            tuple(self.row_share),
            tuple(self.lookup_share),
            self.mean_reuse,
            self.touched_share,
            ids=self.ids,
        )


IndicesBlock = Annotated[
    UniformBlock | ZipfBlock | ReuseHistogramBlock, Field(discriminator="kind")
]


Pooling = Annotated[
    list[Annotated[PositiveFloat, Field(le=10**6)]],
    Field(min_length=1, max_length=10_000),
    OneOrMany(),
]


BagShare = Annotated[PositiveFloat, Field(le=1000)]

#: Keys that tables cannot have of their own: a batch has one type of indices and of outputs.
_OF_ALL_TABLES = frozenset(("output_data_type", "index_type"))


class TableDefaults(StrictModel):
    """Values for tables that do not give their own.

    Attributes:
        pooling: Mean lookups of a sample: one number, or one for each feature that looks up the
            table.
    """

    described_by: ClassVar = EmbeddingTable

    dim: Width | None = None
    pooling: Pooling = [1.0]
    pooled: bool = True
    pooling_distribution: PoolingDistribution = PoolingDistribution.FIXED
    indices: IndicesBlock = UniformBlock(kind="uniform")
    data_type: DataType = DataType.FP32
    weighted: bool = False
    bags_per_sample: BagShare = 1.0
    output_data_type: Literal["fp32", "fp16", "bf16"] = "fp32"
    index_type: IndexType = IndexType.INT64


class TableBlock(StrictModel):
    """One embedding table, or `count` equal ones.

    Attributes:
        name: Name of the table; `count` tables get numbers.
        rows: Rows of one table.
        count: How many tables are like this.
    """

    described_by: ClassVar = TableDefaults

    name: Name
    rows: Rows
    dim: Width | None = None
    count: Annotated[Count, Field(le=_MAX_TABLES)] = 1
    pooling: Pooling | None = None
    pooled: bool | None = None
    pooling_distribution: PoolingDistribution | None = None
    indices: IndicesBlock | None = None
    data_type: DataType | None = None
    weighted: bool | None = None
    bags_per_sample: BagShare | None = None

    @model_validator(mode="before")
    @classmethod
    def _not_of_one_table(cls, value: object) -> object:
        if isinstance(value, dict):
            for name in sorted(_OF_ALL_TABLES & value.keys()):
                raise PydanticCustomError(
                    "of_all_tables",
                    "`{name}` is the same for all tables of a batch; give it in `table_defaults`",
                    {"name": name},
                )
        return value


class GenerateBlock(StrictModel):
    """Tables drawn from published statistics.

    Attributes:
        statistics: Which statistics.
        count: Number of tables.
        seed: Seed of the draw.
        data_type: Type of a weight.
    """

    statistics: Literal["meta2021", "meta2022"]
    count: Annotated[Count, Field(le=_MAX_TABLES)]
    seed: Annotated[WholeNumber, Field(ge=0, lt=2**64)]
    data_type: DataType = DataType.FP16


class InteractionBlock(StrictModel):
    """The interaction layer."""

    described_by: ClassVar = Interaction

    kind: InteractionKind
    layers: Annotated[Count, Field(le=1000)] | None = None
    low_rank: Width | None = None
    stride: Width = 1

    @model_validator(mode="after")
    def _check(self) -> InteractionBlock:
        low_rank = self.kind is InteractionKind.DCNV2_LOW_RANK
        if low_rank and (self.layers is None or self.low_rank is None):
            raise PydanticCustomError(
                "interaction", "expected `layers` and `low_rank` for dcnv2_low_rank"
            )
        if self.low_rank and not low_rank:
            raise PydanticCustomError("interaction", "`low_rank` belongs to dcnv2_low_rank only")
        full = self.kind is InteractionKind.DCNV2
        if full and self.layers is None:
            raise PydanticCustomError("interaction", "expected `layers` for dcnv2")
        if self.layers and not (low_rank or full):
            raise PydanticCustomError(
                "interaction", "`layers` belongs to dcnv2 and dcnv2_low_rank only"
            )
        if self.stride > 1 and self.kind is not InteractionKind.CONCAT:
            raise PydanticCustomError("interaction", "`stride` belongs to concat only")
        return self


class OptimizerBlock(StrictModel):
    """Update rules.

    Attributes:
        dense: Of the dense part.
        sparse: Of the tables.
    """

    dense: Optimizer
    sparse: Optimizer

    @model_validator(mode="after")
    def _check(self) -> OptimizerBlock:
        if self.dense.of_tables_only:
            raise PydanticCustomError(
                "optimizer",
                f"`dense: {self.dense.value}` is for embedding tables; use `sgd`, `adagrad` or "
                "`adam`",
            )
        return self


class ModelDocument(Document):
    """A recommendation model and its training recipe.

    Attributes:
        kind: `dlrm` for recommendation models.
        aliases: Other names.
        optimizer: Update rules.
        table_defaults: Values for tables that do not give their own.
        generate: Tables drawn from published statistics, instead of `tables`.
    """

    called: ClassVar = "a model"
    described_by: ClassVar = DlrmModel

    kind: Literal["dlrm"]
    name: Name
    description: str = ""
    aliases: list[Name] = []
    source: str
    dense_features: Annotated[WholeNumber, Field(ge=0, le=2**24)]
    bottom_mlp: Widths = []
    sequence: SequenceBlock | None = None
    towers: Annotated[list[TowerBlock], Field(max_length=1000)] = []
    interaction: InteractionBlock | None = None
    top_mlp: Widths = []
    experts: ExpertsBlock | None = None
    tasks: Annotated[list[TaskBlock], Field(max_length=1000)] = []
    traced: TracedBlock | None = None
    precision: Precision = Precision.TF32
    optimizer: OptimizerBlock
    global_batch_size: Count
    table_defaults: TableDefaults = TableDefaults()
    tables: Annotated[list[TableBlock], Field(max_length=_MAX_TABLES)] = []
    generate: GenerateBlock | None = None

    @model_validator(mode="after")
    def _check(self) -> ModelDocument:
        if sum(block.count for block in self.tables) > _MAX_TABLES:
            # Expanding the names would take the memory that the limit is there to protect.
            problems = [problem(("tables",), f"expected at most {_MAX_TABLES} tables in total")]
        else:
            names = names_of_blocks(self.tables)
            problems = [
                *no_tables(self),
                *repeated_names(self),
                *without_dim(self),
                *wrong_indices(self),
                *wrong_dense(self, names),
            ]
            problems += [] if problems or self.traced else wrong_top(self)
        if problems:
            # A ValidationError keeps the place of each problem.
            raise ValidationError.from_exception_data(type(self).__name__, problems)
        return self

    def to_model(self) -> DlrmModel:
        """Returns the model as plain values."""
        names = names_of_blocks(self.tables)
        interaction = self.interaction or InteractionBlock(kind=InteractionKind.CONCAT)
        return DlrmModel(
            name=self.name,
            description=self.description,
            source=self.source,
            dense_features=self.dense_features,
            bottom_mlp=tuple(self.bottom_mlp),
            interaction=Interaction(
                interaction.kind,
                interaction.layers or 0,
                interaction.low_rank or 0,
                interaction.stride,
            ),
            top_mlp=tuple(self.top_mlp),
            tables=self._expanded(),
            precision=self.precision,
            dense_optimizer=self.optimizer.dense,
            sparse_optimizer=self.optimizer.sparse,
            global_batch_size=self.global_batch_size,
            towers=tuple(tower.to_tower(names) for tower in self.towers),
            experts=self.experts.to_experts() if self.experts else None,
            tasks=tuple(task.to_task() for task in self.tasks),
            sequence=self.sequence.to_sequence() if self.sequence else None,
            traced=self.traced.to_traced() if self.traced else None,
        )

    def _expanded(self) -> tuple[EmbeddingTable, ...]:
        if self.generate is not None:
            generated = generate_tables(
                STATISTICS[self.generate.statistics],
                self.generate.count,
                self.generate.seed,
                self.generate.data_type,
            )
            return tuple(replace(table, **self._of_all_tables()) for table in generated)
        return tuple(table for block in self.tables for table in self._tables_of(block))

    def _of_all_tables(self) -> dict[str, Any]:
        """Returns what a table is created with whatever its block says."""
        return {
            "output_data_type": DataType(self.table_defaults.output_data_type),
            "index_type": self.table_defaults.index_type,
        }

    def _tables_of(self, block: TableBlock) -> list[EmbeddingTable]:
        defaults = self.table_defaults
        indices = block.indices or defaults.indices
        return [
            EmbeddingTable(
                name=name,
                rows=block.rows,
                dim=block.dim or defaults.dim or 0,
                pooling_factors=tuple(block.pooling or defaults.pooling),
                pooling_distribution=block.pooling_distribution or defaults.pooling_distribution,
                indices=indices.to_distribution(),
                data_type=block.data_type or defaults.data_type,
                weighted=defaults.weighted if block.weighted is None else block.weighted,
                bags_per_sample=block.bags_per_sample or defaults.bags_per_sample,
                **self._of_all_tables(),
                pooled=pooled(self, block),
            )
            for name in table_names(block)
        ]
