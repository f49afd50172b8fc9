"""`dse fit`: a calibration from somebody's measurements."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from dse.cli._options import JsonOption, PlatformOption
from dse.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from dse.calibrate import FitOrigin
    from dse.hardware import DeviceSpec
    from dse.measurements import ColumnOptions
    from dse.platforms import CalibrationFile


def fit_command(
    kind: Annotated[
        Literal["gemm", "collective", "embedding"], typer.Argument(help="What was measured.")
    ],
    data: Annotated[
        Path,
        typer.Argument(
            metavar="DATA", help="CSV, Parquet, JSON lines, or the text that nccl-tests prints."
        ),
    ],
    platform: PlatformOption,
    out: Annotated[Path, typer.Option("--out", help="Calibration file to write (.json).")],
    source: Annotated[
        str, typer.Option("--source", help="Who measured, with what; kept as provenance.")
    ] = "",
    as_of: Annotated[
        str, typer.Option("--as-of", help="When: YYYY, YYYY-MM or YYYY-MM-DD.")
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
        str | None, typer.Option("--time-unit", help="Unit of the times: s, ms, us or ns.")
    ] = None,
    size_unit: Annotated[
        str | None,
        typer.Option("--size-unit", help="Unit of message sizes: bytes or elements."),
    ] = None,
    precision: Annotated[
        str | None, typer.Option("--precision", help="Precision or type of all rows.")
    ] = None,
    op: Annotated[
        str | None, typer.Option("--op", help="Operation of all rows (all_reduce, forward, …).")
    ] = None,
    ranks: Annotated[
        int | None, typer.Option("--ranks", min=2, help="Ranks of all rows (collectives).")
    ] = None,
    in_place: Annotated[
        bool, typer.Option("--in-place", help="Take nccl-tests' in-place times.")
    ] = False,
    json_output: JsonOption = False,
) -> None:
    """Fit a calibration and print its error on points that the fit did not see."""
    from dse.calibrate import FitOrigin
    from dse.measurements import ColumnOptions
    from dse.platforms import load_platform, write_calibrations

    if out.suffix != ".json":
        raise ConfigError(f"--out {out}: expected a name that ends in .json")
    options = ColumnOptions(
        columns=_pairs("--column", column),
        time_unit=time_unit,
        size_unit=size_unit,
        precision=precision,
        op=op,
        ranks=ranks,
        filters=_pairs("--where", where),
        in_place=in_place,
    )
    device = load_platform(platform).device
    origin = FitOrigin(out.stem, device.name, source or f"measurements in {data.name}", as_of)
    fitted, notes = _fit(kind, data, options, device, origin)
    write_calibrations(out, fitted)
    _show(fitted, notes, out, as_json=json_output)


def _fit(
    kind: str, data: Path, options: ColumnOptions, device: DeviceSpec, origin: FitOrigin
) -> tuple[CalibrationFile, tuple[str, ...]]:
    from dse.platforms import CalibrationFile

    if kind == "gemm":
        from dse.calibrate import fit_gemm
        from dse.measurements import read_gemm

        products = read_gemm(data, options)
        return CalibrationFile(kernels=fit_gemm(device, products, origin)), products.notes
    if kind == "collective":
        from dse.calibrate import fit_collectives
        from dse.measurements import read_collective

        collectives = read_collective(data, options)
        fitted = fit_collectives(collectives, origin)
        return CalibrationFile(collectives=fitted), collectives.notes
    from dse.calibrate import fit_embedding
    from dse.measurements import read_embedding

    lookups = read_embedding(data, options)
    return CalibrationFile(kernels=fit_embedding(device, lookups, origin)), lookups.notes


def _pairs(option: str, texts: Sequence[str] | None) -> dict[str, str]:
    pairs = {}
    for text in texts or ():
        left, equals, right = text.partition("=")
        if not (left and equals and right):
            raise ConfigError(f"{option} {text}: expected two names with `=` between them")
        pairs[left] = right
    return pairs


def _show(fitted: CalibrationFile, notes: tuple[str, ...], out: Path, *, as_json: bool) -> None:
    import json

    from rich.console import Console

    from dse.report import calibration_rows, render_calibrations

    rows = calibration_rows(fitted)
    if as_json:
        models = [row.as_json() for row in rows]
        document = {"file": str(out), "notes": list(notes), "models": models}
        typer.echo(json.dumps(document, indent=1))
        return
    render_calibrations(rows, Console())
    for note in notes:
        typer.echo(f"note: {note}")
    typer.echo(f"written to {out}; a platform in its folder uses it by")
    typer.echo(f"  calibrations:\n    - file: {out.name}")
