"""YAML of a recommendation model: pydantic classes that expand to a `DlrmModel`."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import BeforeValidator, Field, ValidationError, model_validator
from pydantic_core import InitErrorDetails, PydanticCustomError

from dse.config import Count, Document, NonNegativeFloat, PositiveFloat, StrictModel
from dse.indices import IndexDistribution, ReuseHistogram, Uniform, Zipf
from dse.machine import Precision
from dse.model._common import Name, Optimizer, Width
from dse.model.dlrm._architecture_schema import (
    ExpertsBlock,
    SequenceBlock,
    TaskBlock,
    TowerBlock,
    Widths,
    problem,
    repeated,
    wrong_experts,
    wrong_sequence,
    wrong_towers,
)
from dse.model.dlrm._interactions import interaction_width
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

if TYPE_CHECKING:
    from collections.abc import Iterator

_MAX_TABLES = 100_000

#: Rows that indices of four bytes can tell apart.
_INT32_ROWS = 2**31

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


BagShare = Annotated[PositiveFloat, Field(le=1000)]

#: Keys that tables cannot have of their own: a batch has one type of indices and of outputs.
_OF_ALL_TABLES = frozenset(("output_data_type", "index_type"))


class TableDefaults(StrictModel):
    """Values for tables that do not give their own."""

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
    """One embedding table, or `count` equal ones."""

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
    """Update rules."""

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
    """A recommendation model and its training recipe."""

    kind: Literal["dlrm"]
    name: Name
    description: str = ""
    aliases: list[Name] = []
    source: str
    dense_features: Annotated[int, Field(ge=0, le=2**24)]
    bottom_mlp: Widths = []
    sequence: SequenceBlock | None = None
    towers: Annotated[list[TowerBlock], Field(max_length=1000)] = []
    interaction: InteractionBlock
    top_mlp: Widths = []
    experts: ExpertsBlock | None = None
    tasks: Annotated[list[TaskBlock], Field(max_length=1000)] = []
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
            names = self._names_of_blocks()
            problems = [
                *self._no_tables(),
                *self._repeated_names(),
                *self._wrong_dims(),
                *self._wrong_indices(),
                *wrong_towers(self.towers, names),
                *wrong_experts(self.experts, self.tasks),
                *self._wrong_sequence(names),
                *repeated("towers", [tower.name for tower in self.towers]),
                *repeated("tasks", [task.name for task in self.tasks]),
            ]
            problems += [] if problems else self._wrong_top()
        if problems:
            # A ValidationError keeps the place of each problem.
            raise ValidationError.from_exception_data(type(self).__name__, problems)
        return self

    def _no_tables(self) -> Iterator[InitErrorDetails]:
        if bool(self.tables) == (self.generate is not None):
            found = "both" if self.tables else "neither"
            yield problem(
                ("generate",) if self.tables else ("tables",),
                f"expected exactly one of `tables` and `generate`, found {found}",
            )

    def _repeated_names(self) -> Iterator[InitErrorDetails]:
        seen: set[str] = set()
        for index, block in enumerate(self.tables):
            names = _names(block)
            repeated = next((name for name in names if name in seen), None)
            if repeated is not None:
                yield problem(
                    ("tables", index, "name"),
                    f"expected different table names; `{repeated}` is given twice",
                )
            seen.update(names)

    def _names_of_blocks(self) -> dict[str, list[str]]:
        return {block.name: _names(block) for block in self.tables}

    def _wrong_dims(self) -> Iterator[InitErrorDetails]:
        if self.bottom_mlp and not self.dense_features:
            yield problem(("bottom_mlp",), "a bottom MLP needs `dense_features`; they are 0")
        kind = self.interaction.kind
        equal = kind in (InteractionKind.DOT, InteractionKind.FM)
        if kind is InteractionKind.DOT and self.dense_features and not self.bottom_mlp:
            yield problem(("bottom_mlp",), "a dot interaction needs a bottom MLP; none is given")
        if equal and self.generate is not None:
            yield problem(
                ("interaction", "kind"),
                f"a {kind} interaction needs equal widths, but generated tables have different "
                "ones; use `concat` or `dcnv2_low_rank`",
            )
        for index, block in enumerate(self.tables):
            if block.dim is None and self.table_defaults.dim is None:
                yield problem(
                    ("tables", index, "dim"),
                    f"table `{block.name}` has no `dim`, nor do the `table_defaults`",
                )
        if equal:
            yield from self._different_widths(kind)

    def _wrong_indices(self) -> Iterator[InitErrorDetails]:
        defaults = self.table_defaults
        for index, block in enumerate(self.tables):
            weighted = defaults.weighted if block.weighted is None else block.weighted
            shared = (block.bags_per_sample or defaults.bags_per_sample) != 1
            if (weighted or shared) and not self._pooled(block):
                name = "weighted" if weighted else "bags_per_sample"
                yield problem(
                    ("tables", index, name),
                    f"table `{block.name}` is not pooled, and only pooled lookups have {name}; "
                    "leave it out",
                )
        if self.table_defaults.index_type is IndexType.INT32:
            for index, block in enumerate(self.tables):
                if block.rows > _INT32_ROWS:
                    yield problem(
                        ("tables", index, "rows"),
                        f"table `{block.name}` has {block.rows} rows, and int32 indices number "
                        f"{_INT32_ROWS} at most; use `index_type: int64`",
                    )

    def _different_widths(self, kind: InteractionKind) -> Iterator[InitErrorDetails]:
        """Yields vectors of a dot product, or sum, that are not as wide as the first one."""
        width = self.bottom_mlp[-1] if self.bottom_mlp else None
        first = f"the bottom MLP ends with {width}"
        in_towers = {name for tower in self.towers for name in tower.tables}
        vectors: list[tuple[tuple[str | int, ...], str, int | None]] = [
            (("tables", index, "dim"), f"table `{block.name}`", block.dim)
            for index, block in enumerate(self.tables)
            if self._pooled(block)
            and not {block.name, *_names(block)} <= in_towers
            and block.name not in in_towers
        ]
        vectors += [
            (("towers", index, "mlp"), f"tower `{tower.name}`", tower.mlp[-1])
            for index, tower in enumerate(self.towers)
        ]
        if self.sequence:
            vectors.append((("sequence", "hidden"), "the sequence", self.sequence.hidden))
        for field, name, own in vectors:
            dim = own or self.table_defaults.dim
            if dim is None or (dim == 1 and kind is InteractionKind.FM):
                continue  # weights of the first order
            if width is None:
                width, first = dim, f"{name} has {dim}"
            elif dim != width:
                yield problem(
                    field,
                    f"a {kind} interaction needs equal widths: {first}, {name} has dim {dim}; a "
                    "tower of one layer brings a table to another width",
                )

    def _pooled(self, block: TableBlock) -> bool:
        return self.table_defaults.pooled if block.pooled is None else block.pooled

    def _wrong_sequence(self, names: dict[str, list[str]]) -> Iterator[InitErrorDetails]:
        unpooled = [index for index, block in enumerate(self.tables) if not self._pooled(block)]
        in_towers = {
            name
            for tower in self.towers
            for own in tower.tables
            for name in names.get(own, (own,))
        }
        for index in unpooled:
            if not in_towers.isdisjoint(_names(self.tables[index])):
                yield problem(("tables", index, "pooled"), "towers read pooled vectors only")
        beside = [
            name
            for name, found in (
                ("dense_features", self.dense_features),
                ("towers", self.towers),
                ("pooled tables", len(unpooled) < len(self.tables)),
            )
            if found
        ]
        lookups = sum(
            sum(block.pooling or self.table_defaults.pooling) * block.count
            for block in (self.tables[index] for index in unpooled)
        )
        yield from wrong_sequence(self.sequence, unpooled, beside, lookups)

    def _wrong_top(self) -> Iterator[InitErrorDetails]:
        ends_here = not (self.top_mlp or self.tasks)
        dot = self.interaction.kind is InteractionKind.DOT
        if not ends_here and not (dot and not self.bottom_mlp):
            return
        width = interaction_width(self.to_model())
        if width == 0:
            yield problem(("interaction", "kind"), "a dot interaction needs at least two vectors")
        elif ends_here and width != 1:
            yield problem(
                ("top_mlp",),
                "expected the layers behind the interaction, the output layer too: it yields "
                f"{width} values a sample, and without a `top_mlp` it has to yield the prediction",
            )

    def to_model(self) -> DlrmModel:
        """Returns the model as plain values."""
        names = self._names_of_blocks()
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
            towers=tuple(tower.to_tower(names) for tower in self.towers),
            experts=self.experts.to_experts() if self.experts else None,
            tasks=tuple(task.to_task() for task in self.tasks),
            sequence=self.sequence.to_sequence() if self.sequence else None,
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
                pooled=self._pooled(block),
            )
            for name in _names(block)
        ]


def _names(block: TableBlock) -> list[str]:
    if block.count == 1:
        return [block.name]
    return [f"{block.name}_{index}" for index in range(block.count)]
