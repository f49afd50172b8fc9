"""Statistics of predictions against measurements of the same candidates.

All functions take two vectors, measured and predicted. They answer three questions: does the model
order the candidates correctly (:func:`kendall_tau`, :func:`pairwise_accuracy`), how much is lost
by choosing the predicted best (:func:`top1_regret`, :func:`success_within`), and are the predicted
values and intervals correct (:func:`relative_errors`, :func:`coverage`).
"""

from __future__ import annotations

from dse.ranking._agreement import kendall_tau, pairwise_accuracy
from dse.ranking._choice import success_within, top1_regret
from dse.ranking._errors import coverage, relative_errors

__all__ = [
    "coverage",
    "kendall_tau",
    "pairwise_accuracy",
    "relative_errors",
    "success_within",
    "top1_regret",
]
