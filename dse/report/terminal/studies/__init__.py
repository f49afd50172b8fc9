"""What search finds, on a terminal: studies, recommendations, validations.

Apart from the other results because it needs `dse.search`, which a prediction does without.
"""

from __future__ import annotations

from dse.report.terminal.studies._comparison import print_comparison
from dse.report.terminal.studies._recommendation import print_recommendation, samples_of
from dse.report.terminal.studies._revision import print_revision
from dse.report.terminal.studies._study import print_study
from dse.report.terminal.studies._validation import print_validation

__all__ = [
    "print_comparison",
    "print_recommendation",
    "print_revision",
    "print_study",
    "print_validation",
    "samples_of",
]
