"""`dse model from-csv`: a model from a list of tables."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from dse.cli._options import (
    ForceOption,
    JsonOption,
    SparseOptimizerName,
    TableTypeName,
    listed,
)
from dse.cli.files.model._write import (
    BatchOption,
    DenseOptimizerOption,
    DensePrecisionOption,
    NameOption,
    OutOption,
    check_out,
    write_model,
)

if TYPE_CHECKING:
    from dse.model import DlrmModel, Interaction, ModelRecipe, TableList

#: The dense part of the published DLRM benchmark.
_BOTTOM, _TOP = (512, 256), "1024,1024,512,256,1"
#: Its last bottom layer, where tables have different widths.
_WIDTH = 128


def from_csv_command(
    tables: Annotated[
        Path,
        typer.Argument(
            metavar="CSV",
            help="One line per table, with the column rows and, if known, name, dim, pooling, "
            "data_type, alpha, ids, count.",
        ),
    ],
    out: OutOption,
    name: NameOption = "",
    dense_features: Annotated[
        int,
        typer.Option(
            "--dense-features", metavar="N", min=0, help="Width of the dense input; 0 without one."
        ),
    ] = 13,
    bottom_mlp: Annotated[
        str,
        typer.Option(
            "--bottom-mlp",
            metavar="WIDTHS",
            help="Layer widths of the MLP under the interaction, such as `512,256,64`; by default "
            "512, 256, and the width of the tables.",
        ),
    ] = "",
    top_mlp: Annotated[
        str,
        typer.Option(
            "--top-mlp",
            metavar="WIDTHS",
            help="Layer widths of the MLP over it, the output layer last.",
        ),
    ] = _TOP,
    interaction: Annotated[
        Literal["dot", "dcnv2", "dcnv2_low_rank", "fm", "concat"] | None,
        typer.Option(
            "--interaction",
            metavar="KIND",
            help="dot, dcnv2, dcnv2_low_rank, fm or concat; by default dot if all widths are "
            "equal, otherwise concat.",
        ),
    ] = None,
    cross_layers: Annotated[
        int,
        typer.Option(
            "--cross-layers", metavar="N", min=1, help="Layers of dcnv2 and dcnv2_low_rank."
        ),
    ] = 3,
    low_rank: Annotated[
        int, typer.Option("--low-rank", metavar="N", min=1, help="Inner width of dcnv2_low_rank.")
    ] = 512,
    dim: Annotated[
        int | None,
        typer.Option("--dim", metavar="N", min=1, help="Width of tables without one in the list."),
    ] = None,
    pooling: Annotated[
        float,
        typer.Option(
            "--pooling",
            metavar="X",
            help="Lookups per sample of tables without pooling in the list.",
        ),
    ] = 1.0,
    alpha: Annotated[
        float,
        typer.Option(
            "--alpha",
            metavar="X",
            min=0,
            help="Zipf exponent of the popularity of rows, if not in the list; 0 is uniform.",
        ),
    ] = 0.0,
    data_type: Annotated[
        TableTypeName,
        typer.Option(
            "--data-type",
            metavar="TYPE",
            help="fp32, fp16, bf16, fp8 or int8, if not in the list.",
        ),
    ] = "fp32",
    precision: DensePrecisionOption = "tf32",
    dense_optimizer: DenseOptimizerOption = "sgd",
    sparse_optimizer: Annotated[
        SparseOptimizerName,
        typer.Option(
            "--sparse-optimizer", metavar="RULE", help="sgd, rowwise_adagrad, adagrad or adam."
        ),
    ] = "rowwise_adagrad",
    global_batch_size: BatchOption = 65536,
    force: ForceOption = False,
    as_json: JsonOption = False,
) -> None:
    """Make a recommendation model from a CSV of embedding tables.

    Columns may have any of the usual names (rows: num_embeddings, hash_size; dim: embedding_dim;
    pooling: pooling_factor, hotness). Options supply what the list does not contain.
    """
    from dse.config import parse_document
    from dse.machine import Precision
    from dse.model import (
        DataType,
        ModelDocument,
        ModelRecipe,
        Optimizer,
        compose_model,
        read_table_list,
    )

    check_out(out, force=force)
    listed = read_table_list(tables)
    usual = (*_BOTTOM, _common_width(listed, dim)) if dense_features else ()
    recipe = ModelRecipe(
        name=name or out.stem,
        dense_features=dense_features,
        bottom_mlp=_widths(bottom_mlp, "--bottom-mlp") or usual,
        top_mlp=_widths(top_mlp, "--top-mlp"),
        interaction=_interaction(interaction, cross_layers, low_rank),
        dim=dim,
        pooling=pooling,
        alpha=alpha,
        data_type=DataType(data_type),
        precision=Precision(precision),
        dense_optimizer=Optimizer(dense_optimizer),
        sparse_optimizer=Optimizer(sparse_optimizer),
        global_batch_size=global_batch_size,
    )
    text = compose_model(listed, recipe)
    model = parse_document(text, ModelDocument, file=str(out)).to_model()
    write_model(out, text, model, _notes(listed, recipe, model), as_json=as_json)


def _widths(text: str, option: str) -> tuple[int, ...]:
    from dse.errors import ConfigError

    # `1024-512-64` is the form of the published DLRM.
    parts = listed(text.replace("-", ","))
    if not all(part.isdecimal() and int(part) > 0 for part in parts):
        raise ConfigError(f"{option}: expected widths such as {_TOP}; found `{text}`")
    return tuple(map(int, parts))


def _interaction(kind: str | None, layers: int, low_rank: int) -> Interaction | None:
    from dse.model import Interaction, InteractionKind

    if not kind:
        return None
    chosen = InteractionKind(kind)
    if chosen is InteractionKind.DCNV2_LOW_RANK:
        return Interaction(chosen, layers, low_rank)
    if chosen is InteractionKind.DCNV2:
        return Interaction(chosen, layers)
    return Interaction(chosen)


def _notes(listed: TableList, recipe: ModelRecipe, model: DlrmModel) -> list[str]:
    """Returns what was not in the list and has been assumed."""
    notes = []
    if listed.unused_columns:
        notes.append(f"columns that are not used: {', '.join(listed.unused_columns)}")
    if all(entry.pooling_factors is None for entry in listed.entries):
        notes.append(f"no column of pooling: {recipe.pooling:g} lookups a sample (--pooling)")
    if all(entry.indices is None for entry in listed.entries) and not recipe.alpha:
        notes.append(
            "no column of alpha: all rows equally popular (--alpha); the popular rows of real "
            "logs stay in caches, so their lookups are faster"
        )
    if recipe.interaction is None:
        notes.append(f"interaction: {model.interaction.kind}, unless --interaction says otherwise")
    return notes


def _common_width(listed: TableList, dim: int | None) -> int:
    widths = {entry.dim or dim for entry in listed.entries}
    width = widths.pop()
    return width if width and not widths else _WIDTH
