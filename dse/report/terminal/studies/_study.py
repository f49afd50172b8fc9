"""Studies: what to take, the front, how it scales, and names of configurations."""

from __future__ import annotations

from collections import Counter
import math
from typing import TYPE_CHECKING

from dse.report._decision import certificate_text, decision_entries, equal_text, gap_text
from dse.report._metrics import metric_formats, rate_parts, with_number
from dse.report.console import (
    UNKNOWN,
    Table,
    change,
    facts,
    figures,
    line,
    names,
    percent,
    plural,
    texts,
)
from dse.search import TrialStatus
from dse.search.analyse import (
    conclude,
    decide,
    front_outcomes,
    scaling,
    searched_names,
    setting_texts,
)
from dse.workload import program_label, workload_kind

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from rich.console import Console

    from dse.search import StudyResult, TrialRecord
    from dse.search.analyse import BestMove, Decision
    from dse.workload import Metric

_MAX_ROWS = 15
#: Numbers of ranks and batches of the scaling table.
_MAX_WORLD_SIZES = 12
_MAX_BATCHES = 6


def print_study(study: StudyResult, console: Console, files: Sequence[tuple[str, str]]) -> None:
    """Prints the decision, the certificate, the front, how it scales, the counts and the files.

    Args:
        study: The study.
        console: Where to print.
        files: Name and path of each file.
    """
    decision = decide(study)
    if decision is None:
        line(console, conclude(study), "bold")
    else:
        _print_decision(decision, console)
        line(console, certificate_text(study))
        _print_front(study, console)
        _print_scaling(study, decision, console)
        console.print()
    counts = Counter(record.status for record in study.records)
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


def _print_decision(decision: Decision, console: Console) -> None:
    rows = []
    for entry in decision_entries(decision):
        also = " and ".join(f"the {role}" for role in entry.also)
        also = f", also {also}" if also else ""
        interval = f" ({entry.interval})" if entry.interval else ""
        bound_by = entry.choice.bound_by
        parts = (
            f"{entry.speed}{interval}",
            ", ".join(filter(None, (entry.price, entry.cost))),
            f"bound by {bound_by}" if bound_by else "",
            entry.fits,
            f"twice the ranks: {entry.doubling}" if entry.doubling else "",
        )
        details = "; ".join(filter(None, parts))
        rows.append((entry.role, f"#{entry.choice.number}{also}: {entry.setting}\n{details}"))
    gap = decision.take.plan_gap
    plan = f"; its plan is {gap_text(gap)}" if gap is not None else ""
    facts(console, [*rows, ("why", f"{decision.rule}{plan}")])


def _print_front(study: StudyResult, console: Console) -> None:
    outcomes = front_outcomes(study)
    formats = metric_formats(study)
    shown = [
        index
        for index in range(len(study.objectives))
        if not index or len({outcome.record.values[index] for outcome in outcomes}) > 1
    ]
    forms = [formats[study.objectives[index].metric] for index in shown]
    varied = _varied_parameters(study)
    first = outcomes[0].record
    fixed = {*searched_names(study)} - {*varied, "program", "sharding_types"}
    parts = _machines(first, varied, varying=False), *_only_program(study)
    common = ", ".join(filter(None, (*parts, *setting_texts(first, fixed))))
    title = f"Pareto front of {study.name}" + (f": {common}" if common else "")
    table = Table(title, figures("#", *(form.heading for form in forms)), texts("Configuration"))
    if study.trace is not None:
        metrics = study.trace.metrics
        cells = (
            form.text(metrics[study.objectives[index].metric])
            for index, form in zip(shown, forms, strict=True)
        )
        table.add("", *cells, f"as captured: {study.trace.step}", style="dim")
    for outcome in outcomes[:_MAX_ROWS]:
        record = outcome.record
        cells = (form.text(record.values[index]) for index, form in zip(shown, forms, strict=True))
        name = _configuration_name(record, varied)
        equal = f" ({words})" if (words := equal_text(outcome)) else ""
        bound_by = "" if record.prediction is None else record.prediction.bound_text
        bound_by = f"bound by {bound_by}" if bound_by else ""
        table.add(str(record.number), *cells, "; ".join(filter(None, (name, bound_by))) + equal)
    table.print(console)
    hidden = len(outcomes) - _MAX_ROWS
    if hidden > 0:
        line(console, f"… and {hidden} more on the front, in pareto.csv")


def _print_scaling(study: StudyResult, decision: Decision, console: Console) -> None:
    """Prints the best of each number of ranks and batch on the platform that is taken."""
    taken = next(each for each in study.records if each.number == decision.take.number)
    platform = "" if taken.configuration is None else taken.configuration.platform
    found = next((each for each in scaling(study) if each.platform == platform), None)
    if found is None:
        return
    largest = max(point.throughput_per_s for point in found.points)
    unit = f"{rate_parts(largest, largest)[1]}{found.counts}/s"
    batches, worlds = found.batches[-_MAX_BATCHES:], found.world_sizes[-_MAX_WORLD_SIZES:]
    title = f"{platform}: {unit} by ranks and global batch, fastest of each"
    headings = [f"{batch:,}" for batch in batches] if any(batches) else ["throughput"]
    table = Table(title, figures("ranks", *headings, "efficiency"), texts("fastest is bound by"))
    for world_size in worlds:
        points = [found.at(world_size, batch) for batch in batches]
        best = found.best(world_size)
        table.add(
            str(world_size),
            *(
                UNKNOWN if point is None else rate_parts(point.throughput_per_s, largest)[0]
                for point in points
            ),
            percent(best.efficiency, 0),
            best.bound_by,
        )
    table.print(console)
    line(
        console,
        f"efficiency: throughput of a rank against the fastest on "
        f"{plural(worlds[0], 'rank')}; {UNKNOWN}: not evaluated, or not feasible",
    )


def _only_program(study: StudyResult) -> list[str]:
    """Returns the program of all trials; nothing if there are several."""
    programs = study.programs
    return [f"program {program_label(*programs)}"] if len(programs) == 1 else []


def _machines(record: TrialRecord, varied: Sequence[str], *, varying: bool) -> str:
    """Names machines and batch, as far as they vary on the front, or as far as they do not."""
    configuration = record.configuration
    if configuration is None or workload_kind(configuration.kind).brings_machine:
        return ""
    parts = []
    if varying is any(name in varied for name in ("platform", "world_size")):
        parts.append(f"{configuration.world_size} × {configuration.platform}")
    if varying is any(name in varied for name in ("global_batch_size", "local_batch_size")):
        parts.append(f"batch {configuration.global_batch_size:,}")
    return ", ".join(parts)


def _configuration_name(record: TrialRecord, varied: Sequence[str]) -> str:
    """Names a configuration by what differs on the front."""
    configuration = record.configuration
    parts: list[str] = []
    if configuration is not None:
        machines = _machines(record, varied, varying=True)
        parts += filter(None, (machines, workload_kind(configuration.kind).summary(configuration)))
    if record.prediction is not None and record.prediction.network:
        parts.append(record.prediction.network)
    return ", ".join((*parts, *setting_texts(record, varied)))


def _varied_parameters(study: StudyResult) -> list[str]:
    """Returns parameters that differ on the front; a table need not show the others."""
    chosen = [dict(record.parameters) for record in study.front]
    return [name for name in chosen[0] if len({values[name] for values in chosen}) > 1]


def print_best(
    moves: Iterable[BestMove],
    sides: tuple[str, str],
    formats: Mapping[str, Metric],
    console: Console,
) -> None:
    """Prints the best candidate of each objective in two studies.

    Args:
        moves: The best in both.
        sides: What to call the two.
        formats: What each objective is.
        console: Where to print.
    """
    table = Table("best", names("objective"), figures(*sides, "change"))
    for move in moves:
        form = formats[move.metric]
        unknown = math.isnan(move.value_before) or math.isnan(move.value_after)
        moved = change(move.value_before, move.value_after) or (UNKNOWN if unknown else "same")
        before = with_number(form, move.number_before, move.value_before)
        after = with_number(form, move.number_after, move.value_after)
        table.add(form.title_with_unit, before, after, moved)
    table.print(console)


def short_name(study: StudyResult, record: TrialRecord) -> str:
    """Names a configuration by what a search chose, or by its changes of a trace.

    Args:
        study: The study, whose choices count.
        record: One of its trials.
    """
    configuration = record.configuration
    if configuration is None:
        return ", ".join(str(value) for _, value in record.parameters[:3])
    kind = workload_kind(configuration.kind)
    summary = kind.summary(configuration)
    if kind.brings_machine:
        return summary
    machines = f"{configuration.world_size} × {configuration.platform}"
    if record.prediction is not None and record.prediction.network:
        machines += f" over {record.prediction.network}"
    left_out = {"sharding_types", *(["program"] if _only_program(study) else [])}
    words = setting_texts(record, {*searched_names(study)} - left_out)
    batch = f"batch {configuration.global_batch_size:,}"
    return ", ".join(filter(None, (machines, summary, *words, batch)))
