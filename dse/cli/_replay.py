"""`dse replay`: captured execution traces as benchmarks."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from dse.cli._options import JsonOption
from dse.errors import ConfigError

if TYPE_CHECKING:
    from dse.trace.replay import ReplayResult


def replay_command(
    traces: Annotated[
        list[Path],
        typer.Argument(
            metavar="TRACE...",
            help="PyTorch execution traces: .json, .json.gz, .tar.gz, or the folder of a capture; "
            "several are the ranks of one job.",
        ),
    ],
    device: Annotated[str, typer.Option("--device", help="cpu or cuda.")] = "cpu",
    iterations: Annotated[
        int, typer.Option("--iterations", min=1, help="Timed repetitions of the range.")
    ] = 10,
    warm_up: Annotated[
        int, typer.Option("--warm-up", min=0, help="Repetitions ahead of them.")
    ] = 3,
    begin: Annotated[
        str, typer.Option("--from", metavar="LABEL", help="Begin with this annotation.")
    ] = "",
    end: Annotated[
        str, typer.Option("--to", metavar="LABEL", help="End with the end of this annotation.")
    ] = "",
    compute_only: Annotated[
        bool, typer.Option("--compute-only", help="Leave collectives out.")
    ] = False,
    communication_only: Annotated[
        bool, typer.Option("--communication-only", help="Replay collectives only.")
    ] = False,
    collectives: Annotated[
        str,
        typer.Option(
            "--collectives",
            help="run (local processes), mock (local copies), skip, or auto: run if all ranks are "
            "given, else mock.",
        ),
    ] = "auto",
    scale_batch: Annotated[
        float, typer.Option("--scale-batch", metavar="F", help="Factor on the batch.")
    ] = 1.0,
    batch_size: Annotated[
        int | None,
        typer.Option(
            "--batch-size",
            min=1,
            help="Samples of a recorded step, for --scale-batch; found in the trace by default.",
        ),
    ] = None,
    indices: Annotated[
        str, typer.Option("--indices", help="Indices of lookups: uniform or zipf[:alpha].")
    ] = "uniform",
    kineto: Annotated[
        list[Path] | None,
        typer.Option(
            "--kineto", help="Kineto traces of the same run; those beside TRACE by default."
        ),
    ] = None,
    operators: Annotated[
        list[Path] | None,
        typer.Option("--operators", help="Python files that register operators; they are run."),
    ] = None,
    memory_limit: Annotated[
        str | None,
        typer.Option(
            "--memory-limit",
            help="Most that tensors may take, such as 8GiB; 90 % of the free memory.",
        ),
    ] = None,
    threads: Annotated[
        int | None, typer.Option("--threads", min=1, help="Threads of one rank.")
    ] = None,
    timeout: Annotated[
        str, typer.Option("--timeout", help="Time for ranks and collectives to answer.")
    ] = "10min",
    seed: Annotated[int, typer.Option("--seed", help="Seed of indices and values.")] = 0,
    as_json: JsonOption = False,
) -> None:
    """Run captured execution traces as a benchmark, without the code that they are of."""
    import json

    from dse._terminal import Console
    from dse.config import UnitKind
    from dse.report import render_replay_result
    from dse.trace.replay import ReplayOptions, parse_indices, replay

    if compute_only and communication_only:
        raise ConfigError("--compute-only and --communication-only leave nothing; choose one")
    part = "compute" if compute_only else "communication" if communication_only else "all"
    limit: int | None = None
    if memory_limit is not None:
        limit = int(_quantity(memory_limit, UnitKind.SIZE, "memory-limit"))
    options = ReplayOptions(
        device=device,
        iterations=iterations,
        warm_up=warm_up,
        part=part,
        collectives=collectives,
        begin=begin,
        end=end,
        scale_batch=scale_batch,
        batch=batch_size,
        indices=parse_indices(indices),
        memory_limit_bytes=limit,
        threads=threads,
        timeout_s=_quantity(timeout, UnitKind.TIME, "timeout"),
        seed=seed,
    )
    result = replay(traces, options, kineto=kineto or (), operators=operators or ())
    if as_json:
        typer.echo(json.dumps(replay_json(result), indent=1))
    else:
        render_replay_result(result, Console())


def _quantity(text: str, kind: object, option: str) -> float:
    from dse.config import UnitKind, parse_quantity

    assert isinstance(kind, UnitKind)
    try:
        return parse_quantity(text, kind)
    except ValueError as error:
        raise ConfigError(f"--{option}: {error}") from error


def replay_json(result: ReplayResult) -> dict[str, object]:
    """Returns the document that `--json` prints."""
    from dataclasses import asdict

    return {
        "device": result.device,
        "device_name": result.device_name,
        "torch_version": result.torch_version,
        "collectives": result.collectives,
        "ranks": [
            {
                **asdict(rank),
                "replayed_s": rank.replayed_s,
                "original": {**asdict(rank.original), "reference_s": rank.original.reference_s},
                "error": rank.error,
                "coverage": {
                    **asdict(rank.coverage),
                    "operator_share": rank.coverage.operator_share,
                },
            }
            for rank in result.ranks
        ],
        "notes": list(result.notes),
    }
