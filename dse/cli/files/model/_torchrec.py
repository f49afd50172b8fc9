"""`dse model from-torchrec`: a model from a live module and sample batches."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from dse.cli._options import (
    ForceOption,
    JsonOption,
    SparseOptimizerName,
    new_file,
)
from dse.cli.files.model._write import (
    DenseOptimizerOption,
    DensePrecisionOption,
    NameOption,
    OutOption,
    check_out,
    write_model,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator


def from_torchrec_command(
    maker: Annotated[
        str,
        typer.Argument(
            metavar="FILE.py:FUNCTION",
            help="A function without arguments that returns the module, or the module and an "
            "iterable of sample batches, or these two and a function that calls the module with a "
            "batch. The file is executed.",
        ),
    ],
    out: OutOption,
    name: NameOption = "",
    batches: Annotated[
        int, typer.Option("--batches", metavar="N", min=1, help="Sample batches to read at most.")
    ] = 50,
    global_batch_size: Annotated[
        int | None,
        typer.Option(
            "--global-batch-size",
            metavar="N",
            min=1,
            help="Samples of one iteration; by default those of the first batch.",
        ),
    ] = None,
    precision: DensePrecisionOption = "tf32",
    dense_optimizer: DenseOptimizerOption = "adam",
    sparse_optimizer: Annotated[
        SparseOptimizerName | None,
        typer.Option(
            "--sparse-optimizer",
            metavar="RULE",
            help="sgd, rowwise_adagrad, adagrad or adam; by default the one that the module has.",
        ),
    ] = None,
    sequence: Annotated[
        str,
        typer.Option(
            "--sequence",
            metavar="FIELDS",
            help="Attention over an EmbeddingCollection, if the module does not run: "
            '"{layers: 8, hidden: 512, heads: 4, head_dim: 128}".',
        ),
    ] = "",
    plot: Annotated[
        Path | None,
        typer.Option(
            "--plot", metavar="FILE", help="Picture (.svg) of the popularity of the tables' rows."
        ),
    ] = None,
    force: ForceOption = False,
    as_json: JsonOption = False,
) -> None:
    """Make a recommendation model from a live TorchRec module and sample batches.

    Tables, features and update rule come from the module, which may be on the meta device;
    pooling factors and the popularity of rows from the batches; and the operators of the dense
    part from running it on one of them.
    """
    from itertools import islice

    from dse.cli._progress import progress
    from dse.errors import ConfigError
    from dse.machine import Precision
    from dse.model import Optimizer
    from dse.model.torchrec import read_torchrec

    check_out(out, force=force)
    if plot is not None and plot.suffix != ".svg":
        raise ConfigError(f"--plot {plot}: expected a name that ends in .svg")
    new_file("--plot", plot, force=force)
    with progress("reading the module", quiet=as_json) as display:
        module, samples, forward = _made_by(maker)

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
            precision=Precision(precision),
            dense_optimizer=Optimizer(dense_optimizer),
            sparse_optimizer=(Optimizer(sparse_optimizer) if sparse_optimizer else None),
            sequence=_fields(sequence) if sequence else None,
            forward=forward,
        )
    if plot is not None:
        from dse.report.picture import write_lookups_plot

        write_lookups_plot(found.lookups, plot)
    write_model(out, found.text, found.model, found.notes, as_json=as_json)


def _fields(text: str) -> dict[str, object]:
    """Parses the fields of a sequence."""
    from dse.config import parse_plain
    from dse.errors import ConfigError

    found = parse_plain(text, file="--sequence")
    if not isinstance(found, dict):
        raise ConfigError(
            f"--sequence {text}: expected fields, such as "
            '"{layers: 8, hidden: 512, heads: 4, head_dim: 128}"'
        )
    return found


def _made_by(maker: str) -> tuple[object, Iterable[object], Callable[[Any, Any], Any] | None]:
    """Runs a file and calls a function of it; returns module, batches and what calls it."""
    import runpy
    import sys

    from dse.errors import ConfigError, DseError

    file, colon, function = maker.rpartition(":")
    if not colon or not Path(file).is_file():
        raise ConfigError(
            f"`{maker}`: expected FILE.py:FUNCTION with an existing file, such as "
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
    if not isinstance(made, tuple):
        return made, (), None
    if len(made) == 2:
        return (*made, None)
    if len(made) == 3 and callable(made[2]):
        return made
    raise ConfigError(
        f"{maker}: expected the module, or the module and batches, or these two and a function "
        f"that calls the module with a batch; found a tuple of {len(made)}"
    )
