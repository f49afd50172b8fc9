"""What a trainer gives to the suite that all trainers pass."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from dse.validation import RunCandidate


@dataclass(frozen=True)
class TrainerCase:
    """Candidates of one trainer, in `tests/validation/trainer/NAME/case.py` as `CASE`.

    Attributes:
        candidates: At least two that it runs on a CPU, of one model, one number of ranks and one
            batch, with different plans; of the trainer's program already.
        refused: At least one that it cannot run.
        losses_within: Largest difference of the losses of two plans.
    """

    candidates: tuple[RunCandidate, ...]
    refused: tuple[RunCandidate, ...]
    losses_within: float = 1e-5
