"""YAML of a recommendation model: pydantic classes that expand to a `DlrmModel`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Literal

from pydantic import BeforeValidator, Field, ValidationError, field_validator, model_validator
from pydantic_core import InitErrorDetails, PydanticCustomError

from dse.config import Count, Document, NonNegativeFloat, PositiveFloat, StrictModel
from dse.indices import IndexDistribution, ReuseHistogram, Uniform, Zipf
from dse.machine import Precision
from dse.model._common import Name, Optimizer, Width
from dse.model.dlrm._model import (
    DataType,
    DlrmModel,
    EmbeddingTable,
    Interaction,
    InteractionKind,
    PoolingDistribution,
)
from dse.model.dlrm._statistics import STATISTICS, generate_tables

if TYPE_CHECKING:
    from collections.abc import Iterator

_MAX_TABLES = 100_000

Rows = Annotated[Count, Field(le=10**12)]


class UniformBlock(StrictModel):
    """Every row is equally likely."""

    kind: Literal["uniform"]

    def to_distribution(self) -> IndexDistribution:
        """Returns the distribution."""
        return Uniform()


class ZipfBlock(StrictModel):
    """Popularity falls with the rank to the power of alpha."""

    kind: Literal["zipf"]
    alpha: Annotated[PositiveFloat, Field(le=10)]

    def to_distribution(self) -> IndexDistribution:
        """Returns the distribution."""
        return Zipf(self.alpha)


class ReuseHistogramBlock(StrictModel):
    """A measured histogram of reuse in one batch."""

    kind: Literal["reuse_histogram"]
    row_share: Annotated[list[NonNegativeFloat], Field(min_length=1, max_length=1000)]
    lookup_share: Annotated[list[NonNegativeFloat], Field(min_length=1, max_length=1000)]
    mean_reuse: Annotated[float, Field(ge=1)]
    touched_share: Annotated[float, Field(gt=0, le=1)]

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
            tuple(self.row_share), tuple(self.lookup_share), self.mean_reuse, self.touched_share
        )


IndicesBlock = Annotated[
    UniformBlock | ZipfBlock | ReuseHistogramBlock, Field(discriminator="kind")
]


def _as_list(value: object) -> object:
    return value if isinstance(value, list) else [value]


Pooling = Annotated[
    list[Annotated[PositiveFloat, Field(le=10**6)]],
    Field(min_length=1, max_length=10_000),
    BeforeValidator(_as_list),
]


class TableDefaults(StrictModel):
    """Values for tables that do not give their own."""

    dim: Width | None = None
    pooling: Pooling = [1.0]
    pooling_distribution: PoolingDistribution = PoolingDistribution.FIXED
    indices: IndicesBlock = UniformBlock(kind="uniform")
    data_type: DataType = DataType.FP32


class TableBlock(StrictModel):
    """One embedding table, or `count` equal ones."""

    name: Name
    rows: Rows
    dim: Width | None = None
    count: Annotated[Count, Field(le=_MAX_TABLES)] = 1
    pooling: Pooling | None = None
    pooling_distribution: PoolingDistribution | None = None
    indices: IndicesBlock | None = None
    data_type: DataType | None = None


class GenerateBlock(StrictModel):
    """Tables drawn from published statistics."""

    statistics: Literal["meta2021", "meta2022"]
    count: Annotated[Count, Field(le=_MAX_TABLES)]
    seed: Annotated[int, Field(ge=0, lt=2**64)]
    data_type: DataType = DataType.FP16


class InteractionBlock(StrictModel):
    """The interaction layer."""

    kind: InteractionKind
    layers: Width | None = None
    low_rank: Width | None = None
    stride: Width = 1

    @model_validator(mode="after")
    def _check(self) -> InteractionBlock:
        cross = self.kind is InteractionKind.DCNV2_LOW_RANK
        if cross and (self.layers is None or self.low_rank is None):
            raise PydanticCustomError(
                "interaction", "expected `layers` and `low_rank` for dcnv2_low_rank"
            )
        if not cross and (self.layers or self.low_rank):
            raise PydanticCustomError(
                "interaction", "`layers` and `low_rank` belong to dcnv2_low_rank only"
            )
        if self.stride > 1 and self.kind is not InteractionKind.CONCAT:
            raise PydanticCustomError("interaction", "`stride` belongs to concat only")
        return self


class OptimizerBlock(StrictModel):
    """Update rules."""

    dense: Optimizer
    sparse: Optimizer


class ModelDocument(Document):
    """A recommendation model and its training recipe."""

    kind: Literal["dlrm"]
    name: Name
    description: str = ""
    aliases: list[Name] = []
    source: str
    dense_features: Width
    bottom_mlp: Annotated[list[Width], Field(max_length=1000)] = []
    interaction: InteractionBlock
    top_mlp: Annotated[list[Width], Field(min_length=1, max_length=1000)]
    precision: Precision = Precision.TF32
    optimizer: OptimizerBlock
    global_batch_size: Count
    table_defaults: TableDefaults = TableDefaults()
    tables: Annotated[list[TableBlock], Field(max_length=_MAX_TABLES)] = []
    generate: GenerateBlock | None = None

    @field_validator("top_mlp")
    @classmethod
    def _one_output(cls, widths: list[int]) -> list[int]:
        if widths[-1] != 1:
            raise PydanticCustomError(
                "top_mlp",
                f"expected a final width of 1 (the click probability), found {widths[-1]}; "
                "write the output layer too",
            )
        return widths

    @model_validator(mode="after")
    def _check(self) -> ModelDocument:
        if sum(block.count for block in self.tables) > _MAX_TABLES:
            # Expanding the names would take the memory that the limit is there to protect.
            problems = [_problem(("tables",), f"expected at most {_MAX_TABLES} tables in total")]
        else:
            problems = [*self._no_tables(), *self._repeated_names(), *self._wrong_dims()]
        if problems:
            # A ValidationError keeps the place of each problem.
            raise ValidationError.from_exception_data(type(self).__name__, problems)
        return self

    def _no_tables(self) -> Iterator[InitErrorDetails]:
        if bool(self.tables) == (self.generate is not None):
            found = "both" if self.tables else "neither"
            yield _problem(
                ("generate",) if self.tables else ("tables",),
                f"expected exactly one of `tables` and `generate`, found {found}",
            )

    def _repeated_names(self) -> Iterator[InitErrorDetails]:
        seen: set[str] = set()
        for index, block in enumerate(self.tables):
            names = _names(block)
            repeated = next((name for name in names if name in seen), None)
            if repeated is not None:
                yield _problem(
                    ("tables", index, "name"),
                    f"expected different table names; `{repeated}` is given twice",
                )
            seen.update(names)

    def _wrong_dims(self) -> Iterator[InitErrorDetails]:
        dot = self.interaction.kind is InteractionKind.DOT
        width = self.bottom_mlp[-1] if dot and self.bottom_mlp else None
        if dot and width is None:
            yield _problem(("bottom_mlp",), "a dot interaction needs a bottom MLP; none is given")
        if dot and self.generate is not None:
            yield _problem(
                ("interaction", "kind"),
                "a dot interaction needs equal widths, but generated tables have different ones; "
                "use `concat` or `dcnv2_low_rank`",
            )
        for index, block in enumerate(self.tables):
            dim = block.dim or self.table_defaults.dim
            if dim is None:
                yield _problem(
                    ("tables", index, "dim"),
                    f"table `{block.name}` has no `dim`, nor do the `table_defaults`",
                )
            elif width is not None and dim != width:
                yield _problem(
                    ("tables", index, "dim"),
                    f"a dot interaction needs equal widths: the bottom MLP ends with {width}, "
                    f"table `{block.name}` has dim {dim}",
                )

    def to_model(self) -> DlrmModel:
        """Returns the model as plain values."""
        return DlrmModel(
            name=self.name,
            description=self.description,
            source=self.source,
            dense_features=self.dense_features,
            bottom_mlp=tuple(self.bottom_mlp),
            interaction=Interaction(
                self.interaction.kind,
                self.interaction.layers or 0,
                self.interaction.low_rank or 0,
                self.interaction.stride,
            ),
            top_mlp=tuple(self.top_mlp),
            tables=self._expanded(),
            precision=self.precision,
            dense_optimizer=self.optimizer.dense,
            sparse_optimizer=self.optimizer.sparse,
            global_batch_size=self.global_batch_size,
        )

    def _expanded(self) -> tuple[EmbeddingTable, ...]:
        if self.generate is not None:
            return generate_tables(
                STATISTICS[self.generate.statistics],
                self.generate.count,
                self.generate.seed,
                self.generate.data_type,
            )
        return tuple(table for block in self.tables for table in self._tables_of(block))

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
            )
            for name in _names(block)
        ]


def _problem(field: tuple[str | int, ...], message: str) -> InitErrorDetails:
    """Describes a problem that concerns several fields, at the one to mend."""
    return InitErrorDetails(
        type=PydanticCustomError("model", "{message}", {"message": message}),
        loc=field,
        input=None,
    )


def _names(block: TableBlock) -> list[str]:
    if block.count == 1:
        return [block.name]
    return [f"{block.name}_{index}" for index in range(block.count)]
