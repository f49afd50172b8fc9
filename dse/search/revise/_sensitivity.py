"""How much a candidate depends on its inputs: one at a time, a little lower and higher.

The plan stays as it is; only the prediction is made again, with one figure 10 % lower and 10 %
higher. What comes out says which assumption is worth measuring, and which machine part is worth
paying for.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
import math
from typing import TYPE_CHECKING

from dse.errors import ConfigError
from dse.search._records import metrics_of
from dse.search.revise._stored import study_context, study_machines

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from dse.search._overrides import StudyMachines
    from dse.search._records import StudyResult, TrialRecord
    from dse.search.evaluate._configurations import ConfigurationEvaluator, WorkloadContext
    from dse.workload import Configuration, ParameterValue, Prediction

#: Path of the batch, which is no figure of a platform.
BATCH = "global_batch_size"


@dataclass(frozen=True, slots=True)
class SensitivityInput:
    """One input that is moved.

    Attributes:
        name: What it is called.
        paths: Fields that move together, as `dse whatif --set` names them; `global_batch_size` is
            the batch.
    """

    name: str
    paths: tuple[str, ...]


#: What is moved by default.
SENSITIVITY_INPUTS = (
    SensitivityInput("link bandwidth", ("links.bandwidth", "links.pair_bandwidth")),
    SensitivityInput("network bandwidth", ("networks.bandwidth",)),
    SensitivityInput("memory bandwidth", ("device.memory.bandwidth",)),
    SensitivityInput("compute peak", ("device.peak",)),
    SensitivityInput("price", ("price",)),
    SensitivityInput("batch size", (BATCH,)),
)


@dataclass(frozen=True, slots=True)
class SensitivityBar:
    """A candidate with one input a little lower and a little higher.

    Pairs are `(with the lower input, with the higher input)`.

    Attributes:
        name: The input, for example ``link bandwidth``.
        steps: Relative change of the input, for example `(-0.1, 0.1)`; of the batch what whole
            samples a rank allow.
        metrics: Every metric of the candidate by name; NaN if it is not known.
        feasible: Whether the candidate fits the memory.
    """

    name: str
    steps: tuple[float, float]
    metrics: tuple[Mapping[str, float], Mapping[str, float]]
    feasible: tuple[bool, bool]

    def values(self, metric: str) -> tuple[float, float] | None:
        """Returns a metric at both ends; None where it is not known.

        Args:
            metric: Its name.
        """
        low, high = (end.get(metric, math.nan) for end in self.metrics)
        return None if math.isnan(low) or math.isnan(high) else (low, high)


def sensitivity(
    result: StudyResult,
    number: int,
    changes: Sequence[SensitivityInput] = SENSITIVITY_INPUTS,
    *,
    step: float = 0.1,
) -> tuple[SensitivityBar, ...]:
    """Predicts a candidate of a study again with one input lower and higher, its plan kept.

    Args:
        result: The study.
        number: Number of the candidate.
        changes: Inputs, each moved alone.
        step: Relative change, between 0 and 1.

    Returns:
        One bar an input, in the order of `changes`. Inputs that the candidate does not have (a
        price that is not known) are left out.

    Raises:
        ConfigError: There is no such candidate, it was not evaluated, the study is of a captured
            trace, or the step is not between 0 and 1.
    """
    if not 0 < step < 1:
        raise ConfigError(f"step {step}; expected a share between 0 and 1, such as 0.1")
    record = result.record(number)
    if not record.evaluated:
        raise ConfigError(
            f"configuration {number} has no prediction: it is {record.status.value} "
            f"({record.reason})"
        )
    machines = study_machines(result)
    context = study_context(result, machines)
    bars = []
    for change in changes:
        if change.paths == (BATCH,):
            bars.append(_batch_bar(change.name, record, context.make_evaluator(), step))
        elif change.paths != ("price",) or _has_price(record):
            bars.append(_bar(change, record, machines, context, step))
    return tuple(bars)


def _has_price(record: TrialRecord) -> bool:
    return not math.isnan(record.metrics["price_usd_per_hour"])


def _bar(
    change: SensitivityInput,
    record: TrialRecord,
    machines: StudyMachines,
    context: WorkloadContext,
    step: float,
) -> SensitivityBar:
    configuration = record.configuration
    assert configuration is not None
    own = {configuration.platform: machines.platforms[configuration.platform]}
    used = replace(machines, platforms=own)
    ends = []
    for factor in (1 - step, 1 + step):
        overrides = used.parsed([f"{path}=*{factor!r}" for path in change.paths])
        moved, _ = used.overridden(overrides)
        evaluator = replace(context, space=moved.space, platforms=moved.platforms).make_evaluator()
        ends.append(evaluator.predict(configuration))
    return _bar_of(change.name, (-step, step), (configuration, configuration), (ends[0], ends[1]))


def _batch_bar(
    name: str, record: TrialRecord, evaluator: ConfigurationEvaluator, step: float
) -> SensitivityBar:
    configuration = record.configuration
    assert configuration is not None
    batch = configuration.global_batch_size
    grain = evaluator.workload.batch_grain(configuration)
    apart = max(1, round(step * batch / grain))
    low, high = max(grain, batch - apart * grain), batch + apart * grain
    smaller, larger = (_with_batch(configuration, size) for size in (low, high))
    ends = (evaluator.predict(smaller), evaluator.predict(larger))
    return _bar_of(name, (low / batch - 1, high / batch - 1), (smaller, larger), ends)


def _with_batch(configuration: Configuration, size: int) -> Configuration:
    changed: dict[str, ParameterValue] = {"global_batch_size": size}
    if configuration.value("local_batch_size") is not None:
        changed = {"local_batch_size": size // configuration.world_size}
    return replace(configuration.with_parameters(changed), global_batch_size=size)


def _bar_of(
    name: str,
    steps: tuple[float, float],
    configurations: tuple[Configuration, Configuration],
    predictions: tuple[Prediction, Prediction],
) -> SensitivityBar:
    low, high = predictions
    return SensitivityBar(
        name=name,
        steps=steps,
        metrics=(metrics_of(configurations[0], low), metrics_of(configurations[1], high)),
        feasible=(low.feasible, high.feasible),
    )
