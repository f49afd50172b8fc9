"""Training steps of transformers on a terminal."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from rich.table import Table
from rich.text import Text

from dse.report._explain import render_waterfall
from dse.report._metrics import gibibytes, milliseconds
from dse.workload.transformer import parallelism_words

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rich.console import Console

    from dse.explanation import Difference
    from dse.workload.dlrm import PairedComparison
    from dse.workload.transformer import StepPrediction, StepProblem

_TIMES = ("compute", "exposed communication", "host", "bubble")
_SIZES = ("weights", "gradients", "optimizer", "activations", "buffers", "memory")


@dataclass(frozen=True, slots=True)
class StepColumn:
    """One of two predicted steps side by side.

    Attributes:
        title: What tells it from the other.
        problem: What was asked.
        prediction: What the model says.
    """

    title: str
    problem: StepProblem
    prediction: StepPrediction


def render_step(problem: StepProblem, prediction: StepPrediction, console: Console) -> None:
    """Prints one predicted training step: figures, and time and memory of the stages.

    Args:
        problem: What was asked.
        prediction: The answer.
        console: Where to print.
    """
    cluster = problem.cluster
    _line(
        console,
        f"{problem.model.name} on {cluster.world_size} × {cluster.device.name}, "
        f"global batch {problem.global_batch_size:,}, {problem.precision.value}",
    )
    _line(console, f"{parallelism_words(problem.parallelism)}; {_batches_words(problem)}")
    figures = Table(box=None, show_header=False)
    figures.add_column(style="bold")
    figures.add_column()
    for name, value in _figures(prediction):
        figures.add_row(name, Text(value))
    console.print(figures)
    _render_stages(problem, prediction, console)
    _line(console, f"usable memory {gibibytes(prediction.usable_memory_bytes)} per device")


def render_step_difference(
    columns: Sequence[StepColumn],
    paired: PairedComparison,
    difference: Difference,
    console: Console,
) -> None:
    """Prints two predicted steps side by side, and why they differ.

    Args:
        columns: The two steps.
        paired: Their comparison under errors of the models.
        difference: Where their times differ.
        console: Where to print.
    """
    table = Table(box=None, header_style="bold")
    table.add_column("", style="bold", no_wrap=True)
    for column in columns:
        table.add_column(Text(column.title), overflow="fold")
    table.add_row("parallelism", *(parallelism_words(one.problem.parallelism) for one in columns))
    figures = [_figures(one.prediction) for one in columns]
    for rows in zip(*figures, strict=True):
        table.add_row(rows[0][0], *(Text(value) for _, value in rows))
    table.add_row(
        "memory",
        *(
            f"{gibibytes(_fullest_bytes(one.prediction))} of "
            f"{gibibytes(one.prediction.usable_memory_bytes)}"
            for one in columns
        ),
    )
    console.print(table, crop=False)
    render_waterfall(columns[1].title, paired, difference, console)


def _figures(prediction: StepPrediction) -> list[tuple[str, str]]:
    cost, price = prediction.cost_usd_per_million_samples, prediction.price_usd_per_hour
    return [
        (
            "iteration time",
            f"{milliseconds(prediction.iteration_time_s)}  (90 % interval "
            f"{milliseconds(prediction.iteration_time_p5_s)} – "
            f"{milliseconds(prediction.iteration_time_p95_s)})",
        ),
        (
            "throughput",
            f"{prediction.throughput_samples_per_s:,.2f} samples/s, "
            f"{prediction.metric('throughput_tokens_per_s'):,.0f} tokens/s",
        ),
        (
            "use of peak arithmetic",
            f"{100 * (prediction.metric('model_flops_utilization') or 0.0):.1f} % "
            "(without recomputation)",
        ),
        (
            "cost",
            "no price"
            if cost is None or price is None
            else f"{cost:,.2f} USD per million samples ({price:,.2f} USD/h)",
        ),
        ("feasible", "yes" if prediction.feasible else prediction.infeasible_reason),
    ]


def _batches_words(problem: StepProblem) -> str:
    count = problem.micro_batches
    return f"{count:,} micro-batch{'' if count == 1 else 'es'} a replica"


def _fullest_bytes(prediction: StepPrediction) -> float:
    return max(memory.total_bytes for memory in prediction.memory)


def _render_stages(problem: StepProblem, prediction: StepPrediction, console: Console) -> None:
    ranks = problem.parallelism.tensor * problem.parallelism.replicas
    times, sizes = (Table(box=None, header_style="bold") for _ in range(2))
    for table, titles in ((times, ("stage", "ranks", *_TIMES)), (sizes, ("stage", *_SIZES))):
        for title in titles:
            table.add_column(title, justify="right")
    for stage, (parts, memory) in enumerate(
        zip(prediction.breakdown, prediction.memory, strict=True)
    ):
        first, last = stage * ranks, (stage + 1) * ranks - 1
        seconds = (parts.compute_s, parts.exposed_communication_s, parts.host_s, parts.idle_s)
        times.add_row(
            str(stage),
            str(first) if first == last else f"{first}–{last}",
            *(_duration(one, prediction.iteration_time_s) for one in seconds),
        )
        sizes.add_row(
            str(stage),
            *(
                gibibytes(size_bytes)
                for size_bytes in (*(size for _, size in memory.parts), memory.total_bytes)
            ),
        )
    console.print(times)
    console.print(sizes)


def _duration(seconds: float, whole_s: float) -> str:
    """Prints a part of a step in one unit for all parts."""
    return f"{seconds:.3f} s" if whole_s >= 1.0 else f"{1e3 * seconds:.3f} ms"


def _line(console: Console, text: str) -> None:
    console.print(text, markup=False, highlight=False, soft_wrap=True)
