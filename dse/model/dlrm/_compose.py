"""YAML of a model from a list of tables and the rest of the model.

The YAML holds the tables themselves, not the name of their file: a study keeps it as it is, and
somebody else can use it alone.
"""

from __future__ import annotations

from dataclasses import dataclass
import json
import re
from typing import TYPE_CHECKING

from dse.config import SCHEMA_VERSION, parse_document
from dse.errors import ConfigError, Diagnostic
from dse.indices import IdOrder, ReuseHistogram, Uniform, Zipf
from dse.machine import Precision
from dse.model._common import Optimizer
from dse.model.dlrm._model import DataType, Interaction, InteractionKind
from dse.model.dlrm._schema import ModelDocument

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from dse.indices import IndexDistribution
    from dse.model.dlrm._table_list import TableEntry, TableList
    from dse.model.dlrm._traced import Amount, TracedDense, TracedOperator

_TABLE_FIELD = re.compile(r"tables\[(\d+)\]")


@dataclass(frozen=True, slots=True)
class ModelRecipe:
    """What a list of tables does not say of a recommendation model.

    Attributes:
        name: Name of the model.
        dense_features: Width of the dense input.
        bottom_mlp: Output widths of the bottom MLP's layers.
        top_mlp: Output widths of the top MLP's layers, the output layer included.
        interaction: The interaction layer; None for `dot` where all tables (and the bottom MLP)
            are equally wide, else `concat`.
        dim: Columns of tables that give none; None if all do.
        pooling: Mean lookups a sample of tables that give none.
        alpha: Zipf exponent of tables that give none; 0 is uniform.
        data_type: Storage type of tables that give none.
        precision: Default arithmetic.
        dense_optimizer: Update rule of the dense part.
        sparse_optimizer: Update rule of the tables.
        global_batch_size: Batch of the training recipe.
        description: One line for listings.
        sequence: Fields of the model's `sequence`, which tables without pooling need.
        traced: The dense part operator by operator, in place of interaction, MLPs and sequence.
    """

    name: str
    dense_features: int
    bottom_mlp: tuple[int, ...]
    top_mlp: tuple[int, ...]
    interaction: Interaction | None = None
    dim: int | None = None
    pooling: float = 1.0
    alpha: float = 0.0
    data_type: DataType = DataType.FP32
    precision: Precision = Precision.TF32
    dense_optimizer: Optimizer = Optimizer.SGD
    sparse_optimizer: Optimizer = Optimizer.ROWWISE_ADAGRAD
    global_batch_size: int = 65536
    description: str = ""
    sequence: Mapping[str, object] | None = None
    traced: TracedDense | None = None


def compose_model(tables: TableList, recipe: ModelRecipe) -> str:
    """Returns the YAML of the model that has these tables; it was read back once.

    Args:
        tables: The tables.
        recipe: Everything else.

    Raises:
        ConfigError: Tables have no width, or tables, MLPs and interaction do not fit together.
    """
    without_dim = [entry.name for entry in tables.entries if entry.dim is None]
    if without_dim and recipe.dim is None:
        raise ConfigError(
            f"{tables.file}: {len(without_dim)} tables have no `dim`, the first is "
            f"`{without_dim[0]}`; give the column, or one width for all of them"
        )
    lines = [
        f"# Tables from {_text(tables.file)}; everything else can be changed here.",
        f"schema_version: {SCHEMA_VERSION}",
        "kind: dlrm",
        f"name: {_text(recipe.name)}",
        f"description: {_text(recipe.description or f'{tables.table_count} tables')}",
        f"source: {_text(f'tables: {tables.file}, sha256 {tables.sha256}')}",
        f"dense_features: {recipe.dense_features}",
        *(_layers(tables, recipe) if recipe.traced is None else _operators(recipe.traced)),
        f"precision: {recipe.precision}",
        f"optimizer: {{dense: {recipe.dense_optimizer}, sparse: {recipe.sparse_optimizer}}}",
        f"global_batch_size: {recipe.global_batch_size}",
        "table_defaults:",
        *([f"  dim: {recipe.dim}"] if recipe.dim is not None else []),
        f"  pooling: {_number(recipe.pooling)}",
        f"  indices: {_indices(Zipf(recipe.alpha) if recipe.alpha else Uniform())}",
        f"  data_type: {recipe.data_type}",
        "tables:",
        *(f"  - {{{', '.join(_fields(entry))}}}" for entry in tables.entries),
    ]
    text = "\n".join(lines) + "\n"
    try:
        parse_document(text, ModelDocument, file=tables.file)
    except ConfigError as error:
        # Nobody has seen the YAML yet: a table is named by its line in the list.
        raise ConfigError(
            diagnostics=tuple(_in_list(problem, tables) for problem in error.diagnostics)
        ) from None
    return text


def _layers(tables: TableList, recipe: ModelRecipe) -> Iterator[str]:
    interaction = recipe.interaction or _usual_interaction(tables, recipe)
    yield f"bottom_mlp: {list(recipe.bottom_mlp)}"
    yield f"interaction: {_interaction(interaction)}"
    if recipe.sequence:
        yield f"sequence: {json.dumps(dict(recipe.sequence))}"
    yield f"top_mlp: {list(recipe.top_mlp)}"


def _operators(dense: TracedDense) -> Iterator[str]:
    """The lines of a traced dense part, one an operator."""
    yield "traced:"
    for phase in ("before", "forward", "backward", "after"):
        operators: tuple[TracedOperator, ...] = getattr(dense, phase)
        if operators:
            yield f"  {phase}:"
            yield from (f"    - {{{', '.join(_operator(one))}}}" for one in operators)
    yield f"  kept_values: {_amount(dense.kept_values)}"
    yield f"  outputs: {dense.outputs}"


def _operator(operator: TracedOperator) -> Iterator[str]:
    yield f"name: {_text(operator.name)}"
    yield f"kind: {operator.kind}"
    for name, amount in operator.sizes:
        switch = name in ("causal", "backward")
        yield f"{name}: {str(bool(amount[0])).lower() if switch else _amount(amount)}"
    if operator.launches > 1:
        yield f"launches: {operator.launches}"
    if operator.parameters:
        yield f"parameters: {operator.parameters}"


def _amount(amount: Amount) -> str:
    if len(amount) == 1:
        return _number(amount[0])
    return f"[{', '.join(map(_number, amount))}]"


def _in_list(problem: Diagnostic, tables: TableList) -> Diagnostic:
    table = _TABLE_FIELD.match(problem.field)
    line = tables.entries[int(table[1])].line if table else None
    field = problem.field[table.end() :].lstrip(".") if table else problem.field
    return Diagnostic(tables.file, line, None, field, problem.message)


def _usual_interaction(tables: TableList, recipe: ModelRecipe) -> Interaction:
    """A dot product where the widths allow it, as in DLRM; else the features side by side."""
    widths = {entry.dim or recipe.dim for entry in tables.entries}
    dot = recipe.bottom_mlp and widths == {recipe.bottom_mlp[-1]}
    return Interaction(InteractionKind.DOT if dot else InteractionKind.CONCAT)


def _interaction(interaction: Interaction) -> str:
    fields = [f"kind: {interaction.kind}"]
    if interaction.layers:
        fields.append(f"layers: {interaction.layers}")
    if interaction.low_rank:
        fields.append(f"low_rank: {interaction.low_rank}")
    if interaction.stride > 1:
        fields.append(f"stride: {interaction.stride}")
    return f"{{{', '.join(fields)}}}"


def _fields(entry: TableEntry) -> list[str]:
    fields = [f"name: {_text(entry.name)}", f"rows: {entry.rows}"]
    if entry.dim is not None:
        fields.append(f"dim: {entry.dim}")
    if entry.pooling_factors is not None:
        factors = [_number(factor) for factor in entry.pooling_factors]
        joined = factors[0] if len(factors) == 1 else f"[{', '.join(factors)}]"
        fields.append(f"pooling: {joined}")
    if entry.pooling_distribution is not None:
        fields.append(f"pooling_distribution: {entry.pooling_distribution}")
    if not entry.pooled:
        fields.append("pooled: false")
    if entry.indices is not None:
        fields.append(f"indices: {_indices(entry.indices)}")
    if entry.data_type is not None:
        fields.append(f"data_type: {entry.data_type}")
    if entry.weighted is not None:
        fields.append(f"weighted: {str(entry.weighted).lower()}")
    if entry.bags_per_sample is not None:
        fields.append(f"bags_per_sample: {_number(entry.bags_per_sample)}")
    if entry.count > 1:
        fields.append(f"count: {entry.count}")
    return fields


def _indices(indices: IndexDistribution) -> str:
    """The block of a distribution; the order of ids where it is not the usual one."""
    ids = "" if indices.ids is IdOrder.HASHED else f", ids: {indices.ids}"
    if isinstance(indices, Zipf):
        return f"{{kind: zipf, alpha: {_number(indices.alpha)}{ids}}}"
    if isinstance(indices, ReuseHistogram):
        rows, lookups = (
            f"[{', '.join(map(_number, each))}]"
            for each in (indices.row_share, indices.lookup_share)
        )
        means = (
            f"mean_reuse: {_number(indices.mean_reuse)}, "
            f"touched_share: {_number(indices.touched_share)}"
        )
        return (
            f"{{kind: reuse_histogram, row_share: {rows}, lookup_share: {lookups}, {means}{ids}}}"
        )
    return "{kind: uniform}"


def _number(value: float) -> str:
    """Formats a number for YAML 1.1, where `1e-05` would be text."""
    text = f"{value:.9g}"
    return text.replace("e", ".0e") if "e" in text and "." not in text else text


def _text(value: str) -> str:
    """A string as YAML reads it whatever it holds: JSON's strings are YAML's, too."""
    plain = value.isascii() and value.isidentifier()
    reserved = {"true", "false", "null", "yes", "no", "on", "off", "y", "n"}
    if plain and value.lower() not in reserved:
        return value
    printable = "".join(letter if letter.isprintable() else "?" for letter in value)
    return json.dumps(printable, ensure_ascii=False)
