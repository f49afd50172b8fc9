"""Checks across the fields of a model file, each at the field to mend."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dse.model.dlrm._architecture_schema import (
    problem,
    repeated,
    wrong_experts,
    wrong_sequence,
    wrong_towers,
)
from dse.model.dlrm._interactions import interaction_width
from dse.model.dlrm._model import IndexType, InteractionKind
from dse.model.dlrm._traced_schema import wrong_traced

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from pydantic_core import InitErrorDetails

    from dse.model.dlrm._schema import ModelDocument, TableBlock

#: Layers of all towers, experts and heads together; each is several operators of every iteration.
_MAX_LAYERS = 10_000

#: Rows that indices of four bytes can tell apart.
_INT32_ROWS = 2**31


def table_names(block: TableBlock) -> list[str]:
    """Returns the names of the tables of an entry."""
    if block.count == 1:
        return [block.name]
    return [f"{block.name}_{index}" for index in range(block.count)]


def names_of_blocks(blocks: Sequence[TableBlock]) -> dict[str, list[str]]:
    """Returns the names of the tables of every entry, by its own name."""
    return {block.name: table_names(block) for block in blocks}


def no_tables(document: ModelDocument) -> Iterator[InitErrorDetails]:
    """Yields a problem unless tables are either listed or generated."""
    if bool(document.tables) == (document.generate is not None):
        found = "both" if document.tables else "neither"
        yield problem(
            ("generate",) if document.tables else ("tables",),
            f"expected exactly one of `tables` and `generate`, found {found}",
        )


def repeated_names(document: ModelDocument) -> Iterator[InitErrorDetails]:
    """Yields tables with the name of an earlier one."""
    seen: set[str] = set()
    for index, block in enumerate(document.tables):
        names = table_names(block)
        repeated = next((name for name in names if name in seen), None)
        if repeated is not None:
            yield problem(
                ("tables", index, "name"),
                f"expected different table names; `{repeated}` is given twice",
            )
        seen.update(names)


def wrong_dense(
    document: ModelDocument, names: dict[str, list[str]]
) -> Iterator[InitErrorDetails]:
    """Yields what is wrong with the dense part, which has layers or operators."""
    if document.traced is not None:
        layers = ("bottom_mlp", "sequence", "towers", "interaction", "top_mlp", "experts", "tasks")
        yield from wrong_traced(document.traced, [one for one in layers if getattr(document, one)])
        return
    yield from _wrong_dims(document)
    yield from wrong_towers(document.towers, names)
    yield from wrong_experts(document.experts, document.tasks)
    yield from _too_many_layers(document)
    yield from _wrong_inputs_of_sequence(document, names)
    yield from repeated("towers", [tower.name for tower in document.towers])
    yield from repeated("tasks", [task.name for task in document.tasks])


def _too_many_layers(document: ModelDocument) -> Iterator[InitErrorDetails]:
    """Yields a problem if an iteration would have more operators than anybody means."""
    experts = document.experts
    layers = {
        "towers": sum(len(tower.mlp) for tower in document.towers),
        "tasks": sum(len(task.top_mlp) for task in document.tasks),
    }
    if experts is not None:
        each = experts.shared + experts.per_task * len(document.tasks)
        layers["experts"] = experts.levels * each * len(experts.mlp)
    if sum(layers.values()) > _MAX_LAYERS:
        most = max(layers, key=layers.__getitem__)
        yield problem(
            (most,),
            f"expected at most {_MAX_LAYERS:,} layers in towers, experts and tasks together, "
            f"found {sum(layers.values()):,}",
        )


def without_dim(document: ModelDocument) -> Iterator[InitErrorDetails]:
    """Yields tables without a width."""
    for index, block in enumerate(document.tables):
        if block.dim is None and document.table_defaults.dim is None:
            yield problem(
                ("tables", index, "dim"),
                f"table `{block.name}` has no `dim`, nor do the `table_defaults`",
            )


def _wrong_dims(document: ModelDocument) -> Iterator[InitErrorDetails]:
    """Yields a missing interaction, and widths that do not fit it."""
    if document.interaction is None:
        yield problem(("interaction",), "expected an `interaction`, or the operators (`traced`)")
        return
    if document.bottom_mlp and not document.dense_features:
        yield problem(("bottom_mlp",), "a bottom MLP needs `dense_features`; they are 0")
    kind = document.interaction.kind
    equal = kind in (InteractionKind.DOT, InteractionKind.FM)
    if kind is InteractionKind.DOT and document.dense_features and not document.bottom_mlp:
        yield problem(("bottom_mlp",), "a dot interaction needs a bottom MLP; none is given")
    if equal and document.generate is not None:
        yield problem(
            ("interaction", "kind"),
            f"a {kind} interaction needs equal widths, but generated tables have different "
            "ones; use `concat` or `dcnv2_low_rank`",
        )
    if equal:
        yield from _different_widths(document, kind)


def wrong_indices(document: ModelDocument) -> Iterator[InitErrorDetails]:
    """Yields lookups that a table, or its indices, cannot have."""
    defaults = document.table_defaults
    for index, block in enumerate(document.tables):
        weighted = defaults.weighted if block.weighted is None else block.weighted
        shared = (block.bags_per_sample or defaults.bags_per_sample) != 1
        if (weighted or shared) and not pooled(document, block):
            name = "weighted" if weighted else "bags_per_sample"
            yield problem(
                ("tables", index, name),
                f"table `{block.name}` is not pooled, and only pooled lookups have {name}; "
                "leave it out",
            )
    if document.table_defaults.index_type is IndexType.INT32:
        for index, block in enumerate(document.tables):
            if block.rows > _INT32_ROWS:
                yield problem(
                    ("tables", index, "rows"),
                    f"table `{block.name}` has {block.rows} rows, and int32 indices number "
                    f"{_INT32_ROWS} at most; use `index_type: int64`",
                )


def _wrong_inputs_of_sequence(
    document: ModelDocument, names: dict[str, list[str]]
) -> Iterator[InitErrorDetails]:
    """Yields what is wrong with a sequence and the tables that it reads."""
    unpooled = [
        index for index, block in enumerate(document.tables) if not pooled(document, block)
    ]
    in_towers = {
        name
        for tower in document.towers
        for own in tower.tables
        for name in names.get(own, (own,))
    }
    for index in unpooled:
        if not in_towers.isdisjoint(table_names(document.tables[index])):
            yield problem(("tables", index, "pooled"), "towers read pooled vectors only")
    beside = [
        name
        for name, found in (
            ("dense_features", document.dense_features),
            ("towers", document.towers),
            ("pooled tables", len(unpooled) < len(document.tables)),
        )
        if found
    ]
    lookups = sum(
        sum(block.pooling or document.table_defaults.pooling) * block.count
        for block in (document.tables[index] for index in unpooled)
    )
    yield from wrong_sequence(document.sequence, unpooled, beside, lookups)


def wrong_top(document: ModelDocument) -> Iterator[InitErrorDetails]:
    """Yields a problem if the model does not end with predictions."""
    ends_here = not (document.top_mlp or document.tasks)
    dot = document.interaction is not None and document.interaction.kind is InteractionKind.DOT
    if not ends_here and not (dot and not document.bottom_mlp):
        return
    width = interaction_width(document.to_model())
    if width == 0:
        yield problem(("interaction", "kind"), "a dot interaction needs at least two vectors")
    elif ends_here and width != 1:
        yield problem(
            ("top_mlp",),
            "expected the layers behind the interaction, the output layer too: it yields "
            f"{width} values a sample, and without a `top_mlp` it has to yield the prediction",
        )


def _different_widths(
    document: ModelDocument, kind: InteractionKind
) -> Iterator[InitErrorDetails]:
    """Yields vectors of a dot product, or sum, that are not as wide as the first one."""
    width = document.bottom_mlp[-1] if document.bottom_mlp else None
    first = f"the bottom MLP ends with {width}"
    in_towers = {name for tower in document.towers for name in tower.tables}
    vectors: list[tuple[tuple[str | int, ...], str, int | None]] = [
        (("tables", index, "dim"), f"table `{block.name}`", block.dim)
        for index, block in enumerate(document.tables)
        if pooled(document, block)
        and not {block.name, *table_names(block)} <= in_towers
        and block.name not in in_towers
    ]
    vectors += [
        (("towers", index, "mlp"), f"tower `{tower.name}`", tower.mlp[-1])
        for index, tower in enumerate(document.towers)
    ]
    if document.sequence:
        vectors.append((("sequence", "hidden"), "the sequence", document.sequence.hidden))
    for field, name, own in vectors:
        dim = own or document.table_defaults.dim
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


def pooled(document: ModelDocument, block: TableBlock) -> bool:
    """Returns whether the lookups of an entry are summed."""
    return document.table_defaults.pooled if block.pooled is None else block.pooled
