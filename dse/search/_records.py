"""What a study keeps of each configuration it looked at."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from dse.prediction import Configuration, Prediction
from dse.space import Objective, ParameterValue


class TrialStatus(StrEnum):
    """How far a trial came.

    ``rejected``: broke a hard limit and was not evaluated. ``infeasible``: evaluated, but does not
    fit or breaks a constraint. ``failed``: the evaluation raised.
    """

    FEASIBLE = "feasible"
    INFEASIBLE = "infeasible"
    REJECTED = "rejected"
    FAILED = "failed"


@dataclass(frozen=True, slots=True)
class TrialRecord:
    """One configuration of a study.

    Attributes:
        number: Position in the order of proposals, from 0.
        status: How far it came.
        reason: Why it is not feasible, in words; empty when it is.
        parameters: Chosen value of each outer parameter, in the space's order.
        values: Objective values in the study's order; empty when not evaluated.
        configuration: The complete configuration; None when rejected or failed.
        prediction: What the model says; None when rejected or failed.
        planner: Which planner found the sharding plan, for example ``size_greedy + local search``.
        on_front: Whether it is on the Pareto front of the whole study.
    """

    number: int
    status: TrialStatus
    reason: str
    parameters: tuple[tuple[str, ParameterValue], ...]
    values: tuple[float, ...]
    configuration: Configuration | None
    prediction: Prediction | None
    planner: str
    on_front: bool = False

    @property
    def evaluated(self) -> bool:
        """Whether the performance model scored it."""
        return self.prediction is not None


#: Role of files of fitted models; their name is prefixed by the platform's.
CALIBRATION_ROLE = "calibration"


@dataclass(frozen=True, slots=True)
class InputFile:
    """One input of a study.

    Attributes:
        role: ``space``, ``model``, ``platform`` or ``calibration``.
        name: Name inside the file.
        path: Where it was read from.
        sha256: Digest of its bytes.
        text: The bytes as text; empty for built-in fitted models.
    """

    role: str
    name: str
    path: str
    sha256: str
    text: str


@dataclass(frozen=True, slots=True)
class Fact:
    """One number of a platform and where it comes from; a row of the report's provenance table.

    Attributes:
        subject: Platform or model name.
        quantity: What the number is, for example ``device.memory.bandwidth``.
        value: The value with its unit, for reading.
        origin: ``datasheet``, ``measured``, ``fitted``, ``assumed`` or ``list price``.
        source: Citation.
        as_of: Date, or empty.
    """

    subject: str
    quantity: str
    value: str
    origin: str
    source: str
    as_of: str


@dataclass(frozen=True, slots=True)
class StudyResult:
    """All that one run looked at.

    Attributes:
        name: Study name.
        model_name: What is trained.
        objectives: Axes of the front, first one leading.
        records: All trials by number.
        inputs: Every file the study was made from.
        facts: Origins of the platforms' numbers.
        versions: ``(package, version)`` pairs.
        seed: Random seed.
        sampler: Sampler name.
        created: ISO date and time of the study's start.
        conclusion: One line in words.
    """

    name: str
    model_name: str
    objectives: tuple[Objective, ...]
    records: tuple[TrialRecord, ...]
    inputs: tuple[InputFile, ...]
    facts: tuple[Fact, ...]
    versions: tuple[tuple[str, str], ...]
    seed: int
    sampler: str
    created: str
    conclusion: str

    @property
    def front(self) -> tuple[TrialRecord, ...]:
        """Records on the Pareto front, best in the first objective first."""
        best = [record for record in self.records if record.on_front]
        sign = -1.0 if self.objectives[0].maximize else 1.0
        return tuple(sorted(best, key=lambda record: (sign * record.values[0], record.number)))
