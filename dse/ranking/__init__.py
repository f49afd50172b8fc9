"""How far predictions can be trusted, judged by measurements of the same candidates.

Everything here takes two vectors, measured and predicted, and knows nothing of what they describe.
An engineer who picks a configuration by a model asks three questions of it: does it order the
candidates as reality does (:func:`kendall_tau`, :func:`pairwise_accuracy`), what is lost by taking
its favourite (:func:`top1_regret`, :func:`success_within`), and are its figures and its intervals
right (:func:`relative_errors`, :func:`coverage`).
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
