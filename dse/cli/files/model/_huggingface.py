"""`dse model from-hf`: a model from a Hugging Face configuration."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from dse.cli._options import ForceOption, JsonOption
from dse.cli.files.model._write import BatchOption, NameOption, OutOption, check_out, write_model


def from_hf_command(
    config: Annotated[
        Path,
        typer.Argument(metavar="CONFIG", help="`config.json` of a Hugging Face model."),
    ],
    out: OutOption,
    name: NameOption = "",
    sequence_length: Annotated[
        int | None,
        typer.Option(
            "--sequence-length",
            metavar="N",
            min=1,
            help="Tokens of a sample; by default as many as the model takes.",
        ),
    ] = None,
    global_batch_size: BatchOption = 512,
    force: ForceOption = False,
    as_json: JsonOption = False,
) -> None:
    """Make a transformer from the configuration of a Hugging Face model.

    Decoders such as Llama, Mistral, Mixtral, Qwen and Gemma, and BERT.
    """
    from dse.config import parse_document
    from dse.model import TransformerDocument, compose_transformer

    check_out(out, force=force)
    text = compose_transformer(
        config,
        name=name or out.stem,
        sequence_length=sequence_length,
        global_batch_size=global_batch_size,
    )
    model = parse_document(text, TransformerDocument, file=str(out)).to_model()
    notes = []
    if sequence_length is None:
        notes.append(
            f"samples are as long as the model takes, {model.sequence_length:,} tokens; if you "
            "train on shorter ones, pass --sequence-length"
        )
    write_model(out, text, model, notes, as_json=as_json)
