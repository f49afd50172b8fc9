"""Marks of published steps of transformers, and the table that shows them.

One command prints everything: `python benchmarks/accuracy.py --steps`.
"""

from __future__ import annotations

from dataclasses import dataclass
import json
from typing import TYPE_CHECKING

from end_to_end_figures import Limit, judged, mark_documents, plain
from pages import number, percent
from step_figures import all_figures, by_family, read_all, step_files
from step_groups import group_errors

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from marks import Mark
    from step_figures import SourcedStep, StepFigures
    from step_groups import GroupErrors

AIMS = (
    Limit("megatron_deepspeed", "mean", 0.08),
    Limit("nanotron", "median", 0.15),
    Limit("nanotron", "chosen", least=0.85),
    Limit("nanotron", "regret", 0.05),
    Limit("nanotron", "memory", 0.10),
    Limit("nanotron", "fits", least=0.97),
    Limit("nemo bf16", "median", 0.05),
    Limit("nemo fp8", "median", 0.10),
    Limit("megatron_bridge", "median", 0.12),
    Limit("megatron_bridge", "refused", 0),
    Limit("megatron", "median", 0.02),
    Limit("composer", "median", 0.02),
    # Eight steps of `megatron` are too few for a share between 85 and 95 %.
    *(
        Limit(family, "coverage", least=0.85, most=0.95)
        for family in (
            *("megatron_deepspeed", "nanotron", "nemo bf16", "nemo fp8"),
            *("megatron_bridge", "composer"),
        )
    ),
)


def aims_of(figures: Sequence[StepFigures]) -> list[Limit]:
    """Returns the aims of the families that there are."""
    present = {row.family for row in figures}
    return [aim for aim in AIMS if aim.family in present]


def step_marks(figures: Sequence[StepFigures]) -> list[Mark]:
    """Returns the aims of the families that there are, with what was reached."""
    return judged(figures, aims_of(figures))


@dataclass(frozen=True, slots=True)
class StepReport:
    """All that is said of some published steps.

    Attributes:
        steps: Every row with its prediction.
        figures: Of each family.
        marks: Aims with what was reached.
        groups: Errors of left-out groups.
    """

    steps: Sequence[SourcedStep]
    figures: Sequence[StepFigures]
    marks: Sequence[Mark]
    groups: Sequence[GroupErrors]

    @classmethod
    def of(cls, path: Path) -> StepReport:
        """Predicts the steps of one file, or of all of a folder.

        Raises:
            DseError: A file cannot be read, or the folder has none.
        """
        steps = read_all(step_files(path))
        figures = all_figures(steps)
        groups = [
            row
            for family, mine in by_family(steps).items()
            for row in group_errors(family, [one.step for one in mine])
        ]
        return cls(steps, figures, step_marks(figures), groups)

    def document(self) -> dict[str, object]:
        """Returns everything for machines."""
        return {
            "cases": [{"file": one.file, **one.step.document()} for one in self.steps],
            "figures": [plain(row) for row in self.figures],
            "marks": mark_documents(aims_of(self.figures), self.marks),
            "groups": [plain(row) for row in self.groups],
        }


def print_report(report: StepReport, *, as_json: bool) -> None:
    """Prints the tables, or everything as JSON."""
    if as_json:
        print(json.dumps(report.document(), indent=1))
        return
    _print_figures(report.figures)
    _print_groups(report.groups)
    print()
    for mark in report.marks:
        print(mark.line)
    steps = [one.step for one in report.steps]
    # Some messages name the case, which is the name of its model.
    problems = [step.problem.replace(step.case, "the model") for step in steps if step.problem]
    for problem in dict.fromkeys(problems):
        print(f"{problems.count(problem)} × {problem}")


def _print_figures(figures: Sequence[StepFigures]) -> None:
    width = max(len(row.family) for row in figures)
    print(
        f"{'program':<{width}} {'rows':>5} {'failed':>6} {'refused':>7} {'median':>7} {'mean':>7} "
        f"{'max':>7} {'bias':>6} {'inside':>6} {'roof':>6} {'groups':>6} {'tau':>5} {'choice':>6} "
        f"{'regret':>6} {'memory':>7} {'fits':>6} {'failed':>6}"
    )
    print(f"{'':<{width}} {'':>5} {'':>6} {'':>7} {'error':>7}{'':>63} {'error':>13} {'fits':>13}")
    for row in figures:
        print(
            f"{row.family:<{width}} {row.rows:5d} {row.failed:6d} {row.refused:7d} "
            f"{percent(row.median):>7} {percent(row.mean):>7} {percent(row.largest):>7} "
            f"{number(row.bias, sign=True):>6} {percent(row.coverage, 0):>6} "
            f"{percent(row.roofline, 0):>6} {row.groups:6d} {number(row.tau):>5} "
            f"{percent(row.chosen, 0):>6} "
            f"{percent(row.regret):>6} {percent(row.memory):>7} {percent(row.fits, 0):>6} "
            f"{percent(row.failed_fits, 0):>6}"
        )


def _print_groups(groups: Sequence[GroupErrors]) -> None:
    if not groups:
        return
    print("\ngroups left out, each in turn, after values that are found again without them:")
    width = max(len(row.family) for row in groups)
    for row in groups:
        print(
            f"{row.family:<{width}} by {row.by:<10} {len(row.groups):3d} groups, median "
            f"{percent(row.median):>6}, inside {percent(row.coverage, 0):>5}; worst "
            f"{percent(row.worst.median):>6} of {row.worst.name}; "
            f"{', '.join(row.refitted) or 'none (as shipped)'}"
        )
