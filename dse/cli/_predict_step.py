"""`dse predict` of a transformer: one training step and how it is spread over the ranks."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING

from dse.errors import ConfigError

if TYPE_CHECKING:
    from pathlib import Path

    from dse.cli._versus import Asked
    from dse.explanation import Difference, Explanation
    from dse.machine.platforms import Platform
    from dse.model import TransformerModel
    from dse.workload.transformer import (
        Parallelism,
        StepConfiguration,
        StepPrediction,
        StepProblem,
    )


@dataclass(frozen=True, slots=True)
class PredictedStep:
    """One configuration of a transformer with its prediction.

    Attributes:
        model: What is trained.
        platform: Where.
        configuration: How.
        problem: The same as the model of steps takes it.
        prediction: The answer.
    """

    model: TransformerModel
    platform: Platform
    configuration: StepConfiguration
    problem: StepProblem
    prediction: StepPrediction

    def document(self) -> dict[str, object]:
        """Returns the fields of the public contract, and those of transformers."""
        from dse.workload.transformer import parallelism_words

        parallelism, prediction = self.problem.parallelism, self.prediction
        ranks = parallelism.tensor * parallelism.replicas
        parts = [asdict(one) for one in prediction.breakdown]
        return {
            "model": self.model.name,
            "platform": self.platform.name,
            "world_size": self.configuration.world_size,
            "global_batch_size": self.configuration.global_batch_size,
            "precision": self.configuration.precision.value,
            "software": self.configuration.software,
            "parallelism": asdict(parallelism),
            "parallelism_words": parallelism_words(parallelism),
            "micro_batches": self.problem.micro_batches,
            "iteration_time_s": prediction.iteration_time_s,
            "iteration_time_p5_s": prediction.iteration_time_p5_s,
            "iteration_time_p95_s": prediction.iteration_time_p95_s,
            "throughput_samples_per_s": prediction.throughput_samples_per_s,
            **dict(prediction.metrics),
            "price_usd_per_hour": prediction.price_usd_per_hour,
            "cost_usd_per_million_samples": prediction.cost_usd_per_million_samples,
            "memory_bytes_per_rank": [
                one.total_bytes for one in prediction.memory for _ in range(ranks)
            ],
            "usable_memory_bytes": prediction.usable_memory_bytes,
            "feasible": prediction.feasible,
            "infeasible_reason": prediction.infeasible_reason,
            "breakdown": [one for one in parts for _ in range(ranks)],
            "stages": [
                {
                    "stage": stage,
                    "first_rank": stage * ranks,
                    "ranks": ranks,
                    **parts[stage],
                    "memory_bytes": memory.total_bytes,
                    "memory": dict(memory.parts),
                }
                for stage, memory in enumerate(prediction.memory)
            ],
        }


def predicted_step(asked: Asked) -> PredictedStep:
    """Predicts a configuration of a transformer.

    Args:
        asked: The words; options of recommendation models are errors.

    Raises:
        ConfigError: A word does not name anything, or the model cannot be spread like this.
    """
    from dse.cli._problem import word_of
    from dse.machine import Precision
    from dse.machine.platforms import load_platform
    from dse.model import TransformerModel, load_model
    from dse.workload.transformer import StepConfiguration, predict_step, step_problem

    model = load_model(asked.model)
    asked.check_kind(model)
    if not isinstance(model, TransformerModel):
        raise ConfigError(
            f"--versus: `{model.name}` is a recommendation model; compare a transformer with "
            "another one"
        )
    platform = load_platform(asked.platform)
    precision = asked.precision or model.precision.value
    configuration = StepConfiguration(
        platform=platform.name,
        world_size=asked.world_size,
        global_batch_size=asked.global_batch_size,
        precision=word_of(Precision, precision, "--precision"),
        parallelism=_parallelism(asked),
        link=asked.link,
        network=asked.network,
        software=asked.software or "default",
    )
    problem = step_problem(model, platform, configuration)
    quote = platform.quote(asked.world_size)
    prediction = predict_step(problem, quote.usd_per_hour if quote else None)
    return PredictedStep(model, platform, configuration, problem, prediction)


def _parallelism(asked: Asked) -> Parallelism:
    """Returns the degrees; data parallelism takes the ranks that are left over.

    Raises:
        ConfigError: The other degrees do not divide the ranks, or a word is not known.
    """
    from dse.cli._problem import word_of
    from dse.workload.transformer import DataSharding, Parallelism, Recompute

    tensor, pipeline, context = asked.tensor or 1, asked.pipeline or 1, asked.context or 1
    others = tensor * pipeline * context
    if asked.world_size % others:
        raise ConfigError(
            f"--tensor {tensor} × --pipeline {pipeline} × --context {context} = {others} does "
            f"not divide {asked.world_size} ranks; choose degrees whose product does"
        )
    return Parallelism(
        tensor=tensor,
        pipeline=pipeline,
        data=asked.world_size // others,
        context=context,
        interleave=asked.interleave or 1,
        sequence_parallel=bool(asked.sequence_parallel),
        micro_batch_size=asked.micro_batch_size or 1,
        recompute=word_of(Recompute, asked.recompute or Recompute.NONE, "--recompute"),
        data_sharding=word_of(
            DataSharding, asked.data_sharding or DataSharding.NONE, "--data-sharding"
        ),
    )


def run_predict_step(
    asked: Asked,
    other: tuple[Asked, tuple[str, ...]] | None,
    *,
    explain: bool,
    timeline: Path | None,
    as_json: bool,
) -> None:
    """Predicts, explains and compares a training step, and prints it.

    Args:
        asked: The words.
        other: A second configuration and what it changes in words, if any.
        explain: Whether to say what binds the step.
        timeline: Where to write its time line, if anywhere.
        as_json: Whether to print JSON.

    Raises:
        ConfigError: As for :func:`predicted_step`.
    """
    import json

    import typer

    from dse.workload.transformer import explain_step

    answer = predicted_step(asked)
    compared = None if other is None else ComparedSteps(answer, predicted_step(other[0]), other[1])
    if timeline is not None:
        _write_timeline(answer, timeline)
    explanation = explain_step(answer.problem) if explain else None
    if as_json:
        document = answer.document()
        if explanation is not None:
            document["explanation"] = asdict(explanation)
        if compared is not None:
            document["versus"] = compared.document(explanation)
        typer.echo(json.dumps(document, indent=1))
        return
    _render(answer, explanation)
    if compared is not None:
        compared.render(explanation)
    if timeline is not None:
        typer.echo(f"time line: {timeline}")


@dataclass(frozen=True, slots=True)
class ComparedSteps:
    """Two predicted configurations of transformers.

    Attributes:
        first: The one the options give.
        second: The one it is compared with.
        changes: What the second changes of the first, in words.
    """

    first: PredictedStep
    second: PredictedStep
    changes: tuple[str, ...]

    def document(self, explanation: Explanation | None) -> dict[str, object]:
        """Returns what `--json` adds under `versus`.

        Args:
            explanation: That of the first configuration, if it is known already.
        """
        from dse.workload.transformer import compare_steps

        difference = self._difference(explanation)
        return {
            "changes": list(self.changes),
            **self.second.document(),
            "throughput_ratio": asdict(compare_steps(self.first.problem, self.second.problem)),
            "difference": {**asdict(difference), "change_s": difference.change_s},
        }

    def render(self, explanation: Explanation | None) -> None:
        """Prints the comparison; argument as of :meth:`document`."""
        from dse._terminal import Console
        from dse.report import StepColumn, render_step_difference
        from dse.workload.transformer import compare_steps

        first, second, console = self.first, self.second, Console()
        columns = (
            StepColumn("A", first.problem, first.prediction),
            StepColumn(f"B: {', '.join(self.changes)}", second.problem, second.prediction),
        )
        paired = compare_steps(first.problem, second.problem)
        console.print()
        render_step_difference(columns, paired, self._difference(explanation), console)

    def _difference(self, explanation: Explanation | None) -> Difference:
        from dse.explanation import compare_explanations
        from dse.workload.transformer import explain_step

        return compare_explanations(
            explanation or explain_step(self.first.problem), explain_step(self.second.problem)
        )


def _render(answer: PredictedStep, explanation: Explanation | None) -> None:
    from dse._terminal import Console
    from dse.report import render_explanation, render_step

    console = Console()
    render_step(answer.problem, answer.prediction, console)
    if explanation is not None:
        console.print()
        render_explanation(explanation, console, place="stage")


def _write_timeline(answer: PredictedStep, path: Path) -> None:
    from dse.report import write_timeline
    from dse.simulate import critical_path, simulate
    from dse.workload import task_details
    from dse.workload.transformer import parallelism_words

    attributed = answer.problem.attributed()
    simulated = simulate(attributed.graph)
    configuration = answer.configuration
    write_timeline(
        simulated,
        path,
        critical=critical_path(simulated),
        title=f"{answer.model.name} on {configuration.world_size} × "
        f"{answer.platform.device.name}, global batch {configuration.global_batch_size}, "
        f"{parallelism_words(configuration.parallelism)}, predicted; a process is one rank of "
        "a pipeline stage",
        details=task_details(attributed),
    )
