"""What ranks with shorter histories wait for those with longer ones."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dse.model import sequence_positions

if TYPE_CHECKING:
    from dse.workload.dlrm._problem import DlrmProblem

#: Attention of the busiest rank over the mean from which on a note says so.
_MUCH_MORE = 1.02


def waiting_notes(problem: DlrmProblem) -> tuple[str, ...]:
    """Returns how much more attention the busiest rank has, if the others wait for it."""
    if problem.model.sequence is None:
        return ()
    _, mean = sequence_positions(problem.model)
    ranks = problem.cluster.whole.world_size
    _, most = sequence_positions(problem.model, problem.local_batch_size, ranks)
    if most < _MUCH_MORE * mean:
        return ()
    return (
        f"histories differ in length: the busiest rank has {most / mean:.2f} times the attention "
        "of the mean rank, and the others wait for it; batches balanced by length would not",
    )
