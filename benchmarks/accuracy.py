"""Errors of the models on measurements that they were not fitted on.

Usage:
    python benchmarks/accuracy.py [--data DIR] [--shipped] [--json] [--write docs/accuracy.md]
    python benchmarks/accuracy.py --end-to-end [--cases] [--json] [--write docs/accuracy.md]
    python benchmarks/accuracy.py --published CASES.csv [--json]
    python benchmarks/accuracy.py --train-only CASES.csv [--json]
    python benchmarks/accuracy.py --steps [STEPS.csv | FOLDER] [--json] [--write docs/accuracy.md]
    python benchmarks/accuracy.py --collectives TABLE [--platform P] [--network N] [--json]
    python benchmarks/accuracy.py --gemm TABLE [--json]
    python benchmarks/accuracy.py --attention TABLE [--json]
    python benchmarks/accuracy.py --experts TABLE [--json]
    python benchmarks/accuracy.py --embedding TABLE.csv [--json]
    python benchmarks/accuracy.py --sequence TABLE [--json]
    python benchmarks/accuracy.py --pipelines RUNS.csv [--json]

The first form prints one table: models of kernels and collectives by device, and of networks
between nodes, beside simpler ones.
It needs the tables of measurements named in docs/accuracy.md (in the folder that
DSE_MEASUREMENTS names, or `--data`) and the session of one CPU that lies beside this script.
`--shipped` lists the models that ship fitted, too, with the errors that their files carry, and
`--write` does all that the page shows and writes it with its pictures. The second form predicts
whole training steps of recommendation models that others published (`published/*.csv` in the
folder of measurements) and prints errors, order and intervals by family, beside a roofline and the
marks; `--cases` lists every case. The third form takes one file of published training throughputs
of recommendation models, the fourth one of submissions to MLPerf with training and evaluation
apart. The fifth one predicts published training steps of transformers (one file, a folder, or
without either all of them) and prints errors, order, choice among plans, memory, intervals and
groups that are left out, beside the marks. With `--write` the second and the fifth form replace
their section of the page. The next five take a table (Parquet or CSV) of times of collectives, of
products, of causal attention or of FBGEMM's embeddings, or the parts of a published step of a
generative recommender, the last one a file of runs of TorchRec's train pipelines; rows that a
shipped calibration was fitted on are no check of it, and those of embeddings and of the step say
which were.
"""

from __future__ import annotations

import argparse
from functools import partial
import json
from pathlib import Path
import sys
from typing import TYPE_CHECKING

from accuracy_page import accuracy_page
from collective_cases import compare_collectives
from collective_models import (
    TransferRow,
    collective_model_rows,
    shipped_collective_row,
    transfer_rows,
)
from device_models import AccuracyRow, device_rows, machine_rows
from embedding_fits import compare_embedding
from end_to_end_cases import EndToEndCase, end_to_end_cases
from end_to_end_figures import end_to_end_document, family_figures, file_figures, judged
from end_to_end_page import end_to_end_section, write_pictures
from folders import DATA, ROOT
from kernel_transfers import KernelTransferRow, kernel_transfer_rows
from network_models import network_rows
from pages import percent, replace_section
from pipeline_cases import compare_pipelines
from published_cases import compare_published
from published_kernels import attention_rows, compare_kernels, expert_rows, gemm_rows
from sequence_steps import compare_sequence, sequence_rows, sequence_section
from step_marks import StepReport, print_report
from step_page import step_section, write_step_pictures
from train_only_cases import compare_train_only, train_only_cases
from train_only_page import train_only_section

from dse.errors import DseError
from dse.machine.fits import version_parts
from dse.machine.platforms import builtin_calibrations

if TYPE_CHECKING:
    from collections.abc import Iterator

    from train_only_cases import TrainOnlyCase

#: What `--steps` without a file means.
ALL = Path("*")

#: Options that name one file, with their meaning and what compares its rows with predictions.
COMPARISONS = {
    "published": ("file of published training throughputs", compare_published),
    "train-only": ("file of submissions, evaluation apart", compare_train_only),
    "collectives": ("table of measured collectives", compare_collectives),
    "gemm": ("table of times of products", partial(compare_kernels, gemm_rows)),
    "attention": ("table of times of causal attention", partial(compare_kernels, attention_rows)),
    "experts": ("table of times of blocks of experts", partial(compare_kernels, expert_rows)),
    "embedding": ("table of times of FBGEMM's embeddings", compare_embedding),
    "sequence": ("parts of the published step with attention over histories", compare_sequence),
    "pipelines": ("file of published runs of TorchRec's train pipelines", compare_pipelines),
}


def shipped_rows() -> Iterator[AccuracyRow]:
    """Yields the errors that the shipped calibrations carry."""
    for name, content in builtin_calibrations():
        for kernel in content.kernels:
            what = " ".join([kernel.op, *kernel.precisions])
            yield AccuracyRow.of(what, name, "shipped", kernel.held_out)
        versions = {collective.nccl for collective in content.collectives}
        for nccl in sorted(versions, key=version_parts, reverse=True):
            curves = [one for one in content.collectives if one.nccl == nccl]
            yield shipped_collective_row(name, nccl, curves)
        for network in content.networks:
            what = f"{', '.join(network.ops)} between nodes"
            yield AccuracyRow.of(what, name, "shipped", network.held_out)


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


def print_transfers(lent: list[TransferRow], kernels: list[KernelTransferRow]) -> None:
    """Prints one line for each system, and for each table, that is predicted from another one."""
    found = [
        (f"{row.system} NCCL {row.nccl} from {row.source}", row, row.median, row.inside_90)
        for row in lent
    ]
    found += [
        (f"{row.target} {row.what} from {row.file}", row, row.median_abs_error, row.coverage)
        for row in kernels
    ]
    for name, row, median, inside in found:
        print(
            f"{name}: {row.points:,} points, mean {100 * row.mape:.1f}%, "
            f"median {100 * median:.1f}%, inside 90 % {100 * inside:.0f}%"
        )


def print_end_to_end(cases: list[EndToEndCase], *, every: bool) -> None:
    """Prints the figures of each family and the marks; with `every`, all cases before."""
    for case in cases if every else ():
        outside = " " if case.low <= case.measured <= case.high else "*"
        error = case.problem or f"{100 * case.error:+7.1f}%{outside}"
        print(f"{case.measured:14,.3f} {case.predicted:14,.3f} {case.unit:<9} {error} {case.case}")
    families = family_figures(cases)
    rows = [*families, *file_figures(cases)]
    width = max(len(row.family) for row in rows)
    print(
        f"{'cases':<{width}}  {'model':<8} {'n':>4} {'median':>7} {'mean':>7} {'max':>7} "
        f"{'geomean':>7} {'bias':>6} {'tau':>5} {'pairs':>6} {'inside 90 %':>11}"
    )
    for row in rows:
        errors = " ".join(
            f"{100 * value:6.1f}%" for value in (row.median, row.mean, row.largest, row.gmae)
        )
        print(
            f"{row.family:<{width}}  {row.model:<8} {row.cases:4d} {errors} {row.bias:+6.2f} "
            f"{row.tau:5.2f} {100 * row.pairwise:5.1f}% {percent(row.coverage, 0):>11}"
        )
    for mark in judged(families):
        print(mark.line)


def compare_steps(path: Path, *, as_json: bool, page: Path | None) -> None:
    """Prints how published steps of transformers are met, and writes the page's section on them.

    Args:
        path: One file, or a folder of them.
        as_json: Print everything as JSON.
        page: docs/accuracy.md; None writes nothing.

    Raises:
        DseError: A file cannot be read, the folder has none, or the page has no such section.
    """
    report = StepReport.of(path)
    print_report(report, as_json=as_json)
    if page is not None:
        replace_section(page, step_section(report))
        write_step_pictures(report, page.parent / "images")


def compare_end_to_end(data: Path, *, as_json: bool, every: bool, page: Path | None) -> None:
    """Prints how published steps of recommendation models are met, and writes their section.

    Args:
        data: Folder of measurements.
        as_json: Print everything as JSON.
        every: Print every case, too.
        page: docs/accuracy.md; None writes nothing.

    Raises:
        DseError: There are no measurements, or the page has no such section.
    """
    steps = published(data)
    if as_json:
        print(json.dumps(end_to_end_document(steps), indent=1))
    else:
        print_end_to_end(steps, every=every)
    if page is not None:
        replace_section(page, end_to_end_section(steps))
        write_pictures(steps, page.parent / "images")


def published(folder: Path) -> list[EndToEndCase]:
    """Returns all published cases of a folder of measurements; says what is missing."""
    cases, left_out = end_to_end_cases(folder / "published")
    for line in left_out:
        print(f"note: {line}", file=sys.stderr)
    return cases


def submissions(folder: Path) -> list[TrainOnlyCase]:
    """Returns the MLPerf submissions with evaluation apart; none without their file."""
    collected = folder / "published/mlperf_dlrm_train_only.csv"
    if not collected.exists():
        return []
    later = ROOT / "benchmarks/measurements/mlperf_train_only_later.csv"
    return [*train_only_cases(collected), *train_only_cases(later)]


def compare_models(arguments: argparse.Namespace) -> None:
    """Prints errors of device models, and writes the whole page if one is named.

    Raises:
        DseError: Measurements cannot be read, or there are none to write of.
    """
    data, page = arguments.data, arguments.write
    fresh = [*device_rows(data), *collective_model_rows(data)]
    lent = [*transfer_rows(data), *transfer_rows(data, same_generation=False)]
    lent_kernels = list(kernel_transfer_rows(data))
    if not fresh:
        print(
            f"note: no measurements of GPUs in {data}; see --shipped for what the shipped "
            "calibrations say of themselves",
            file=sys.stderr,
        )
    fresh += machine_rows(ROOT / "benchmarks/measurements/cpu_epyc.points.jsonl")
    networks = list(network_rows(ROOT / "benchmarks/measurements", data))
    shipped = list(shipped_rows())
    if arguments.json:
        rows = [*fresh, *networks, *shipped, *lent, *lent_kernels]
        print(json.dumps([row.as_json() for row in rows], indent=1))
    else:
        print_table([*fresh, *networks, *(shipped if arguments.shipped else ())])
        print_transfers(lent, lent_kernels)
    if page is None:
        return
    if len({row.device for row in fresh}) < 2:
        raise DseError(f"--write needs measurements of GPUs; {data} has none")
    steps, report = published(data), StepReport.of(data / "published")
    sequence = data / "published/hstu_h100.csv"
    section = end_to_end_section(steps) + step_section(report)
    section += train_only_section(submissions(data))
    section += sequence_section(sequence_rows(sequence) if sequence.exists() else [])
    text = accuracy_page(fresh, lent, lent_kernels, networks, shipped, section)
    page.write_text(text, encoding="utf-8")
    write_pictures(steps, page.parent / "images")
    write_step_pictures(report, page.parent / "images")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", type=Path, default=DATA, help="folder of measurements")
    for option, (meaning, _) in COMPARISONS.items():
        parser.add_argument(f"--{option}", type=Path, help=meaning)
    parser.add_argument(
        "--steps",
        type=Path,
        nargs="?",
        const=ALL,
        help="published steps of transformers: one file, a folder, or without either all",
    )
    parser.add_argument("--platform", default="", help="of collectives that name no device")
    parser.add_argument("--network", default="", help="of collectives that name no network")
    parser.add_argument("--write", type=Path, help="Markdown file to write the table to")
    parser.add_argument(
        "--end-to-end", action="store_true", help="whole steps of recommendation models"
    )
    parser.add_argument("--cases", action="store_true", help="list every published case")
    parser.add_argument("--shipped", action="store_true", help="list shipped models, too")
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    try:
        for option, (_, compare) in COMPARISONS.items():
            path = getattr(arguments, option.replace("-", "_"))
            if path is not None:
                named = {}
                if option == "collectives":
                    named = {"platform": arguments.platform, "network": arguments.network}
                compare(path, as_json=arguments.json, **named)
                return
        if arguments.steps is not None:
            path = arguments.data / "published" if arguments.steps == ALL else arguments.steps
            compare_steps(path, as_json=arguments.json, page=arguments.write)
        elif arguments.end_to_end:
            compare_end_to_end(
                arguments.data,
                as_json=arguments.json,
                every=arguments.cases,
                page=arguments.write,
            )
        else:
            compare_models(arguments)
    except DseError as error:
        parser.error(str(error))


if __name__ == "__main__":
    main()
