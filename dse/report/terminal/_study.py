"""Studies: the front, and names of their configurations."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from dse.report._metrics import metric_formats, title_with_unit
from dse.report.console import Table, figures, line, texts
from dse.report.terminal._prediction import print_bound_by
from dse.search import TrialStatus
from dse.workload import program_label, workload_kind
from dse.workload.dlrm import PLACEMENT_PREFIX

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rich.console import Console

    from dse.search import StudyResult, TrialRecord

_MAX_ROWS = 15

#: Parameters that the first part of a configuration's name has.
_NAMED_FIRST = ("platform", "world_size", "global_batch_size", "local_batch_size")
#: Parameters whose values need no name.
_SELF_EXPLANATORY = ("link", "network", "launch", "precision", "sharding_types")


def print_study(study: StudyResult, console: Console, files: Sequence[tuple[str, str]]) -> None:
    """Prints the front, the counts, the files, and the conclusion.

    Args:
        study: The study.
        console: Where to print.
        files: Name and path of each file.
    """
    counts = Counter(record.status for record in study.records)
    if study.front:
        _print_front(study, console)
        hidden = len(study.front) - _MAX_ROWS
        if hidden > 0:
            line(console, f"… and {hidden} more on the front, in pareto.csv")
    evaluated = counts[TrialStatus.FEASIBLE] + counts[TrialStatus.INFEASIBLE]
    line(
        console,
        f"{evaluated} configurations evaluated: {counts[TrialStatus.FEASIBLE]} feasible, "
        f"{counts[TrialStatus.INFEASIBLE]} not; {counts[TrialStatus.REJECTED]} rejected"
        f"{' before evaluation' if study.trace is None else ''}, "
        f"{counts[TrialStatus.FAILED]} failed",
    )
    for name, path in files:
        line(console, f"{name:>10}: {path}")
    line(console, study.conclusion, "bold")


def _print_front(study: StudyResult, console: Console) -> None:
    formats = metric_formats(study)
    titles = [title_with_unit(formats[axis.metric]) for axis in study.objectives]
    title = f"Pareto front of {study.name}"
    if len(study.programs) == 1:
        title += f", program: {program_label(*study.programs)}"
    table = Table(title, figures("#", *titles), texts("Configuration"))
    varied = _varied_parameters(study)
    if study.trace is not None:
        metrics = study.trace.metrics
        cells = (formats[axis.metric].text(metrics[axis.metric]) for axis in study.objectives)
        table.add("", *cells, f"as captured: {study.trace.step}", style="dim")
    for record in study.front[:_MAX_ROWS]:
        cells = (
            formats[axis.metric].text(value)
            for axis, value in zip(study.objectives, record.values, strict=True)
        )
        table.add(str(record.number), *cells, _configuration_name(record, varied))
    table.print(console)
    shown = study.front[:_MAX_ROWS]
    print_bound_by(
        [(f"#{each.number}", each.prediction) for each in shown if each.prediction], console
    )


def _configuration_name(record: TrialRecord, varied: Sequence[str]) -> str:
    """Names a configuration: machines and batch, then what differs on the front."""
    configuration = record.configuration
    summarized: frozenset[str] = frozenset()
    parts = []
    if configuration is not None:
        kind = workload_kind(configuration.kind)
        summarized = kind.summarized
        if not kind.brings_machine:
            parts.append(
                f"{configuration.world_size} × {configuration.platform}, "
                f"batch {configuration.global_batch_size:,}"
            )
        parts += filter(None, [kind.summary(configuration)])
    chosen = dict(record.parameters)
    for name in varied:
        value = chosen[name]
        if name in _NAMED_FIRST or name in summarized or value == "default":
            continue
        if name.startswith(PLACEMENT_PREFIX):
            continue
        if isinstance(value, bool):
            parts.append(f"{name} {'on' if value else 'off'}")
        elif name == "program":
            parts.append(program_label(str(value)))
        elif name == "communication_precision":
            parts.append(f"{value} on the wire")
        elif name in _SELF_EXPLANATORY:
            parts.append(str(value))
        else:
            parts.append(f"{name} {value}")
    return ", ".join(parts)


def _varied_parameters(study: StudyResult) -> list[str]:
    """Returns parameters that differ on the front; a table need not show the others."""
    chosen = [dict(record.parameters) for record in study.front]
    return [name for name in chosen[0] if len({values[name] for values in chosen}) > 1]


def short_name(record: TrialRecord) -> str:
    """Names a configuration by its machines and batch, or by its changes of a trace."""
    configuration = record.configuration
    if configuration is None:
        return ", ".join(str(value) for _, value in record.parameters[:3])
    kind = workload_kind(configuration.kind)
    summary = kind.summary(configuration)
    if kind.brings_machine:
        return summary
    machines = f"{configuration.world_size} × {configuration.platform}"
    return f"{machines}, {summary or f'batch {configuration.global_batch_size:,}'}"
