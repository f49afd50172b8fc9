"""Times of a training step on this machine: medians of samples with their intervals."""

from __future__ import annotations

from dataclasses import dataclass
import statistics
import time
from typing import TYPE_CHECKING, Any

from dse.validation import MeasureLimits, median_interval

if TYPE_CHECKING:
    from collections.abc import Callable


#: Fewest samples whose median has an interval; taken even if the time is used up.
_FEWEST = 6


@dataclass(frozen=True, slots=True)
class StepTime:
    """Time of a step.

    Attributes:
        time_s: Median of the samples, in seconds.
        low_s: Lower end of its 95 % interval.
        high_s: Upper end.
        samples: Samples, each the mean of some steps.
    """

    time_s: float
    low_s: float
    high_s: float
    samples: int


def step_time(step: Callable[[], object], device: str, budget_s: float) -> StepTime:
    """Measures a step until its median is known to 2 %, or the time is used up."""
    limits = MeasureLimits(budget_s=budget_s, sample_s=0.1, max_rounds=40)
    began_s = time.monotonic()
    for _ in range(3):
        step()
    count = limits.iterations(min(_mean_s(step, each, device) for each in (1, 3)))
    samples: list[float] = []
    while len(samples) < _FEWEST or not limits.reached([samples], time.monotonic() - began_s):
        samples.append(_mean_s(step, count, device))
    low_s, high_s = median_interval(samples)
    return StepTime(statistics.median(samples), low_s, high_s, len(samples))


def _mean_s(step: Callable[[], object], count: int, device: str) -> float:
    synchronize(device)
    began_s = time.perf_counter()
    for _ in range(count):
        step()
    synchronize(device)
    return (time.perf_counter() - began_s) / count


def synchronize(device: str) -> None:
    """Waits until the device has done what was asked of it."""
    if device == "cuda":
        import torch

        torch.cuda.synchronize()


def captured(step: Callable[[], object]) -> Callable[[], object]:
    """Captures a step into a CUDA graph; returns what replays it.

    Raises:
        RuntimeError: The step cannot be captured, for example because the host reads a result.
    """
    import torch

    aside: Any = torch.cuda.Stream()
    aside.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(aside):
        for _ in range(3):
            step()
    torch.cuda.current_stream().wait_stream(aside)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        step()
    replay: Callable[[], object] = graph.replay
    return replay
