"""Errors of the models on measurements that they were not fitted on.

Usage:
    python benchmarks/accuracy.py [--data DIR] [--shipped] [--json] [--write docs/accuracy.md]
    python benchmarks/accuracy.py --published CASES.csv [--json]

The first form prints one table: models of kernels and collectives by device, beside simpler ones.
It needs the tables of measurements named in docs/accuracy.md (by default in `../shared/data`, or
the folder that DSE_MEASUREMENTS names) and the session of one CPU that lies beside this script.
`--shipped` lists the models that ship fitted, too, with the errors that their files carry. The
second form compares published training throughputs with predicted ones.
"""

from __future__ import annotations

import argparse
from dataclasses import asdict
import json
import os
from pathlib import Path
import sys
from typing import TYPE_CHECKING

from accuracy_page import accuracy_page
from device_models import AccuracyRow, device_rows, machine_rows
from published_cases import compare_published

from dse.errors import DseError
from dse.platforms import builtin_calibrations

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT = Path(__file__).resolve().parent.parent
DATA = Path(os.environ.get("DSE_MEASUREMENTS", ROOT.parent / "shared" / "data"))


def shipped_rows() -> Iterator[AccuracyRow]:
    """Yields the errors that the shipped calibrations carry."""
    for name, content in builtin_calibrations():
        for kernel in content.kernels:
            what = " ".join([kernel.op, *kernel.precisions])
            yield AccuracyRow.of(what, name, "shipped", kernel.held_out)
        for collective in content.collectives:
            what = f"{collective.op}, {collective.ranks} ranks"
            yield AccuracyRow.of(what, name, "shipped", collective.held_out)


def print_table(rows: list[AccuracyRow]) -> None:
    """Prints one line for each model and device."""
    width = max(len(row.what) for row in rows)
    device = max(len(row.device) for row in rows)
    model = max(len(row.model) for row in rows)
    print(
        f"{'what':<{width}}  {'device':<{device}}  {'model':<{model}}  {'points':>7} {'GMAE':>7} "
        f"{'MAPE':>7} {'p90':>7}"
    )
    for row in rows:
        print(
            f"{row.what:<{width}}  {row.device:<{device}}  {row.model:<{model}}  {row.points:7,} "
            f"{100 * row.gmae:6.2f}% {100 * row.mape:6.2f}% {100 * row.p90:6.1f}%"
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", type=Path, default=DATA, help="folder of measurements")
    parser.add_argument("--published", type=Path, help="file of published training throughputs")
    parser.add_argument("--write", type=Path, help="Markdown file to write the table to")
    parser.add_argument("--shipped", action="store_true", help="list shipped models, too")
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    try:
        if arguments.published is not None:
            compare_published(arguments.published, as_json=arguments.json)
            return
        fresh = list(device_rows(arguments.data))
        if not fresh:
            print(
                f"note: no measurements of GPUs in {arguments.data}; see --shipped for what the "
                "shipped calibrations say of themselves",
                file=sys.stderr,
            )
        fresh += machine_rows(ROOT / "benchmarks/measurements/cpu_epyc.points.jsonl")
        shipped = list(shipped_rows())
    except DseError as error:
        parser.error(str(error))
    if arguments.json:
        print(json.dumps([asdict(row) for row in [*fresh, *shipped]], indent=1))
    else:
        print_table([*fresh, *shipped] if arguments.shipped else fresh)
    if arguments.write is not None and len({row.device for row in fresh}) < 2:
        parser.error(f"--write needs measurements of GPUs; {arguments.data} has none")
    if arguments.write is not None:
        arguments.write.write_text(accuracy_page(fresh, shipped), encoding="utf-8")


if __name__ == "__main__":
    main()
