"""How a study is validated."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from dse.validation._measure import MeasureLimits

if TYPE_CHECKING:
    from dse.search import ValidationMode


@dataclass(frozen=True, slots=True)
class ValidateOptions:
    """How a study is validated.

    Attributes:
        top: How many of the best candidates are run.
        random: How many other feasible ones, at random.
        device: ``cpu`` or ``cuda``; None takes a GPU if there is one.
        mode: How they are run; None chooses by what this machine has.
        ranks: Most ranks of a run; None takes the GPUs, or the cores up to a node of the platform.
        platform: Name or file of the platform that predicts; None takes that of the study, or
            ``cpu`` for studies of other machines.
        budget_s: Time for measuring.
        seed: Of the choice, the weights and the batches.
        calibrated: Multiply predictions by the factor of the study's validation before this one.
        limits: When to stop measuring; its budget is replaced by `budget_s`.
    """

    top: int = 5
    random: int = 0
    device: str | None = None
    mode: ValidationMode | None = None
    ranks: int | None = None
    platform: str | None = None
    budget_s: float = 120.0
    seed: int = 0
    calibrated: bool = False
    limits: MeasureLimits = field(default_factory=MeasureLimits)
