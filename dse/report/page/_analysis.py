"""Sections of the page on the study as a whole."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from dse.report.page._importance import importance_views
from dse.report.page._prices import prices_view
from dse.report.page._progress import hypervolume_view
from dse.report.page._tornado import tornado_view
from dse.search import TrialStatus

if TYPE_CHECKING:
    from dse.report.page._importance import ImportanceView
    from dse.report.page._prices import PricesView
    from dse.report.page._progress import HypervolumeView
    from dse.report.page._tornado import TornadoView
    from dse.search import StudyResult, TrialRecord


#: Kinds of failure and characters of a traceback that the page shows; the journal keeps all.
_MAX_GROUPS = 20
_MAX_TRACEBACK = 12_000
_MAX_NUMBERS = 12


@dataclass(frozen=True, slots=True)
class FailureGroupView:
    """Candidates that failed with the same last line.

    Attributes:
        last_line: Last line of the traceback, or the reason where there is no traceback.
        count: How many.
        numbers: Their numbers.
        traceback: Of the first of them; empty where the evaluation did not raise.
    """

    last_line: str
    count: int
    numbers: str
    traceback: str


@dataclass(frozen=True, slots=True)
class FailuresView:
    """Failures of a study.

    Attributes:
        count: How many candidates.
        groups: The most frequent kinds, most frequent first.
        more: Kinds that are not among `groups`.
    """

    count: int
    groups: tuple[FailureGroupView, ...]
    more: int


@dataclass(frozen=True, slots=True)
class AnalysisView:
    """The sections of the page on the study as a whole.

    Attributes:
        hypervolume: How fast the front was found.
        importance: Which parameters mattered, one entry an objective.
        tornado: What the recommended candidate depends on.
        failures: What failed.
        prices: What the costs rest on.
    """

    hypervolume: HypervolumeView
    importance: tuple[ImportanceView, ...]
    tornado: TornadoView
    failures: FailuresView
    prices: PricesView


def analysis_view(study: StudyResult, recommended: int | None) -> AnalysisView:
    """Extracts these sections from a study.

    Only the recommended candidate is predicted again, a dozen times.

    Args:
        study: The study.
        recommended: Number of the candidate that the page recommends, if any.
    """
    return AnalysisView(
        hypervolume=hypervolume_view(study),
        importance=importance_views(study),
        tornado=tornado_view(study, recommended),
        failures=failures_view(study),
        prices=prices_view(study),
    )


def failures_view(study: StudyResult) -> FailuresView:
    """Groups the failed candidates of a study."""
    groups: dict[str, list[TrialRecord]] = {}
    failed = [record for record in study.records if record.status is TrialStatus.FAILED]
    for record in failed:
        groups.setdefault(_last_line(record), []).append(record)
    ordered = sorted(groups.items(), key=lambda pair: (-len(pair[1]), pair[1][0].number))
    views = tuple(
        FailureGroupView(words, len(records), _numbers(records), _shortened(records[0].traceback))
        for words, records in ordered[:_MAX_GROUPS]
    )
    return FailuresView(len(failed), views, len(ordered) - len(views))


def _last_line(record: TrialRecord) -> str:
    lines = [line.strip() for line in record.traceback.splitlines() if line.strip()]
    return lines[-1] if lines else record.reason or "no reason was recorded"


def _numbers(records: list[TrialRecord]) -> str:
    shown = ", ".join(f"#{record.number}" for record in records[:_MAX_NUMBERS])
    left = len(records) - _MAX_NUMBERS
    return f"{shown} and {left} more" if left > 0 else shown


def _shortened(traceback: str) -> str:
    """Keeps both ends of a long traceback: where the call began and what was raised."""
    if len(traceback) <= _MAX_TRACEBACK:
        return traceback
    half = _MAX_TRACEBACK // 2
    left_out = len(traceback) - 2 * half
    return f"{traceback[:half]}\n… {left_out} characters left out …\n{traceback[-half:]}"
