"""`dse collective`: what a collective should reach."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from dse.cli._options import (
    ForceOption,
    JsonOption,
    LinkOption,
    NetworkOption,
    PlatformOption,
    SetOption,
    new_file,
)
from dse.errors import ConfigError

if TYPE_CHECKING:
    from dse._text.terminal import Console
    from dse.machine.collectives import CollectiveTable


def collective_command(
    platform: PlatformOption,
    op: Annotated[
        Literal[
            "all_reduce", "all_gather", "reduce_scatter", "all_to_all", "broadcast", "send_recv"
        ],
        typer.Option(
            "--op",
            metavar="OP",
            help="all_reduce, all_gather, reduce_scatter, all_to_all, broadcast or send_recv.",
        ),
    ],
    size: Annotated[
        str,
        typer.Option(
            "--size",
            metavar="SIZE",
            help="Message as nccl-tests counts it, such as 64MiB; without it all sizes from 1 KiB "
            "to 4 GiB.",
        ),
    ] = "",
    world_size: Annotated[
        int | None,
        typer.Option(
            "--world-size",
            metavar="N",
            min=2,
            help="Number of ranks; without it powers of two that fill nodes.",
        ),
    ] = None,
    link: LinkOption = "",
    network: NetworkOption = "",
    changes: SetOption = None,
    plot: Annotated[
        Path | None,
        typer.Option(
            "--plot",
            metavar="FILE",
            help="Draw bus bandwidth over size, a line for each rank count (.svg).",
        ),
    ] = None,
    force: ForceOption = False,
    as_json: JsonOption = False,
) -> None:
    """Expected time and bandwidth of a collective, and what decides them.

    Bandwidths are counted as in nccl-tests, so they can be compared with a cluster's acceptance
    test.
    """
    from dse.api import TABLE_SIZES_BYTES, collective_table
    from dse.cli._output import emit
    from dse.machine.platforms import load_platform, override_platform
    from dse.report.console import line
    from dse.report.picture import write_collective_plot
    from dse.report.terminal import print_collective, print_collectives

    if plot is not None and plot.suffix != ".svg":
        raise ConfigError(f"--plot {plot}: expected a name that ends in .svg")
    new_file("--plot", plot, force=force)
    machine, _ = override_platform(load_platform(platform), changes or ())
    ranks = (world_size,) if world_size is not None else ()
    sizes = (size,) if size else TABLE_SIZES_BYTES
    table = collective_table(
        op, machine, sizes=sizes, world_sizes=ranks, link=link, network=network
    )
    if plot is not None:
        curves = table
        if size:
            curves = collective_table(op, machine, world_sizes=ranks, link=link, network=network)
        write_collective_plot(curves, plot)

    def show(console: Console) -> None:
        if len(table.points) == 1:
            print_collective(table, console)
        else:
            print_collectives(table, console)
        if plot is not None:
            line(console, f"plot: {plot}")

    emit(_document(table), show, as_json=as_json)


def _document(table: CollectiveTable) -> dict[str, object]:
    from dse.cli._output import fields_of

    return {
        "op": table.op,
        "platform": table.platform,
        "link": table.link,
        "network": table.network,
        "points": [
            fields_of(
                point,
                "decided_by",
                "algorithm_bandwidth_bytes_per_s",
                "bus_bandwidth_bytes_per_s",
                "low_bus_bandwidth_bytes_per_s",
                "high_bus_bandwidth_bytes_per_s",
            )
            for point in table.points
        ],
    }
