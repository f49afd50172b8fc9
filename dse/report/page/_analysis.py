"""Sections of the page on the study as a whole."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from dse.report.page._failures import failures_view
from dse.report.page._importance import importance_views
from dse.report.page._prices import prices_view
from dse.report.page._progress import hypervolume_view
from dse.report.page._tornado import tornado_view

if TYPE_CHECKING:
    from dse.report.page._failures import FailuresView
    from dse.report.page._importance import ImportanceView
    from dse.report.page._prices import PricesView
    from dse.report.page._progress import HypervolumeView
    from dse.report.page._tornado import TornadoView
    from dse.search import StudyResult


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
