"""Two predictions side by side, and why they differ."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from dse.cli._predicted import Predicted
    from dse.explanation import Difference
    from dse.workload.dlrm import PairedComparison


@dataclass(frozen=True, slots=True)
class Compared:
    """Two predicted configurations.

    Attributes:
        first: The one the options give.
        second: The one it is compared with.
        changes: What the second changes of the first, in words.
    """

    first: Predicted
    second: Predicted
    changes: tuple[str, ...]

    def document(self) -> dict[str, object]:
        """Returns what `--json` adds under `versus`."""
        difference, paired = self._difference(), self._paired()
        return {
            "changes": list(self.changes),
            **self.second.document(),
            "throughput_ratio": asdict(paired),
            "difference": {**asdict(difference), "change_s": difference.change_s},
        }

    def render(self) -> None:
        """Prints the comparison."""
        from dse._terminal import Console
        from dse.report import PredictionColumn, render_difference

        columns = (
            PredictionColumn("A", self.first.planner, self.first.prediction),
            PredictionColumn(
                f"B: {', '.join(self.changes)}", self.second.planner, self.second.prediction
            ),
        )
        console = Console()
        console.print()
        render_difference(columns, self._paired(), self._difference(), console)

    def _paired(self) -> PairedComparison:
        from dse.workload.dlrm import compare_plans

        return compare_plans(
            (self.first.scorer, self.first.plan), (self.second.scorer, self.second.plan)
        )

    def _difference(self) -> Difference:
        from dse.explanation import compare_explanations
        from dse.workload import explain_job
        from dse.workload.dlrm import DlrmJob

        first, second = (
            explain_job(DlrmJob.scored(one.scorer, one.plan)) for one in (self.first, self.second)
        )
        return compare_explanations(first, second)
