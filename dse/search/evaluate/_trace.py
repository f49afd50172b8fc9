"""Evaluating changes to a captured step: apply them, simulate the step."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from dse.errors import ConfigError, DseError
from dse.machine import Quote
from dse.search._records import TrialRecord, TrialStatus
from dse.search.evaluate._base import EvaluationContext, Evaluator, judged, without_answer
from dse.search.evaluate._trace_steps import machine_steps, named, optimizations, read_texts
from dse.search.evaluate._trace_types import ChangeEffect, TracePrediction, TraceRank
from dse.workload import Metric, ParameterValue
from dse.workload.recorded import SAME_PLATFORM

if TYPE_CHECKING:
    from collections.abc import Mapping

    from dse.machine.platforms import Platform
    from dse.trace.whatif import CapturedStep, Change, WhatIf


@dataclass(frozen=True)
class TraceContext(EvaluationContext):
    """What evaluations of a trace need: the captured step, not the traces it was made from.

    Attributes:
        captured: The step, prepared for changes.
        samples_per_step: Its samples over all ranks; None if not told.
        platforms: Every other platform that the space names, by that name.
        step_files: The steps of every file that optimizations name.
    """

    captured: CapturedStep
    samples_per_step: int | None
    platforms: Mapping[str, Platform]
    step_files: Mapping[str, tuple[Change, ...]]

    def make_evaluator(self) -> TraceEvaluator:
        """Returns an evaluator of the trace."""
        return TraceEvaluator(self)


class TraceEvaluator(Evaluator):
    """Changes the captured step and simulates it.

    Args:
        context: Everything fixed.
    """

    def __init__(self, context: TraceContext) -> None:
        super().__init__(context.space)
        self._context = context

    def reject(self, parameters: Mapping[str, ParameterValue]) -> str:
        """Returns why a configuration breaks a hard limit, or nothing when it may be evaluated."""
        platform = self._platform(parameters)
        captured = self._context.captured.machine.world_size
        world_size = int(parameters.get("world_size", captured))
        try:
            read_texts(self._texts(parameters), self._context.step_files)
            if platform is not None and self._machine_steps(parameters):
                platform.cluster(
                    world_size,
                    link=named(parameters, "link"),
                    network=named(parameters, "network"),
                )
        except DseError as error:
            return str(error)
        price = None if platform is None else self._price(platform, world_size)
        known = {Metric.PRICE: price, Metric.WORLD_SIZE: float(world_size)}
        return self._over_limit(platform, known)

    def _evaluate(self, number: int, parameters: Mapping[str, ParameterValue]) -> TrialRecord:
        steps = read_texts(self._texts(parameters), self._context.step_files)
        try:
            answer = self._context.captured.what_if(steps)
        except ConfigError as error:
            # The trace does not allow this change; another one it may.
            return without_answer(number, TrialStatus.REJECTED, str(error), parameters)
        prediction = self.prediction_of(answer)
        record = replace(
            without_answer(number, TrialStatus.FEASIBLE, "", parameters), trace=prediction
        )
        return judged(record, self._context.space)

    def prediction_of(self, answer: WhatIf) -> TracePrediction:
        """Returns what a study keeps of an answer."""
        machine, samples = answer.machine, self._context.samples_per_step
        platform = machine.platform
        price = None if platform is None else self._price(platform, machine.world_size)
        throughput = None if samples is None else samples * answer.work_factor / answer.after_s
        cost = None
        if price is not None and throughput is not None:
            cost = Quote(price).cost_usd_per_million(throughput)
        return TracePrediction(
            iteration_time_s=answer.after_s,
            speedup=answer.speedup,
            throughput_samples_per_s=throughput,
            price_usd_per_hour=price,
            cost_usd_per_million_samples=cost,
            platform="" if platform is None else platform.name,
            world_size=machine.world_size,
            ranks=tuple(
                TraceRank(
                    rank=rank.rank,
                    step_s=rank.simulated_s,
                    compute_s=rank.compute_s,
                    exposed_communication_s=rank.exposed_communication_s,
                    idle_s=rank.idle_s,
                )
                for rank in answer.after
            ),
            effects=tuple(
                ChangeEffect(effect.title, effect.tasks, effect.before_s, effect.after_s)
                for effect in answer.effects
            ),
            notes=answer.notes,
        )

    def _texts(self, parameters: Mapping[str, ParameterValue]) -> tuple[str, ...]:
        return (*self._machine_steps(parameters), *optimizations(parameters))

    def _machine_steps(self, parameters: Mapping[str, ParameterValue]) -> tuple[str, ...]:
        machine = self._context.captured.machine
        return machine_steps(parameters, machine.world_size, machine.device_name)

    def _platform(self, parameters: Mapping[str, ParameterValue]) -> Platform | None:
        name = str(parameters.get("platform", SAME_PLATFORM))
        if name == SAME_PLATFORM:
            return self._context.captured.machine.platform
        return self._context.platforms[name]
