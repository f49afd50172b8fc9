"""Records of a study: one for each configuration."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import TypeAlias

from dse.errors import ConfigError
from dse.search._certificate import Certificate
from dse.search._validation import Validation
from dse.search.space import Constraint, Objective
from dse.workload import (
    Configuration,
    Figures,
    Parameter,
    ParameterValue,
    Prediction,
    workload_kind,
)

#: Configurations of the front that a message names.
_NAMED = 10

#: Value of each parameter, in the space's order; what distinguishes configurations.
Params: TypeAlias = tuple[tuple[str, ParameterValue], ...]


class TrialStatus(StrEnum):
    """How far a trial came.

    ``rejected``: broke a hard limit and was not evaluated, or asked a change that the trace does
    not allow. ``infeasible``: evaluated, but does not fit or breaks a constraint. ``failed``:
    the evaluation raised, or the workers that tried it died.
    """

    FEASIBLE = "feasible"
    INFEASIBLE = "infeasible"
    REJECTED = "rejected"
    FAILED = "failed"


@dataclass(frozen=True, slots=True, repr=False)
class TrialRecord:
    """One configuration of a study.

    Attributes:
        number: Position in the order of proposals, from 0.
        status: How far it came.
        reason: Why it is not feasible; empty if it is.
        parameters: Chosen value of each parameter, in the space's order; :attr:`params` has them
            by name.
        values: Objective values in the study's order; empty if not evaluated.
        configuration: The complete configuration with its plan; None if rejected or failed.
        prediction: What the model says; None if rejected or failed.
        on_front: Whether it is on the Pareto front of the whole study; of trials with the same
            outcome, the first stands for all.
        lower_bound_s: No plan that the configuration allows has a shorter iteration; None where it
            was not computed.
        thorough: Whether its plan was searched with the effort of :func:`dse.shard`.
        borrowed: Whether its plan was found for another configuration.
        traceback: Where the evaluation raised, innermost call last; empty unless it did.
        equal_count: Other configurations of the space that have the same outcome.
        equal_because: Parameters that make no difference here, which is why they are equal.
    """

    number: int
    status: TrialStatus
    reason: str
    parameters: tuple[tuple[str, ParameterValue], ...]
    values: tuple[float, ...]
    configuration: Configuration | None
    prediction: Prediction | None
    on_front: bool = False
    lower_bound_s: float | None = None
    thorough: bool = False
    traceback: str = ""
    equal_count: int = 0
    equal_because: tuple[str, ...] = ()
    borrowed: bool = False

    def __repr__(self) -> str:
        chosen = ", ".join(f"{name}={value}" for name, value in self.parameters)
        answer = self.reason if self.prediction is None else repr(self.prediction)
        return f"TrialRecord(#{self.number}, {self.status.value}, {chosen}: {answer})"

    @property
    def params(self) -> dict[str, ParameterValue]:
        """Chosen value of each parameter by its name, as Optuna's trials have them."""
        return dict(self.parameters)

    @property
    def plan_gap(self) -> float | None:
        """How much slower than the best possible plan this one is at most, as a share of that.

        None where there is no lower bound.
        """
        if self.lower_bound_s is None or self.prediction is None:
            return None
        return max(0.0, self.prediction.iteration_time_s / self.lower_bound_s - 1.0)

    @property
    def planner(self) -> str:
        """How the sharding plan was found; empty without a plan."""
        return "" if self.configuration is None else self.configuration.planner

    @property
    def revised(self) -> bool:
        """Whether it is a later answer to a configuration that has one already."""
        return self.thorough or self.borrowed

    @property
    def evaluated(self) -> bool:
        """Whether it has a prediction."""
        return self.prediction is not None

    @property
    def metrics(self) -> dict[str, float]:
        """Every metric of an evaluated configuration by its name; NaN if it is not known."""
        configuration, prediction = self.configuration, self.prediction
        if configuration is None or prediction is None:
            return {}
        return metrics_of(configuration, prediction)


def metrics_of(configuration: Configuration, prediction: Prediction) -> dict[str, float]:
    """Returns every metric that the kind of workload has, by name; NaN if it is not known."""
    figures, own = Figures.of(configuration, prediction), dict(prediction.metrics)
    metrics = workload_kind(configuration.kind).metrics
    return {metric.name: metric.of(figures, own) for metric in metrics}


#: Role of files of fitted models; their name is prefixed by the platform's.
CALIBRATION_ROLE = "calibration"

#: Roles of platforms, and of those that other platforms of the study are derived from.
PLATFORM_ROLE = "platform"
BASE_ROLE = "base platform"

#: Role of the overrides of platforms, see :mod:`dse.search.revise`.
CHANGES_ROLE = "changes"

#: Role of files of captured traces, and of steps that optimizations name.
TRACE_ROLE = "trace"
STEPS_ROLE = "steps"


@dataclass(frozen=True, slots=True)
class InputFile:
    """One input of a study.

    Attributes:
        role: ``space``, ``model``, ``trace``, ``steps``, ``platform``, ``base platform``,
            ``calibration`` or ``changes``.
        name: Name inside the file.
        path: Where it was read from.
        sha256: Digest of its bytes.
        text: The bytes as text; empty for built-in fitted models and for traces.
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
        origin: ``datasheet``, ``measured``, ``fitted``, ``assumed``, ``list price``, ``given`` or
            ``changed``.
        source: Citation.
        as_of: Date, or empty.
    """

    subject: str
    quantity: str
    value: str
    origin: str
    source: str
    as_of: str

    @property
    def of_user(self) -> bool:
        """Whether a user gave it in place of a platform's own."""
        return self.origin in ("given", "changed")


@dataclass(frozen=True, slots=True)
class StudyTrace:
    """The captured step that a study changes.

    Attributes:
        path: File or folder of the traces, as the search space has it.
        step: Which part of the traces it is, for example ``profiler step 12``.
        device: Name of the devices as the traces have it; empty for CPUs.
        samples_per_step: Samples of the step over all ranks; None if not known.
        platform: Name of the platform it was captured on; empty if not known.
        world_size: Ranks of the captured job, traced or not.
        baseline: The step as captured.
    """

    path: str
    step: str
    device: str
    samples_per_step: int | None
    platform: str
    world_size: int
    baseline: Prediction

    @property
    def metrics(self) -> dict[str, float]:
        """Every metric of the step as captured by its name; NaN if it is not known."""
        captured = Configuration("trace", self.platform, self.world_size, 0, ())
        return metrics_of(captured, self.baseline)


@dataclass(frozen=True, slots=True, repr=False)
class StudyResult:
    """All that one run looked at.

    Attributes:
        name: Study name.
        model_name: What is trained: the name of the model, or of the file or folder of the trace.
        objectives: Axes of the front, first one leading.
        records: All trials by number.
        inputs: Every file the study was made from.
        facts: Origins of the platforms' numbers.
        versions: ``(package, version)`` pairs.
        seed: Random seed.
        sampler: Sampler name.
        created: ISO date and time of the study's start.
        trace: The captured step that was changed; None in studies of a model.
        kind: What kind of workload it is.
        validation: Candidates that were run for real; None where none was.
        cost_model: Name of the function that answered in place of our performance model; None if
            none did.
        certificate: How much of the front can be missing; None where nothing was proven.
        parameters: What could be chosen; empty in studies that keep no parameters.
        constraints: Limits that feasible configurations keep.
        description: One line on what is searched; may be empty.
        trials: Configurations to evaluate at most; 0 where no number is known.
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
    trace: StudyTrace | None = None
    kind: str = "dlrm"
    validation: Validation | None = None
    cost_model: str | None = None
    certificate: Certificate | None = None
    parameters: tuple[Parameter, ...] = ()
    constraints: tuple[Constraint, ...] = ()
    description: str = ""
    trials: int = 0

    def __repr__(self) -> str:
        return (
            f"StudyResult({self.name}: {len(self.records)} configurations, "
            f"{len(self.front)} on the front)"
        )

    @property
    def programs(self) -> tuple[str, ...]:
        """Training programs of the evaluated configurations, in the order of their numbers."""
        found = (record.configuration.program for record in self.records if record.configuration)
        return tuple(dict.fromkeys(name for name in found if name))

    @property
    def front(self) -> tuple[TrialRecord, ...]:
        """Records on the Pareto front, best in the first objective first."""
        best = [record for record in self.records if record.on_front]
        sign = -1.0 if self.objectives[0].maximize else 1.0
        return tuple(sorted(best, key=lambda record: (sign * record.values[0], record.number)))

    def record(self, number: int) -> TrialRecord:
        """Returns the record of one configuration.

        Raises:
            ConfigError: There is none of that number.
        """
        for record in self.records:
            if record.number == number:
                return record
        front = ", ".join(str(record.number) for record in self.front[:_NAMED])
        raise ConfigError(f"the study has no configuration {number}; on its front: {front}")
