"""`dse compare`: two studies side by side."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from dse.cli._options import JsonOption

if TYPE_CHECKING:
    from dse.search import StudyResult
    from dse.search.compare import StudyComparison


def compare_command(
    study_a: Annotated[Path, typer.Argument(metavar="STUDY_A", help="A study folder.")],
    study_b: Annotated[Path, typer.Argument(metavar="STUDY_B", help="Another study folder.")],
    as_json: JsonOption = False,
) -> None:
    """Compare two studies: inputs, fronts, hypervolume, candidates in common."""
    from dse.cli._output import emit
    from dse.report.terminal.studies import print_comparison
    from dse.search import load_study
    from dse.search.compare import compare_studies

    comparison = compare_studies(load_study(study_a).result, load_study(study_b).result)
    folders = (str(study_a), str(study_b))
    emit(
        _document(comparison),
        lambda console: print_comparison(comparison, folders, console),
        as_json=as_json,
    )


def _document(comparison: StudyComparison) -> dict[str, object]:
    from dse.cli._output import fields_of

    return {
        "same_objectives": comparison.same_objectives,
        "objectives": [axis.metric for axis in comparison.objectives],
        "differences": [
            {**fields_of(difference), "moves_predictions": difference.matters}
            for difference in comparison.differences
        ],
        "fronts": [_front(study, comparison) for study in (comparison.first, comparison.second)],
        "hypervolumes": comparison.hypervolumes,
        "hypervolume_ratio": comparison.hypervolume_ratio,
        "best": [
            {
                "metric": move.metric,
                "first_number": move.number_before,
                "first": move.value_before,
                "second_number": move.number_after,
                "second": move.value_after,
                "change": move.change,
            }
            for move in comparison.best
        ],
        "common": [
            {
                name: getattr(pair, name)
                for name in ("first", "second", "time_ratio", "same_plan", "reasons")
            }
            for pair in comparison.common
        ],
        "conclusion": comparison.conclusion,
    }


def _front(study: StudyResult, comparison: StudyComparison) -> list[dict[str, object]]:
    return [
        {
            "number": record.number,
            "parameters": dict(record.parameters),
            "objectives": {
                axis.metric: record.metrics[axis.metric] for axis in comparison.objectives
            },
        }
        for record in study.front
    ]
