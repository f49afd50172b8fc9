"""`dse fit`: a calibration from published measurements."""

from __future__ import annotations

from dataclasses import replace
import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from dse.cli._options import ForceOption, JsonOption, PlatformOption, member, pairs
from dse.errors import ConfigError, DseError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from dse._text.terminal import Console
    from dse.calibration import FitOrigin
    from dse.calibration.measurements import ColumnOptions
    from dse.machine import Cluster
    from dse.machine.platforms import CalibrationFile

#: Most characters of a name or a source in a calibration file.
_LONGEST_NAME = 200

#: How much longer than the shortest the longest of repeated collectives may be.
_TOLERANCE = 0.5

#: Options that not all kinds have, with the kinds that do.
_KINDS_OF_OPTIONS = {
    "--op": ("collective", "embedding", "network"),
    "--ranks": ("exchange", "collective", "network"),
    "--nodes": ("network",),
    "--size-unit": ("collective", "network"),
    "--link": ("collective", "network"),
    "--network": ("network",),
    "--in-place": ("collective", "network"),
    "--implementation": ("gemm", "attention", "experts", "exchange"),
    "--nccl": ("collective",),
    "--tolerance": ("collective", "network"),
}


def fit_command(
    kind: Annotated[
        Literal["gemm", "attention", "experts", "exchange", "collective", "embedding", "network"],
        typer.Argument(
            metavar="KIND",
            help="What was measured: gemm, attention, experts, exchange, collective, embedding or "
            "network; exchange means tokens on their way to experts, network "
            "collectives over several nodes.",
        ),
    ],
    data: Annotated[
        list[Path],
        typer.Argument(
            metavar="DATA...",
            help="CSV, Parquet, JSON lines, or the text that nccl-tests prints; several files for "
            "a network.",
        ),
    ],
    platform: PlatformOption,
    out: Annotated[
        Path, typer.Option("--out", metavar="FILE", help="Calibration file to write (.json).")
    ],
    source: Annotated[
        str,
        typer.Option(
            "--source", metavar="TEXT", help="Who measured, with what; kept as provenance."
        ),
    ] = "",
    as_of: Annotated[
        str,
        typer.Option(
            "--as-of", metavar="DATE", help="When: YYYY, YYYY-MM, YYYY-MM-DD or unknown."
        ),
    ] = "unknown",
    column: Annotated[
        list[str] | None,
        typer.Option(
            "--column", metavar="OURS=THEIRS", help="Name of a column that is not recognised."
        ),
    ] = None,
    where: Annotated[
        list[str] | None,
        typer.Option("--where", metavar="COLUMN=VALUE", help="Keep only these rows."),
    ] = None,
    time_unit: Annotated[
        Literal["s", "ms", "us", "ns"] | None,
        typer.Option("--time-unit", metavar="UNIT", help="Unit of the times: s, ms, us or ns."),
    ] = None,
    size_unit: Annotated[
        Literal["bytes", "elements"] | None,
        typer.Option(
            "--size-unit",
            metavar="UNIT",
            help="Unit of message sizes (collectives): bytes or elements.",
        ),
    ] = None,
    precision: Annotated[
        str | None,
        typer.Option("--precision", metavar="TYPE", help="Precision or type of all rows."),
    ] = None,
    op: Annotated[
        str | None,
        typer.Option(
            "--op",
            metavar="OP",
            help="Operation of all rows (collectives, embeddings): all_reduce, forward, …; of "
            "several files, of those that do not state it.",
        ),
    ] = None,
    ranks: Annotated[
        int | None,
        typer.Option(
            "--ranks",
            metavar="N",
            min=2,
            help="Ranks of all rows (collectives); of several files, of those that do not state "
            "them.",
        ),
    ] = None,
    nodes: Annotated[
        int | None,
        typer.Option(
            "--nodes",
            metavar="N",
            min=2,
            help="Nodes of all rows (networks); by default the hosts that a log names, or full "
            "nodes.",
        ),
    ] = None,
    link: Annotated[
        str | None,
        typer.Option(
            "--link",
            metavar="NAME",
            help="Interconnect inside a node (collectives); by default the platform's.",
        ),
    ] = None,
    network: Annotated[
        str | None,
        typer.Option(
            "--network",
            metavar="NAME",
            help="Network that was measured (networks); by default the platform's.",
        ),
    ] = None,
    in_place: Annotated[
        bool, typer.Option("--in-place", help="Take nccl-tests' in-place times (collectives).")
    ] = False,
    implementation: Annotated[
        str,
        typer.Option(
            "--implementation", metavar="NAME", help="Library whose kernels were measured."
        ),
    ] = "",
    nccl: Annotated[
        str | None,
        typer.Option(
            "--nccl",
            metavar="VERSION",
            help="Version of NCCL of all rows (collectives), such as 2.27.3.",
        ),
    ] = None,
    tolerance: Annotated[
        float | None,
        typer.Option(
            "--tolerance",
            metavar="X",
            min=0.0,
            help="How far the longest of repeated measurements may exceed the shortest "
            f"(collectives); {_TOLERANCE:g} by default.",
        ),
    ] = None,
    force: ForceOption = False,
    as_json: JsonOption = False,
) -> None:
    """Fit a calibration and print its error on points that the fit did not see."""
    from dse.calibration import FitOrigin
    from dse.calibration.measurements import ColumnOptions
    from dse.cli._output import emit
    from dse.machine.platforms import load_platform, write_calibrations
    from dse.report.console import line
    from dse.report.terminal import calibration_rows, print_calibrations

    given = {
        "--op": op,
        "--ranks": ranks,
        "--nodes": nodes,
        "--size-unit": size_unit,
        "--link": link,
        "--network": network,
        "--in-place": in_place,
        "--implementation": implementation,
        "--nccl": nccl,
        "--tolerance": tolerance,
    }
    _refuse_others(kind, [name for name, value in given.items() if value])
    if len(data) > 1 and kind != "network":
        raise ConfigError(
            f"`fit {kind}` reads one file, found {len(data)}; only `fit network` joins several"
        )
    _check_as_of(as_of)
    for name, text in (("--source", source), ("--implementation", implementation)):
        if len(text) > _LONGEST_NAME:
            raise ConfigError(f"{name}: {len(text)} characters; at most {_LONGEST_NAME} are kept")
    _check_out(out, force=force)
    # Two ranks on one node: any platform has them, and all of its links and networks.
    cluster = load_platform(platform).cluster(2, link=link or "", network=network or "")
    options = ColumnOptions(
        columns=pairs("--column", column),
        time_unit=time_unit,
        size_unit=size_unit,
        precision=precision,
        op=op,
        ranks=ranks,
        nodes=nodes,
        filters=pairs("--where", where),
        in_place=in_place,
        nccl=nccl,
        device=cluster.device.name,
    )
    names = ", ".join(path.name for path in data)
    default = f"measurements in {names}"[:_LONGEST_NAME]
    origin = FitOrigin(out.stem, cluster.device.name, source or default, as_of, implementation)
    fitted, notes = _fit(kind, data, options, cluster, origin, tolerance)
    write_calibrations(out, fitted)
    rows = calibration_rows(fitted)

    def show(console: Console) -> None:
        print_calibrations(rows, console)
        for note in notes:
            line(console, f"note: {note}")
        line(console, f"written to {out}; a platform in its folder uses it by")
        line(console, f"  calibrations:\n    - file: {out.name}")
        if kind == "network":
            line(console, f"      network: {cluster.network.name}")

    emit({"file": out, "notes": notes, "models": rows}, show, as_json=as_json)


def _refuse_others(kind: str, given: Sequence[str]) -> None:
    """Refuses options that another kind of measurements has."""
    problems = []
    for option in given:
        kinds = _KINDS_OF_OPTIONS[option]
        if kind not in kinds:
            owners = ", ".join(f"`fit {owner}`" for owner in kinds)
            problems.append(
                f"{option} does not apply to `fit {kind}`, only to {owners}; leave it out"
            )
    if problems:
        raise ConfigError("\n".join(problems))


def _check_as_of(as_of: str) -> None:
    from dse.config import is_date

    if as_of != "unknown" and not is_date(as_of):
        raise ConfigError(
            f"--as-of: expected YYYY, YYYY-MM, YYYY-MM-DD or unknown; found `{as_of}`; leave it "
            "out when the date is not known"
        )


def _check_out(out: Path, *, force: bool) -> None:
    """Refuses a file that cannot be written, or that another program wrote."""
    if out.suffix != ".json":
        raise ConfigError(f"--out {out}: expected a name that ends in .json")
    if len(out.stem) > _LONGEST_NAME:
        raise ConfigError(
            f"--out: a name of {len(out.stem)} characters; at most {_LONGEST_NAME} are allowed, "
            "choose a shorter one"
        )
    if not out.parent.is_dir():
        wrong = "is a file; choose another" if out.parent.exists() else "does not exist; create it"
        raise ConfigError(f"--out {out}: the folder {out.parent} {wrong}")
    if not os.access(out.parent, os.W_OK | os.X_OK):
        raise ConfigError(
            f"--out {out}: the folder {out.parent} cannot be written; choose another one"
        )
    if out.exists() and not force and not _is_own(out):
        raise ConfigError(
            f"--out {out}: {out} exists and was not written by `dse fit` under this name; choose "
            "another name, or pass --force to replace it"
        )


def _is_own(out: Path) -> bool:
    """Returns whether a file is a calibration under its own name."""
    from dse.machine.platforms import read_calibrations

    try:
        content = read_calibrations(out)
    except DseError:
        return False
    origins = [kernel.provenance for kernel in content.kernels]
    origins += [collective.provenance for collective in content.collectives]
    origins += [network.provenance for network in content.networks]
    return bool(origins) and all(origin.name == out.stem for origin in origins)


def _fit(
    kind: str,
    data: Sequence[Path],
    options: ColumnOptions,
    cluster: Cluster,
    origin: FitOrigin,
    tolerance: float | None,
) -> tuple[CalibrationFile, tuple[str, ...]]:
    from dse import calibration
    from dse.calibration import measurements
    from dse.machine import Precision
    from dse.machine.fits import NEWEST
    from dse.machine.platforms import CalibrationFile

    device, allowed = cluster.device, _TOLERANCE if tolerance is None else tolerance
    if kind == "network":
        measured = measurements.read_collectives(data, options, tolerance=allowed)
        network = calibration.fit_network(measured, cluster, origin, tolerance=allowed)
        return CalibrationFile(networks=(network,)), measurements.joined(measured).notes
    (file,) = data
    if kind == "collective":
        collectives = measurements.read_collective(file, options, tolerance=allowed)
        calibration.check_one_domain(collectives, cluster)
        curves = calibration.fit_collectives(collectives, origin, link=cluster.link)
        bare = replace(cluster.link, name="", calibrations=(), nccl=NEWEST)
        notes = (*collectives.notes, *calibration.notes_on_integers(collectives))
        return CalibrationFile(collectives=curves, link=bare), notes
    if kind == "gemm":
        products = measurements.read_gemm(file, options)
        kernels, notes = calibration.fit_gemm(device, products, origin), products.notes
    elif kind == "attention":
        precision = member(Precision, options.precision or "bf16", "--precision")
        heads = measurements.read_attention(file, replace(options, precision=None))
        kernels = (calibration.fit_attention(device, heads, precision, origin),)
        notes = heads.notes
    elif kind == "experts":
        blocks = measurements.read_experts(file, options)
        kernels, notes = (calibration.fit_experts(device, blocks, origin),), blocks.notes
    elif kind == "exchange":
        sent = measurements.read_exchange(file, options)
        kernels, notes = (calibration.fit_exchange(device, sent, origin),), sent.notes
    else:
        lookups = measurements.read_embedding(file, options)
        kernels, notes = calibration.fit_embedding(device, lookups, origin), lookups.notes
    return CalibrationFile(kernels=kernels), notes
