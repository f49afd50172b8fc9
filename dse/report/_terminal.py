"""Results on a terminal."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from rich.table import Table
from rich.text import Text

from dse.report._metrics import gibibytes, metric_formats, milliseconds
from dse.search import TrialStatus, change_words
from dse.search.space import PLACEMENT_PREFIX
from dse.workload.transformer import StepConfiguration, parallelism_words

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rich.console import Console

    from dse.search import StudyResult, TrialRecord
    from dse.workload.dlrm import Prediction

_MAX_FRONT_ROWS = 15


@dataclass(frozen=True, slots=True)
class RankingRow:
    """One plan of a ranking.

    Attributes:
        name: Plan file.
        prediction: What the model says.
        tie: Whether it cannot be told from the best one.
    """

    name: str
    prediction: Prediction
    tie: bool


def print_study(study: StudyResult, console: Console, files: Sequence[tuple[str, str]]) -> None:
    """Prints the front, the counts, where the files are, and the conclusion.

    Args:
        study: The study.
        console: Where to print.
        files: `(what, path)` pairs.
    """
    counts = dict.fromkeys(TrialStatus, 0)
    for record in study.records:
        counts[record.status] += 1
    if study.front:
        console.print(_front_table(study))
        hidden = len(study.front) - _MAX_FRONT_ROWS
        if hidden > 0:
            console.print(f"… and {hidden} more on the front, in pareto.csv", markup=False)
    evaluated = counts[TrialStatus.FEASIBLE] + counts[TrialStatus.INFEASIBLE]
    console.print(
        f"{evaluated} configurations evaluated: {counts[TrialStatus.FEASIBLE]} feasible, "
        f"{counts[TrialStatus.INFEASIBLE]} not; {counts[TrialStatus.REJECTED]} rejected"
        f"{' before evaluation' if study.trace is None else ''}, "
        f"{counts[TrialStatus.FAILED]} failed",
        markup=False,
        highlight=False,
    )
    for what, path in files:
        console.print(f"{what:>10}: {path}", markup=False, highlight=False, soft_wrap=True)
    console.print(study.conclusion, markup=False, highlight=False, style="bold")


def _front_table(study: StudyResult) -> Table:
    title = Text(f"Pareto front of {study.name}", style="table.title")
    table = Table(title=title, box=None, header_style="bold")
    table.add_column("#", justify="right")
    formats = metric_formats(study)
    for axis in study.objectives:
        form = formats[axis.metric]
        table.add_column(f"{form.title}\n{form.unit}", justify="right")
    table.add_column("Configuration", overflow="fold")
    varied = _varied_parameters(study)
    if study.trace is not None:
        metrics = study.trace.baseline.metrics
        figures = (formats[axis.metric].text(metrics[axis.metric]) for axis in study.objectives)
        table.add_row("", *figures, Text(f"as captured: {study.trace.step}"), style="dim")
    for record in study.front[:_MAX_FRONT_ROWS]:
        table.add_row(
            str(record.number),
            *(
                formats[axis.metric].text(value)
                for axis, value in zip(study.objectives, record.values, strict=True)
            ),
            Text(_configuration_words(record, varied)),
        )
    return table


#: Parameters that the first words of a configuration name.
_NAMED_FIRST = ("platform", "world_size", "global_batch_size", "local_batch_size")


def _configuration_words(record: TrialRecord, varied: Sequence[str]) -> str:
    """Names a configuration: machines and batch, then what differs on the front."""
    if record.trace is not None:
        return change_words(record)
    chosen = dict(record.parameters)
    words = []
    if record.configuration is not None:
        words.append(
            f"{record.configuration.world_size} × {record.configuration.platform}, "
            f"batch {record.configuration.global_batch_size:,}"
        )
    if isinstance(record.configuration, StepConfiguration):
        words.append(parallelism_words(record.configuration.parallelism))
        varied = [name for name in varied if name in ("link", "network", "precision", "software")]
    for name in varied:
        value = chosen[name]
        if name in _NAMED_FIRST or name.startswith(PLACEMENT_PREFIX) or value == "default":
            continue
        if isinstance(value, bool):
            words.append(f"{name} {'on' if value else 'off'}")
        elif name == "communication_precision":
            words.append(f"{value} on the wire")
        elif name in ("link", "network", "launch", "precision", "sharding_types"):
            words.append(str(value))
        else:
            words.append(f"{name} {value}")
    return ", ".join(words)


def _varied_parameters(study: StudyResult) -> list[str]:
    """Parameters that differ on the front; the others say nothing in a table."""
    names = [name for name, _ in study.front[0].parameters]
    return [
        name
        for name in names
        if len({dict(record.parameters)[name] for record in study.front}) > 1
    ]


def render_prediction(prediction: Prediction, console: Console) -> None:
    """Prints one prediction: figures, breakdown and memory of the ranks."""
    figures = Table(box=None, show_header=False)
    figures.add_column(style="bold")
    figures.add_column()
    figures.add_row(
        "iteration time",
        f"{milliseconds(prediction.iteration_time_s)}  (90 % interval "
        f"{milliseconds(prediction.iteration_time_p5_s)} – "
        f"{milliseconds(prediction.iteration_time_p95_s)})",
    )
    figures.add_row("throughput", f"{prediction.throughput_samples_per_s:,.0f} samples/s")
    if (
        prediction.cost_usd_per_million_samples is not None
        and prediction.price_usd_per_hour is not None
    ):
        figures.add_row(
            "cost",
            f"{prediction.cost_usd_per_million_samples:.5f} USD per million samples "
            f"({prediction.price_usd_per_hour:.2f} USD/h)",
        )
    figures.add_row(
        "feasible", "yes" if prediction.feasible else Text(prediction.infeasible_reason)
    )
    console.print(figures)
    ranks = Table(box=None, header_style="bold")
    for title in ("ranks", "compute", "exposed communication", "host", "idle", "memory"):
        ranks.add_column(title, justify="right")
    for name, cells in _grouped_ranks(prediction):
        ranks.add_row(name, *cells)
    console.print(ranks)
    console.print(
        f"usable memory {gibibytes(prediction.usable_memory_bytes)} per device", highlight=False
    )


def _grouped_ranks(prediction: Prediction) -> list[tuple[str, tuple[str, ...]]]:
    """Ranks with the same printed figures share a row."""
    groups: dict[tuple[str, ...], list[int]] = {}
    for rank, (parts, size_bytes) in enumerate(
        zip(prediction.breakdown, prediction.memory_bytes_per_rank, strict=True)
    ):
        cells = (
            milliseconds(parts.compute_s),
            milliseconds(parts.exposed_communication_s),
            milliseconds(parts.host_s),
            milliseconds(parts.idle_s),
            gibibytes(size_bytes),
        )
        groups.setdefault(cells, []).append(rank)
    return [(_rank_names(ranks), cells) for cells, ranks in groups.items()]


def _rank_names(ranks: list[int]) -> str:
    if len(ranks) > 2 and ranks == list(range(ranks[0], ranks[-1] + 1)):
        return f"{ranks[0]}–{ranks[-1]}"
    return ", ".join(str(rank) for rank in ranks)


def render_ranking(rows: Sequence[RankingRow], console: Console) -> None:
    """Prints plans in order, fastest first."""
    table = Table(box=None, header_style="bold")
    for title in ("", "plan", "iteration time", "90 % interval", "samples/s", "against best", ""):
        table.add_column(title, justify="left" if title == "plan" else "right", overflow="fold")
    best_s = rows[0].prediction.iteration_time_s
    for index, row in enumerate(rows):
        prediction = row.prediction
        note = "" if prediction.feasible else "does not fit"
        if row.tie and prediction.feasible:
            note = "tie with the best: run both"
        table.add_row(
            str(index + 1),
            Text(row.name),
            milliseconds(prediction.iteration_time_s),
            f"{milliseconds(prediction.iteration_time_p5_s)} – "
            f"{milliseconds(prediction.iteration_time_p95_s)}",
            f"{prediction.throughput_samples_per_s:,.0f}",
            f"+{100 * (prediction.iteration_time_s / best_s - 1):.1f} %" if index else "best",
            note,
        )
    console.print(table)
    for row in rows:
        if not row.prediction.feasible:
            console.print(
                f"{row.name}: {row.prediction.infeasible_reason}", markup=False, highlight=False
            )
