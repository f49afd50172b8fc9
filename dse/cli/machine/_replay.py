"""`dse replay`: captured execution traces as benchmarks."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from dse.cli._options import DeviceName, JsonOption, SeedOption, quantity
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
    device: Annotated[
        DeviceName, typer.Option("--device", metavar="KIND", help="cpu or cuda.")
    ] = "cpu",
    iterations: Annotated[
        int,
        typer.Option("--iterations", metavar="N", min=1, help="Timed repetitions of the range."),
    ] = 10,
    warm_up: Annotated[
        int, typer.Option("--warm-up", metavar="N", min=0, help="Untimed repetitions before them.")
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
        Literal["auto", "run", "mock", "skip"],
        typer.Option(
            "--collectives",
            metavar="HOW",
            help="run (local processes), mock (local copies), skip, or auto: run if all ranks are "
            "given, else mock.",
        ),
    ] = "auto",
    scale_batch: Annotated[
        float, typer.Option("--scale-batch", metavar="F", help="Scale the batch by this factor.")
    ] = 1.0,
    batch_size: Annotated[
        int | None,
        typer.Option(
            "--batch-size",
            metavar="N",
            min=1,
            help="Samples of a recorded step, for --scale-batch; found in the trace by default.",
        ),
    ] = None,
    indices: Annotated[
        str,
        typer.Option(
            "--indices", metavar="KIND", help="Indices of lookups: uniform or zipf[:alpha]."
        ),
    ] = "uniform",
    kineto: Annotated[
        list[Path] | None,
        typer.Option(
            "--kineto",
            metavar="PATH",
            help="Kineto traces of the same run; those next to TRACE by default.",
        ),
    ] = None,
    operators: Annotated[
        list[Path] | None,
        typer.Option(
            "--operators",
            metavar="FILE",
            help="Python files that register operators; they are executed.",
        ),
    ] = None,
    memory_limit: Annotated[
        str | None,
        typer.Option(
            "--memory-limit",
            metavar="SIZE",
            help="Memory limit of tensors, such as 8GiB; by default 90 % of the free memory.",
        ),
    ] = None,
    threads: Annotated[
        int | None, typer.Option("--threads", metavar="N", min=1, help="Threads of one rank.")
    ] = None,
    timeout: Annotated[
        str,
        typer.Option(
            "--timeout", metavar="TIME", help="Time for ranks and collectives to answer."
        ),
    ] = "10min",
    seed: SeedOption = 0,
    as_json: JsonOption = False,
) -> None:
    """Run captured execution traces as a benchmark, without the original code."""
    from dse.cli._output import emit
    from dse.config import UnitKind
    from dse.report.terminal import print_replay_result
    from dse.trace.replay import ReplayOptions, parse_indices, replay

    if compute_only and communication_only:
        raise ConfigError("--compute-only and --communication-only exclude each other; choose one")
    part = "compute" if compute_only else "communication" if communication_only else "all"
    limit: int | None = None
    if memory_limit is not None:
        limit = int(quantity("--memory-limit", memory_limit, UnitKind.SIZE))
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
        timeout_s=quantity("--timeout", timeout, UnitKind.TIME),
        seed=seed,
    )
    result = replay(traces, options, kineto=kineto or (), operators=operators or ())
    emit(_document(result), lambda console: print_replay_result(result, console), as_json=as_json)


def _document(result: ReplayResult) -> dict[str, object]:
    from dse.cli._output import fields_of

    ranks = [
        {
            **fields_of(rank, "replayed_s", "error"),
            "original": fields_of(rank.original, "reference_s"),
            "coverage": fields_of(rank.coverage, "operator_share"),
        }
        for rank in result.ranks
    ]
    return {
        "device": result.device,
        "device_name": result.device_name,
        "torch_version": result.torch_version,
        "collectives": result.collectives,
        "ranks": ranks,
        "notes": result.notes,
    }
