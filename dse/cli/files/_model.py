"""`dse model`: models from lists of tables, and their contents."""

from __future__ import annotations

from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from dse.cli._options import ForceOption, JsonOption, ModelArgument, listed, member

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from dse._terminal import Console
    from dse.model import DlrmModel, Interaction, ModelRecipe, TableList, TransformerModel

app = typer.Typer(
    no_args_is_help=True,
    help="Make a model from a list of tables, a TorchRec module or a Hugging Face configuration, "
    "or show one.",
)

#: Largest tables that `dse model show` names.
_SHOWN = 10

#: The dense part of the published DLRM benchmark.
_BOTTOM, _TOP = (512, 256), "1024,1024,512,256,1"
#: Its last bottom layer, where tables have different widths.
_WIDTH = 128


@app.command("from-csv")
def from_csv_command(
    tables: Annotated[
        Path,
        typer.Argument(
            metavar="TABLES.csv",
            help="One line a table, with the column rows, and where known name, dim, pooling, "
            "data_type, alpha, ids, count.",
        ),
    ],
    out: Annotated[Path, typer.Option("--out", help="Model to write (.yaml).")],
    name: Annotated[str, typer.Option("--name", help="Its name; the file's by default.")] = "",
    dense_features: Annotated[
        int,
        typer.Option("--dense-features", min=0, help="Width of the dense input; 0 without one."),
    ] = 13,
    bottom_mlp: Annotated[
        str,
        typer.Option(
            "--bottom-mlp",
            help="Layer widths of the MLP under the interaction; by default 512, 256, and the "
            "width of the tables.",
        ),
    ] = "",
    top_mlp: Annotated[
        str,
        typer.Option("--top-mlp", help="Layer widths of the MLP over it, the output's last."),
    ] = _TOP,
    interaction: Annotated[
        str,
        typer.Option(
            "--interaction",
            metavar="dot|dcnv2|dcnv2_low_rank|fm|concat",
            help="dot by default where all widths are equal, else concat.",
        ),
    ] = "",
    cross_layers: Annotated[
        int, typer.Option("--cross-layers", min=1, help="Layers of dcnv2 and dcnv2_low_rank.")
    ] = 3,
    low_rank: Annotated[
        int, typer.Option("--low-rank", min=1, help="Inner width of dcnv2_low_rank.")
    ] = 512,
    dim: Annotated[
        int | None, typer.Option("--dim", min=1, help="Width of tables without one in the list.")
    ] = None,
    pooling: Annotated[
        float,
        typer.Option("--pooling", help="Lookups a sample of tables without pooling in the list."),
    ] = 1.0,
    alpha: Annotated[
        float,
        typer.Option(
            "--alpha",
            min=0,
            help="Zipf exponent of how popular rows are, where not in the list; 0 is uniform.",
        ),
    ] = 0.0,
    data_type: Annotated[
        str, typer.Option("--data-type", help="fp32, fp16, bf16 or int8, where not in the list.")
    ] = "fp32",
    precision: Annotated[
        str, typer.Option("--precision", help="Arithmetic: fp32, tf32, fp16 or bf16.")
    ] = "tf32",
    dense_optimizer: Annotated[
        str, typer.Option("--dense-optimizer", help="sgd, adagrad or adam.")
    ] = "sgd",
    sparse_optimizer: Annotated[
        str, typer.Option("--sparse-optimizer", help="sgd, rowwise_adagrad, adagrad or adam.")
    ] = "rowwise_adagrad",
    global_batch_size: Annotated[
        int, typer.Option("--global-batch-size", min=1, help="Samples of one iteration.")
    ] = 65536,
    force: ForceOption = False,
    as_json: JsonOption = False,
) -> None:
    """Make a recommendation model from a CSV of embedding tables.

    Columns go by the usual names (rows: num_embeddings, hash_size; dim: embedding_dim; pooling:
    pooling_factor, hotness). The options give what the list does not contain.
    """
    from dse._files import write_atomically
    from dse._terminal import visible
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

    _check_out(out, force=force)
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
        data_type=member(DataType, data_type, "--data-type"),
        precision=member(Precision, precision, "--precision"),
        dense_optimizer=member(Optimizer, dense_optimizer, "--dense-optimizer"),
        sparse_optimizer=member(Optimizer, sparse_optimizer, "--sparse-optimizer"),
        global_batch_size=global_batch_size,
    )
    text = compose_model(listed, recipe)
    write_atomically(out, text)
    model = parse_document(text, ModelDocument, file=str(out)).to_model()
    _show(model, as_json=as_json)
    for line in _notes(listed, recipe, model):
        typer.echo(f"note: {visible(line)}", err=True)
    if not as_json:
        typer.echo(f"model: {out}")


@app.command("from-hf")
def from_hf_command(
    config: Annotated[
        Path,
        typer.Argument(metavar="CONFIG.json", help="`config.json` of a Hugging Face model."),
    ],
    out: Annotated[Path, typer.Option("--out", help="Model to write (.yaml).")],
    name: Annotated[str, typer.Option("--name", help="Its name; the file's by default.")] = "",
    sequence_length: Annotated[
        int | None,
        typer.Option(
            "--sequence-length",
            min=1,
            help="Tokens of a sample; by default as many as the model takes.",
        ),
    ] = None,
    global_batch_size: Annotated[
        int, typer.Option("--global-batch-size", min=1, help="Samples of one iteration.")
    ] = 512,
    force: ForceOption = False,
    as_json: JsonOption = False,
) -> None:
    """Make a transformer from the configuration of a Hugging Face model.

    Decoders such as Llama, Mistral, Mixtral, Qwen and Gemma, and BERT.
    """
    from dse._files import write_atomically
    from dse.config import parse_document
    from dse.model import TransformerDocument, compose_transformer

    _check_out(out, force=force)
    text = compose_transformer(
        config,
        name=name or out.stem,
        sequence_length=sequence_length,
        global_batch_size=global_batch_size,
    )
    write_atomically(out, text)
    model = parse_document(text, TransformerDocument, file=str(out)).to_model()
    _show(model, as_json=as_json)
    if not as_json:
        typer.echo(f"model: {out}")


@app.command("from-torchrec")
def from_torchrec_command(
    maker: Annotated[
        str,
        typer.Argument(
            metavar="FILE.py:FUNCTION",
            help="A function without arguments that returns the module, or the module and an "
            "iterable of sample batches. The file is run.",
        ),
    ],
    out: Annotated[Path, typer.Option("--out", help="Model to write (.yaml).")],
    name: Annotated[str, typer.Option("--name", help="Its name; the file's by default.")] = "",
    batches: Annotated[
        int, typer.Option("--batches", min=1, help="Sample batches to read at most.")
    ] = 50,
    global_batch_size: Annotated[
        int | None,
        typer.Option(
            "--global-batch-size",
            min=1,
            help="Samples of one iteration; by default those of the first batch.",
        ),
    ] = None,
    precision: Annotated[
        str, typer.Option("--precision", help="Arithmetic: fp32, tf32, fp16 or bf16.")
    ] = "tf32",
    dense_optimizer: Annotated[
        str, typer.Option("--dense-optimizer", help="sgd, adagrad or adam.")
    ] = "adam",
    sparse_optimizer: Annotated[
        str,
        typer.Option(
            "--sparse-optimizer",
            help="sgd, rowwise_adagrad, adagrad or adam; by default the one that the module has.",
        ),
    ] = "",
    plot: Annotated[
        Path | None,
        typer.Option(
            "--plot", metavar="FILE.svg", help="Picture of how popular the rows of tables are."
        ),
    ] = None,
    force: ForceOption = False,
    as_json: JsonOption = False,
) -> None:
    """Make a recommendation model from a live TorchRec module and sample batches.

    Tables, features, update rule and dense part come from the module, which may be on the meta
    device; pooling factors and the popularity of rows from the batches.
    """
    from itertools import islice

    from dse._files import write_atomically
    from dse._terminal import visible
    from dse.cli._progress import progress
    from dse.errors import ConfigError
    from dse.machine import Precision
    from dse.model import Optimizer
    from dse.model.torchrec import read_torchrec

    _check_out(out, force=force)
    if plot is not None and plot.suffix != ".svg":
        raise ConfigError(f"--plot {plot}: expected a name that ends in .svg")
    with progress("reading the module", quiet=as_json) as display:
        module, samples = _made_by(maker)

        def counted() -> Iterator[object]:
            for number, batch in enumerate(islice(samples, batches)):
                display(number, batches, stage="counting lookups")
                yield batch

        found = read_torchrec(
            module,
            counted(),
            name=name or out.stem,
            source=maker,
            global_batch_size=global_batch_size,
            precision=member(Precision, precision, "--precision"),
            dense_optimizer=member(Optimizer, dense_optimizer, "--dense-optimizer"),
            sparse_optimizer=(
                member(Optimizer, sparse_optimizer, "--sparse-optimizer")
                if sparse_optimizer
                else None
            ),
        )
    if plot is not None:
        from dse.report.picture import write_lookups_plot

        write_lookups_plot(found.lookups, plot)
    write_atomically(out, found.text)
    _show(found.model, as_json=as_json)
    for line in found.notes:
        typer.echo(f"note: {visible(line)}", err=True)
    if not as_json:
        typer.echo(f"model: {out}")


def _made_by(maker: str) -> tuple[object, Iterable[object]]:
    """Runs a file and calls a function of it; returns the module and its batches."""
    import runpy
    import sys

    from dse.errors import ConfigError, DseError

    file, colon, function = maker.rpartition(":")
    if not colon or not Path(file).is_file():
        raise ConfigError(
            f"`{maker}`: expected FILE.py:FUNCTION with a file that is there, such as "
            "train.py:make_model"
        )
    # As when the file is run itself, modules next to it can be imported.
    sys.path.insert(0, str(Path(file).resolve().parent))
    try:
        names = runpy.run_path(file)
        made = names[function]() if callable(names.get(function)) else None
    except DseError:
        raise
    except Exception as error:
        raise ConfigError(f"{maker}: {type(error).__name__}: {error}") from error
    finally:
        sys.path.pop(0)
    if made is None:
        raise ConfigError(f"{file}: no function `{function}` that returns a module")
    if isinstance(made, tuple) and len(made) == 2:
        return made
    return made, ()


@app.command("show")
def show_command(model: ModelArgument, as_json: JsonOption = False) -> None:
    """Show a model: tables, memory, lookups, dense part, recipe."""
    from dse.model import load_model

    _show(load_model(model), as_json=as_json)


def _check_out(out: Path, *, force: bool) -> None:
    from dse.errors import ConfigError

    if out.suffix not in (".yaml", ".yml"):
        raise ConfigError(f"--out {out}: expected a name that ends in .yaml")
    if out.exists() and not force:
        raise ConfigError(f"--out {out}: exists; choose another name, or pass --force")


def _widths(text: str, option: str) -> tuple[int, ...]:
    from dse.errors import ConfigError

    parts = listed(text)
    if not all(part.isdecimal() and int(part) > 0 for part in parts):
        raise ConfigError(f"{option}: expected widths such as {_TOP}; found `{text}`")
    return tuple(map(int, parts))


def _interaction(kind: str, layers: int, low_rank: int) -> Interaction | None:
    from dse.model import Interaction, InteractionKind

    if not kind:
        return None
    chosen = member(InteractionKind, kind, "--interaction")
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
        notes.append(f"interaction: {model.interaction.kind} (--interaction)")
    return notes


def _common_width(listed: TableList, dim: int | None) -> int:
    widths = {entry.dim or dim for entry in listed.entries}
    width = widths.pop()
    return width if width and not widths else _WIDTH


def _show(model: DlrmModel | TransformerModel, *, as_json: bool) -> None:
    from dse.cli._output import emit
    from dse.model import DlrmModel

    dlrm = isinstance(model, DlrmModel)
    document = _dlrm(model) if isinstance(model, DlrmModel) else _transformer(model)
    largest = _largest_tables(model) if isinstance(model, DlrmModel) else []

    def show(console: Console) -> None:
        from dse.report.console import Table, facts, figures, names

        facts(console, ((key.replace("_", " "), _text(value)) for key, value in document.items()))
        if largest:
            titles = [column.replace("_", " ") for column in largest[0]]
            table = Table("largest tables", names(titles[0]), figures(*titles[1:]))
            for row in largest:
                table.add(*map(_text, row.values()))
            table.print(console)

    emit(document | ({"largest_tables": largest} if dlrm else {}), show, as_json=as_json)


def _text(value: object) -> str:
    if isinstance(value, list):
        return " – ".join(str(item) for item in value) or "none"
    if isinstance(value, int) and not isinstance(value, bool):
        return f"{value:,}"
    if is_dataclass(value):
        given = ((one.name, getattr(value, one.name)) for one in fields(value))
        shown = (f"{name.replace('_', ' ')} {_text(part)}" for name, part in given if part)
        return ", ".join(shown)
    return str(value)


def _largest_tables(model: DlrmModel) -> list[dict[str, object]]:
    largest = sorted(model.tables, key=lambda table: -table.weight_bytes)[:_SHOWN]
    return [
        {
            "table": table.name,
            "rows": table.rows,
            "dim": table.dim,
            "pooling": round(table.lookups_per_sample, 3),
            "data_type": table.data_type.value,
            "gib": round(table.weight_bytes / 2**30, 3),
        }
        for table in largest
    ]


def _dlrm(model: DlrmModel) -> dict[str, object]:
    from dse.model import dense_parameter_count

    return {
        "name": model.name,
        "kind": "dlrm",
        "description": model.description,
        "tables": len(model.tables),
        "features": sum(table.feature_count for table in model.tables),
        "rows": sum(table.rows for table in model.tables),
        "embedding_gib": round(model.embedding_bytes / 2**30, 3),
        "lookups_per_sample": round(sum(table.lookups_per_sample for table in model.tables), 3),
        "dense_features": model.dense_features,
        "bottom_mlp": list(model.bottom_mlp),
        "interaction": model.interaction.kind.value,
        "top_mlp": list(model.top_mlp),
        **_architecture(model),
        "dense_parameters": dense_parameter_count(model),
        "precision": model.precision.value,
        "dense_optimizer": model.dense_optimizer.value,
        "sparse_optimizer": model.sparse_optimizer.value,
        "global_batch_size": model.global_batch_size,
    }


def _architecture(model: DlrmModel) -> dict[str, object]:
    """Parts that a model need not have."""
    from dse.model import sequence_positions

    found: dict[str, object] = {}
    if model.sequence:
        sequence = model.sequence
        length, _ = sequence_positions(model)
        found["sequence"] = (
            f"{sequence.layers} layers of {sequence.hidden}, {sequence.heads} heads of "
            f"{sequence.head_dim}, {length:,.0f} positions, {sequence.predictions} predicted"
        )
    if model.towers:
        found["towers"] = [
            f"{tower.name}: {len(tower.tables)} tables, {', '.join(map(str, tower.mlp))}"
            for tower in model.towers
        ]
    if model.experts:
        experts = model.experts
        found["experts"] = (
            f"{experts.shared} shared and {experts.per_task} a task, {experts.levels} levels of "
            f"{', '.join(map(str, experts.mlp))}"
        )
    if model.tasks:
        found["tasks"] = [
            f"{task.name}: {', '.join(map(str, task.top_mlp))}" for task in model.tasks
        ]
    return found


def _transformer(model: TransformerModel) -> dict[str, object]:
    parts = {
        "experts": model.experts,
        "latent_attention": model.latent,
        "sliding_window": model.window,
        "mtp_modules": model.mtp_modules,
    }
    return {
        "name": model.name,
        "kind": "transformer",
        "description": model.description,
        "family": model.family.value,
        "layers": model.layers,
        "hidden": model.hidden,
        "heads": model.heads,
        "kv_heads": model.kv_heads,
        "head_dim": model.head_dim,
        "ffn_hidden": model.ffn_hidden,
        **{name: part for name, part in parts.items() if part},
        "vocab": model.vocab,
        "parameters": model.parameter_count,
        "active_parameters": model.active_parameter_count,
        "sequence_length": model.sequence_length,
        "precision": model.precision.value,
        "global_batch_size": model.global_batch_size,
    }
