"""Scoring a study of a captured trace again, of which nothing but prices may change."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from dse.errors import ConfigError
from dse.machine import Quote
from dse.search._records import TrialRecord, TrialStatus
from dse.search._rescore_result import Rescored, broken, rescored_study

if TYPE_CHECKING:
    from dse.search._records import StudyResult
    from dse.search._rescore_changes import Change
    from dse.search._rescore_inputs import StoredInputs
    from dse.search._rescore_platforms import ChangedFigure
    from dse.search._rescore_result import RescoreProgress


def rescored_trace(
    result: StudyResult,
    changes: tuple[Change, ...],
    figures: tuple[ChangedFigure, ...],
    changed: StoredInputs,
    progress: RescoreProgress | None,
) -> Rescored:
    """Returns a study of a captured trace under other prices.

    Raises:
        ConfigError: Something else than a price is to change: the study keeps no trace.
    """
    for change in changes:
        if not change.of_price:
            raise ConfigError(
                f"--set {change.text}: {result.name} is a study of a captured trace, which it "
                "does not keep, so only prices can be changed; ask `dse trace whatif TRACE` for "
                "other changes of the machine"
            )
    records = []
    repriced = 0
    for record in result.records:
        scored = _repriced_trace(record, result, changed)
        repriced += scored is not record
        records.append(scored)
    if progress is not None:
        progress(len(records), len(records))
    return Rescored(
        before=result,
        after=rescored_study(result, records, changes, changed),
        changes=changes,
        figures=figures,
        kept=sum(record.evaluated for record in records) - repriced,
        repriced=repriced,
        simulated=0,
        searched=(),
        newly_allowed=0,
    )


def _repriced_trace(
    record: TrialRecord, result: StudyResult, changed: StoredInputs
) -> TrialRecord:
    answer = record.trace
    platform = next(
        (one for one in changed.platforms.values() if answer and one.name == answer.platform), None
    )
    if answer is None or platform is None:
        return record
    space = changed.space
    quote = platform.quote(
        answer.world_size, basis=space.price_basis, provider=space.price_provider
    )
    price = None if quote is None else quote.usd_per_hour
    if price == answer.price_usd_per_hour:
        return record
    throughput = answer.throughput_samples_per_s
    cost = None
    if price is not None and throughput is not None:
        cost = Quote(price).cost_usd_per_million(throughput)
    moved = replace(answer, price_usd_per_hour=price, cost_usd_per_million_samples=cost)
    values = moved.metrics
    reasons = broken(space.constraints, values)
    return replace(
        record,
        status=TrialStatus.INFEASIBLE if reasons else TrialStatus.FEASIBLE,
        reason="; ".join(reasons),
        values=tuple(values[objective.metric] for objective in result.objectives),
        trace=moved,
        on_front=False,
    )
