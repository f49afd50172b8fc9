"""A live module and its batches as a model, with what was measured and what was assumed."""

from __future__ import annotations

from dataclasses import dataclass, replace
import hashlib
import math
from typing import TYPE_CHECKING, Any

from dse.config import parse_document
from dse.errors import ConfigError
from dse.machine import Precision
from dse.model._common import Optimizer
from dse.model.dlrm import (
    LENGTH_SPREAD,
    Interaction,
    InteractionKind,
    ModelDocument,
    ModelRecipe,
    PoolingDistribution,
    TableEntry,
    TableList,
    compose_model,
    dense_parameter_count,
    interaction_width,
)
from dse.model.torchrec._batches import measure_lookups
from dse.model.torchrec._dense import (
    Attention,
    dense_parameters,
    equivalent_mlp,
    known_layers,
    traced_part,
)
from dse.model.torchrec._tables import live_tables, table_rule

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from dse.indices import IndexDistribution, LengthSketch, ReuseCounts
    from dse.model.dlrm import DlrmModel
    from dse.model.torchrec._batches import MeasuredLookups
    from dse.model.torchrec._dense import DensePart
    from dse.model.torchrec._tables import LiveTable

#: Share by which the parameters of the model may miss those of the module without a note.
_CLOSE = 0.01

#: Samples of an iteration where neither the caller nor a batch says how many.
_USUAL_BATCH = 65536


@dataclass(frozen=True, slots=True)
class TableLookups:
    """Lookups of one table in the sample batches.

    Attributes:
        table: Name of the table.
        rows: Rows that it has.
        counts: How often rows were looked up.
        indices: What describes that.
    """

    table: str
    rows: int
    counts: ReuseCounts
    indices: IndexDistribution


@dataclass(frozen=True, slots=True)
class LiveModel:
    """A model read from a live module.

    Attributes:
        model: The model.
        text: The same as a model file (YAML).
        paths: Path of the collection of each table, by the table's name.
        lookups: What the batches say of each table; empty without batches.
        notes: What was not in the module and has been assumed.
    """

    model: DlrmModel
    text: str
    paths: Mapping[str, str]
    lookups: tuple[TableLookups, ...]
    notes: tuple[str, ...]


def read_torchrec(
    module: Any,
    batches: Iterable[Any] = (),
    *,
    name: str = "",
    source: str = "",
    global_batch_size: int | None = None,
    precision: Precision = Precision.TF32,
    dense_optimizer: Optimizer = Optimizer.ADAM,
    sparse_optimizer: Optimizer | None = None,
    sequence: Mapping[str, object] | None = None,
    forward: Callable[[Any, Any], Any] | None = None,
) -> LiveModel:
    """Reads tables, features, update rule and dense part of a TorchRec module.

    Args:
        module: A module with an `EmbeddingBagCollection`, an `EmbeddingCollection` or several of
            them; its weights may be on the meta device.
        batches: Sample batches as the module takes them; pooling factors and the popularity of
            rows are measured from every `KeyedJaggedTensor` inside, and the module runs on some
            samples of the first one for the operators of its dense part, unless it is a DLRM or
            DLRM-DCN of TorchRec. Without any, every bag has one lookup, all rows are equally
            popular, and an MLP of as many parameters stands for the dense part.
        name: Name of the model; the module's class if empty.
        source: Where the module comes from, for the model's file.
        global_batch_size: Samples of an iteration; those of the first batch if None.
        precision: Arithmetic of the dense part.
        dense_optimizer: Update rule of the dense part.
        sparse_optimizer: Update rule of the tables; what `apply_optimizer_in_backward` set if
            None, else row-wise Adagrad.
        sequence: Attention over the sequences of an `EmbeddingCollection`, with the fields of a
            model file's `sequence`, for modules that cannot be run; an MLP then stands for the
            rest of the dense part.
        forward: Calls the module with a batch and returns its result. By default a module of one
            argument gets the batch, one of several its parts, by name or in their order.

    Raises:
        ConfigError: Something in the module cannot be predicted; it is named.
    """
    tables = live_tables(module)
    measured = measure_lookups(tables, batches)
    found_rule = table_rule(module)
    lookups = tuple(_table_lookups(tables, measured))
    laws = {one.table: one.indices for one in lookups}
    entries = tuple(
        _entry(number + 1, table, measured, laws.get(table.name))
        for number, table in enumerate(tables)
    )
    digest = hashlib.sha256(repr(tables).encode()).hexdigest()
    origin = source or f"{type(module).__module__}.{type(module).__qualname__}"
    batch = global_batch_size or measured.samples or _USUAL_BATCH
    recipe = ModelRecipe(
        name=name or type(module).__name__.lower(),
        dense_features=measured.dense_features,
        bottom_mlp=(),
        top_mlp=(1,),
        interaction=Interaction(InteractionKind.CONCAT),
        precision=precision,
        dense_optimizer=dense_optimizer,
        sparse_optimizer=sparse_optimizer or found_rule or Optimizer.ROWWISE_ADAGRAD,
        global_batch_size=batch,
        description=f"{len(tables)} tables of {type(module).__name__}",
        sequence=sequence,
    )
    listed = TableList(origin, digest, entries)
    dense = known_layers(module)
    if dense is None and sequence is not None:
        dense = equivalent_mlp(
            module,
            tables,
            measured.dense_features,
            _attention(_composed(listed, recipe)[1]),
            "its attention is given",
        )
    if dense is None:
        dense = _run(module, tables, measured, forward)
    recipe = replace(
        recipe,
        dense_features=dense.dense_features,
        bottom_mlp=dense.bottom_mlp,
        top_mlp=dense.top_mlp,
        interaction=dense.interaction,
        traced=dense.traced,
    )
    text, model = _composed(listed, recipe)
    known_rule = bool(sparse_optimizer or found_rule)
    notes = [*_notes(measured, known_rule=known_rule), *dense.notes]
    count, own = dense_parameter_count(model), dense_parameters(module)
    if abs(count - own) > _CLOSE * max(own, 1):
        notes.append(
            f"the dense part of the model has {count:,} parameters, that of the module {own:,}"
        )
    paths = {table.name: table.path for table in tables}
    return LiveModel(model, text, paths, lookups, tuple(notes))


def _run(
    module: Any,
    tables: Sequence[LiveTable],
    measured: MeasuredLookups,
    forward: Callable[[Any, Any], Any] | None,
) -> DensePart:
    """The operators of a dense part; where it does not run, the MLP in their place."""
    from dse.model.torchrec._trace import NotTracedError

    try:
        return traced_part(module, measured, forward)
    except NotTracedError as error:
        alone = next((one.path for one in tables if not one.pooled), None)
        if alone is not None:
            raise ConfigError(
                f"`{alone}` is an EmbeddingCollection, and what is computed of its sequences is "
                f"not known: {error}; give batches that the module takes (or `forward`, which "
                "calls it), or describe the attention over them (`sequence`: layers, hidden, "
                "heads, head_dim; docs/formats.md)"
            ) from error
        reason = f"not traced ({error})"
        return equivalent_mlp(module, tables, measured.dense_features, Attention(), reason)


def _composed(tables: TableList, recipe: ModelRecipe) -> tuple[str, DlrmModel]:
    text = compose_model(tables, recipe)
    return text, parse_document(text, ModelDocument, file=tables.file).to_model()


def _attention(model: DlrmModel) -> Attention:
    """Returns the attention of a model whose only other layer is one output of everything."""
    sequence = model.sequence
    assert sequence is not None
    output = interaction_width(model) + 1
    layers = 2 * sequence.layers + len(sequence.input_mlp)
    return Attention(sequence.hidden, dense_parameter_count(model) - output, layers)


def _table_lookups(
    tables: Sequence[LiveTable], measured: MeasuredLookups
) -> Iterator[TableLookups]:
    for table in tables:
        sketch = measured.rows[table.name]
        counts = sketch.counts()
        if counts.lookups:
            yield TableLookups(table.name, table.rows, counts, sketch.distribution())


def _entry(
    line: int, table: LiveTable, measured: MeasuredLookups, indices: IndexDistribution | None
) -> TableEntry:
    lengths = [measured.lengths[feature] for feature in table.features]
    seen = [one for one in lengths if one.mean > 0]
    # More digits than batches can tell; a feature without any lookup there is very rare.
    factors = tuple(max(float(f"{one.mean:.5g}"), 1e-6) for one in lengths)
    return TableEntry(
        line=line,
        name=table.name,
        rows=table.rows,
        dim=table.dim,
        pooling_factors=factors if seen else (1.0,) * max(1, len(lengths)),
        data_type=table.data_type,
        indices=indices,
        weighted=table.weighted or None,
        pooling_distribution=_length_law(seen) if seen else None,
        pooled=table.pooled,
    )


def _length_law(lengths: Sequence[LengthSketch]) -> PoolingDistribution:
    """Returns the law whose variance is nearest to that of the features' bags."""
    measured = sum(one.variance for one in lengths)

    def variance(law: PoolingDistribution, mean: float) -> float:
        # Fractional means are rounded at random, up or down.
        rounding = (mean % 1) * (1 - mean % 1)
        if law is PoolingDistribution.POISSON:
            return mean
        if law is PoolingDistribution.LOGNORMAL:
            return mean**2 * math.expm1(LENGTH_SPREAD**2) + rounding
        return rounding

    def distance(law: PoolingDistribution) -> float:
        expected = sum(variance(law, one.mean) for one in lengths)
        return abs(math.log((expected + 1e-3) / (measured + 1e-3)))

    return min(PoolingDistribution, key=distance)


def _notes(measured: MeasuredLookups, *, known_rule: bool) -> Iterator[str]:
    if not measured.samples:
        yield "no batches: one lookup a bag, all rows equally popular"
    else:
        silent = [feature for feature, one in measured.lengths.items() if not one.mean]
        if silent:
            yield f"features without a lookup in the batches: {', '.join(silent)}"
    if not known_rule:
        yield "no update rule is set on the tables; assumed: row-wise Adagrad"
