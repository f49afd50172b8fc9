"""`dse compare`: two studies beside each other."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from dse.cli._options import JsonOption

if TYPE_CHECKING:
    from dse.search import StudyComparison, StudyResult


def compare_command(
    study_a: Annotated[Path, typer.Argument(metavar="STUDY_A", help="A study folder.")],
    study_b: Annotated[Path, typer.Argument(metavar="STUDY_B", help="Another study folder.")],
    as_json: JsonOption = False,
) -> None:
    """Compare two studies: inputs, fronts, hypervolume, candidates in common."""
    import json

    from dse._terminal import Console
    from dse.report import print_comparison
    from dse.search import compare_studies, load_study

    comparison = compare_studies(load_study(study_a).result, load_study(study_b).result)
    if as_json:
        typer.echo(json.dumps(_document(comparison), indent=1))
    else:
        print_comparison(comparison, (str(study_a), str(study_b)), Console())


def _document(comparison: StudyComparison) -> dict[str, object]:
    from dataclasses import asdict

    return {
        "same_objectives": comparison.same_objectives,
        "objectives": [axis.metric.value for axis in comparison.objectives],
        "differences": [
            {**asdict(difference), "moves_predictions": difference.matters}
            for difference in comparison.differences
        ],
        "fronts": [_front(study, comparison) for study in (comparison.first, comparison.second)],
        "hypervolumes": comparison.hypervolumes and list(comparison.hypervolumes),
        "hypervolume_ratio": comparison.hypervolume_ratio,
        "best": [
            {
                "metric": move.metric.value,
                "first_number": move.number_before,
                "first": _number(move.value_before),
                "second_number": move.number_after,
                "second": _number(move.value_after),
                "change": _number(move.change),
            }
            for move in comparison.best
        ],
        "common": [
            {
                "first": one.first,
                "second": one.second,
                "time_ratio": one.time_ratio,
                "same_plan": one.same_plan,
                "reasons": list(one.reasons),
            }
            for one in comparison.common
        ],
        "conclusion": comparison.conclusion,
    }


def _front(study: StudyResult, comparison: StudyComparison) -> list[dict[str, object]]:
    return [
        {
            "number": record.number,
            "parameters": dict(record.parameters),
            "objectives": {
                axis.metric.value: _number(record.metrics[axis.metric])
                for axis in comparison.objectives
            },
        }
        for record in study.front
    ]


def _number(value: float) -> float | None:
    """JSON has no NaN."""
    return value if value == value else None
