"""Fits how far off predicted steps are, by training program, and leaves groups out.

The distribution is that of :mod:`dse.workload._step_errors`: for each program a scale and a tail,
found by maximum likelihood; the other values of its shape are common to all programs. Steps of one
program, machine and model are wrong together, so such a group counts as the square root of its
steps. The width of a program's 90 % interval is drawn towards that of all programs, and its tail
towards the common one (both by a normal distribution of the logarithm), so that a few steps that
happen to agree make no certainty.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import product
import json
import math
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from scipy.special import lambertw, ndtr, ndtri

from dse.workload._step_errors import (
    FAST_SIDE,
    KERNEL_SHARE,
    TAIL,
    TRANSFORMER_MEDIAN,
    ErrorShape,
    StepErrors,
)
from dse.workload.transformer import TransformerJob

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from pathlib import Path

    from numpy.typing import NDArray

    from dse.workload import Job

#: Scales that are tried, and tails.
_GRID = np.geomspace(0.005, 0.6, 160)
_TAIL_GRID = np.geomspace(0.075, 1.2, 13)

#: Normal number at the end of a 90 % interval.
_END = 1.6449

#: Programs differ in the widths of their intervals by about this factor's logarithm.
_PRIOR_SPREAD = 0.6

#: And in their tails: the most likely with groups left out, among 0 to 1.
_TAIL_SPREAD = 0.5

#: How often the spread that all are drawn towards is found again.
_ROUNDS = 8

#: Quantiles that stand for a distribution in its score.
_SCORE_QUANTILES = 400

#: Draws of groups, for the error of a share.
_DRAWS = 400

#: Shapes that are compared.
_SHARES = (0.0, 0.2, 0.35, 0.5, 1.0)
_SIDES = (0.5, 0.6, 0.7, 0.85, 1.0)
_TAILS = (1e-6, 0.1, 0.3, 0.5, 0.7)


class Shape(NamedTuple):
    """What all programs have in common; see :mod:`dse.workload._step_errors`.

    Attributes:
        kernel_share: Share of the spread of single kernels that a step shows.
        fast_side: Errors on the fast side, as a share of those on the slow side.
        tail: What the tails of programs are drawn towards.
        tail_spread: By how much they differ, as a logarithm; 0 for one tail.
        median: Median of the errors of transformers, in scales.
    """

    kernel_share: float = KERNEL_SHARE
    fast_side: float = FAST_SIDE
    tail: float = TAIL
    tail_spread: float = _TAIL_SPREAD
    median: float = TRANSFORMER_MEDIAN

    @property
    def tails(self) -> NDArray[np.float64]:
        """Tails that are tried, the common one among them."""
        return _TAIL_GRID * (self.tail / TAIL) if self.tail_spread else np.array([self.tail])


@dataclass(frozen=True, slots=True)
class StepError:
    """How far one published step is from its prediction.

    Attributes:
        program: Training program.
        machine: Name of the machine.
        model: Name of the model.
        ranks: Number of devices.
        experts: Whether the model has experts.
        log_error: Logarithm of actual over predicted time.
        kernel_spread: Its standard deviation by the errors of kernels alone, as shipped.
        share_faster: Share of the predicted times that are below the actual one.
        transformer: Whether the model is a transformer.
    """

    program: str
    machine: str
    model: str
    ranks: int
    experts: bool
    log_error: float
    kernel_spread: float
    share_faster: float
    transformer: bool = False

    @classmethod
    def of(cls, job: Job, model: str, measured_s: float) -> StepError:
        """Returns the error of a job's prediction.

        Args:
            job: What was predicted.
            model: Name of its model in the publication.
            measured_s: Published time.
        """
        iteration = job.iteration()
        samples_s = np.sort(iteration.sample_times_s())
        # Samples are quantiles at the middles of equal shares, as intervals take them.
        middles = (np.arange(len(samples_s)) + 0.5) / len(samples_s)
        return cls(
            job.program,
            job.cluster.device.name,
            model,
            job.cluster.world_size,
            bool(getattr(getattr(job, "model", None), "experts", None)),
            math.log(measured_s / job.simulated().time_s),
            float(iteration.kernel_errors().std()),
            float(np.interp(measured_s, samples_s, middles, left=0.0, right=1.0)),
            isinstance(job, TransformerJob),
        )

    @property
    def group(self) -> tuple[str, str, str]:
        """What makes steps wrong together."""
        return self.program, self.machine, self.model


#: What left-out groups differ in.
KINDS: dict[str, Callable[[StepError], object]] = {
    "machine": lambda step: (step.program, step.machine),
    "model": lambda step: (step.program, step.model),
    "ranks": lambda step: (step.program, step.ranks),
    "program": lambda step: step.program,
}


def fitted(steps: Sequence[StepError], shape: Shape | None = None) -> StepErrors:
    """Returns the spreads of most likelihood.

    Args:
        steps: Published steps of all programs.
        shape: Of the distribution; as shipped by default.
    """
    return _fit(steps, shape or Shape())[0]


def write(path: Path, errors: StepErrors, steps: Sequence[StepError]) -> None:
    """Writes spreads as the file that comes with dse.

    Args:
        path: The file.
        errors: Spreads, which are rounded to two digits.
        steps: What they were fitted on.
    """
    groups = len({step.group for step in steps})
    document = {
        "origin": "fitted",
        "source": (
            f"{len(steps)} published steps in {groups} groups of one program, machine and model "
            "(docs/accuracy.md); written by `python benchmarks/probability.py --fit --write`"
        ),
        "spreads": {
            "programs": {
                name: {"scale": _rounded(shape.scale), "tail": _rounded(shape.tail)}
                for name, shape in errors.programs.items()
            },
            "experts": _rounded(errors.experts),
            "without_steps": _rounded(errors.without_steps),
        },
    }
    path.write_text(json.dumps(document, indent=2) + "\n", encoding="utf-8")


def shares_faster(
    steps: Sequence[StepError], errors: StepErrors, shape: Shape | None = None
) -> NDArray[np.float64]:
    """Returns the share of each step's distribution that is below its actual time.

    Args:
        steps: Published steps.
        errors: Spreads of programs.
        shape: Of the distribution; as shipped by default.
    """
    shape = shape or Shape()
    error, _, median = _columns(steps, shape)
    scale, tail = _shapes(steps, errors, shape)
    return np.asarray(ndtr(_normal_score(error, scale, shape.fast_side, tail, median)))


def left_out(
    steps: Sequence[StepError], kind: str, *, centred: bool = False
) -> NDArray[np.float64]:
    """Returns the same by spreads that were fitted without the group of each step.

    Args:
        steps: Published steps of all programs.
        kind: One of `KINDS`, in which groups differ.
        centred: Whether predictions are multiplied, for each program, by what the median of the
            other groups differs by, and of a program that is left out by the median over programs.
    """
    found = np.empty(len(steps))
    shape = Shape(median=0.0) if centred else Shape()
    for mine, seen in _folds(steps, kind):
        predicted = [steps[place] for place in mine]
        if centred:
            medians = _medians(seen)
            seen, predicted = _moved(seen, medians), _moved(predicted, medians)
        found[mine] = shares_faster(predicted, fitted(seen, shape), shape)
    return found


class Scores(NamedTuple):
    """How well distributions of errors suit steps that they were not fitted on.

    Steps of a group count as the square root of their number. All but the first figure are in
    units of the logarithm of actual over predicted time.

    Attributes:
        log_likelihood: Sum of the logarithms of the densities; the more, the better.
        crps: Mean continuous ranked probability score; the less, the better.
        interval_score: Mean score of the 90 % interval: its width, and twenty times what is missed
            by; the less, the better (Gneiting and Raftery, 2007).
        width: Mean width of the interval.
        inside: Share inside it.
    """

    log_likelihood: float
    crps: float
    interval_score: float
    width: float
    inside: float


def left_out_scores(steps: Sequence[StepError], kind: str, shape: Shape) -> Scores:
    """Returns scores of all steps by spreads that were fitted without the group of each.

    Args:
        steps: Published steps of all programs.
        kind: One of `KINDS`, in which groups differ.
        shape: Of the distribution.
    """
    scale, tail = np.empty(len(steps)), np.empty(len(steps))
    for mine, seen in _folds(steps, kind):
        own = [steps[place] for place in mine]
        scale[mine], tail[mine] = _shapes(own, fitted(seen, shape), shape)
    error, _, median = _columns(steps, shape)
    weight, side = _weights(steps), shape.fast_side
    density = _log_density(error, scale, side, tail, median) - 0.5 * math.log(2 * math.pi)
    shares = (np.arange(_SCORE_QUANTILES) + 0.5) / _SCORE_QUANTILES
    drawn = _errors(ndtri(shares), side, tail[:, None], median[:, None])
    beyond = scale[:, None] * drawn - error[:, None]
    crps = 2 * ((beyond > 0) - shares) * beyond
    low, high = scale * _errors(ndtri([[0.05], [0.95]]), side, tail, median)
    missed = np.maximum(low - error, 0) + np.maximum(error - high, 0)
    return Scores(
        float(weight @ density),
        float(np.average(crps.mean(axis=1), weights=weight)),
        float(np.average(high - low + missed / 0.05, weights=weight)),
        float(np.average(high - low, weights=weight)),
        float(np.average(missed == 0, weights=weight)),
    )


def _folds(steps: Sequence[StepError], kind: str) -> Iterator[tuple[list[int], list[StepError]]]:
    """Yields the places of each group, and all other steps."""
    values = [KINDS[kind](step) for step in steps]
    for value in dict.fromkeys(values):
        mine = [place for place, one in enumerate(values) if one == value]
        yield mine, [step for step, one in zip(steps, values, strict=True) if one != value]


def _medians(steps: Sequence[StepError]) -> dict[str, float]:
    """Returns the median error of each program, and by no name their median."""
    of_program: dict[str, list[float]] = {}
    for step in steps:
        of_program.setdefault(step.program, []).append(step.log_error)
    found = {name: float(np.median(errors)) for name, errors in of_program.items()}
    return {**found, "": float(np.median(list(found.values())))}


def _moved(steps: Sequence[StepError], medians: Mapping[str, float]) -> list[StepError]:
    """Returns steps as if predictions had been multiplied by these errors."""
    return [
        replace(step, log_error=step.log_error - medians.get(step.program, medians[""]))
        for step in steps
    ]


def group_error(
    steps: Sequence[StepError],
    values: NDArray[np.float64],
    figure: Callable[[NDArray[np.float64]], float],
) -> float:
    """Returns the standard error of a figure, were other groups published.

    Args:
        steps: Published steps.
        values: One a step.
        figure: What is made of the values.

    Returns:
        The standard deviation over draws of as many groups, each with all of its steps; NaN with
        fewer than two groups.
    """
    places: dict[object, list[int]] = {}
    for place, step in enumerate(steps):
        places.setdefault(step.group, []).append(place)
    groups = [np.array(found) for found in places.values()]
    if len(groups) < 2:
        return math.nan
    generator = np.random.default_rng(0)
    drawn = [
        figure(values[np.concatenate([groups[one] for one in chosen])])
        for chosen in generator.integers(len(groups), size=(_DRAWS, len(groups)))
    ]
    return float(np.std(drawn))


def best_shape(steps: Sequence[StepError]) -> tuple[Shape, float]:
    """Returns the most likely shape with one tail, and by how much it exceeds the shipped values.

    Args:
        steps: Published steps of all programs.

    Returns:
        The shape, and the difference of the logarithms of both likelihoods.
    """
    shapes = [Shape(*values, 0.0) for values in product(_SHARES, _SIDES, _TAILS)]
    found = [(_fit(steps, shape)[1], shape) for shape in shapes]
    best, shape = max(found, key=lambda one: one[0])
    return shape, best - _fit(steps, Shape(tail_spread=0.0))[1]


def _fit(steps: Sequence[StepError], shape: Shape) -> tuple[StepErrors, float]:
    """Returns spreads and the logarithm of their likelihood."""
    dense = [step for step in steps if not step.experts]
    programs = sorted({step.program for step in steps})
    likelihoods = {
        name: _likelihood(tuple(step for step in dense if step.program == name), shape)
        for name in programs
    }
    centre, tails = math.log(0.07), shape.tails
    drawn = np.zeros(len(tails))
    if shape.tail_spread:
        drawn = -0.5 * (np.log(tails / shape.tail) / shape.tail_spread) ** 2
    # Scales that make intervals of the same width with the common tail.
    wider = np.exp(0.5 * (tails - shape.tail) * _END**2)
    alike = wider[:, None] * _GRID
    for _ in range(_ROUNDS):
        prior = drawn[:, None] - 0.5 * ((np.log(alike) - centre) / _PRIOR_SPREAD) ** 2
        places = {
            name: np.unravel_index((likelihood + prior).argmax(), likelihood.shape)
            for name, likelihood in likelihoods.items()
        }
        found = {
            name: ErrorShape(float(_GRID[place]), float(tails[tail]))
            for name, (tail, place) in places.items()
        }
        widths = [float(alike[place]) for place in places.values()]
        centre = float(np.mean(np.log(widths)))
    total = sum(float(likelihoods[name][place]) for name, place in places.items())
    mean_square = float(np.mean(np.square(widths)))
    experts = 0.0
    mixtures = [step for step in steps if step.experts]
    if mixtures:
        scale, tail, _ = np.array([found[step.program] for step in mixtures]).T
        likelihood = _by_scale(mixtures, shape, tail[:, None], scale)
        experts, total = float(_GRID[likelihood.argmax()]), total + float(likelihood.max())
    return StepErrors(found, experts, math.sqrt(mean_square)), total


@lru_cache(maxsize=4096)
def _likelihood(steps: tuple[StepError, ...], shape: Shape) -> NDArray[np.float64]:
    """Returns the logarithm of the likelihood of each tail and scale; leaving out asks again."""
    return np.array([_by_scale(steps, shape, tail) for tail in shape.tails])


def _by_scale(
    steps: Sequence[StepError],
    shape: Shape,
    tail: float | NDArray[np.float64],
    beside: NDArray[np.float64] | None = None,
) -> NDArray[np.float64]:
    """Returns the logarithm of the likelihood of each scale of the grid."""
    if not steps:
        return np.zeros(len(_GRID))
    error, kernels, median = _columns(steps, shape)
    known = kernels if beside is None else np.hypot(kernels, beside)
    scale = np.hypot(known[:, None], _GRID)
    density = _log_density(error[:, None], scale, shape.fast_side, tail, median[:, None])
    return np.asarray(_weights(steps) @ density)


def _weights(steps: Sequence[StepError]) -> NDArray[np.float64]:
    """Returns what makes a group of steps count as the square root of their number."""
    counts = Counter(step.group for step in steps)
    return np.array([counts[step.group] ** -0.5 for step in steps])


def _shapes(
    steps: Sequence[StepError], errors: StepErrors, shape: Shape
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Returns the scale of each step's errors, those of its kernels included, and its tail."""
    _, kernels, _ = _columns(steps, shape)
    unknown = ErrorShape(errors.without_steps, shape.tail)
    scale, tail, _ = np.array([errors.programs.get(step.program, unknown) for step in steps]).T
    experts = [errors.experts * step.experts for step in steps]
    return np.asarray(np.hypot(kernels, np.hypot(scale, experts))), tail


def _log_density(
    error: NDArray[np.float64],
    scale: NDArray[np.float64],
    fast_side: float,
    tail: float | NDArray[np.float64],
    median: NDArray[np.float64],
) -> NDArray[np.float64]:
    """Returns the logarithm of the density of errors, up to a constant."""
    score = _normal_score(error, scale, fast_side, tail, median)
    side = np.where(score < 0, fast_side, 1.0)
    curved = tail * score**2
    found = -0.5 * score**2 - np.log(side * scale) - 0.5 * curved - np.log1p(curved)
    return np.asarray(found)


def _errors(
    score: NDArray[np.float64],
    fast_side: float,
    tail: float | NDArray[np.float64],
    median: NDArray[np.float64],
) -> NDArray[np.float64]:
    """Returns the errors of scale 1 that normal numbers become."""
    side = np.where(score < 0, fast_side, 1.0)
    return np.asarray(median + side * score * np.exp(0.5 * tail * score**2))


def _normal_score(
    error: NDArray[np.float64],
    scale: NDArray[np.float64],
    fast_side: float,
    tail: float | NDArray[np.float64],
    median: NDArray[np.float64],
) -> NDArray[np.float64]:
    """Returns the normal number that becomes an error; the reverse of `error_quantiles`."""
    beyond = error / scale - median
    square = (beyond / np.where(beyond < 0, fast_side, 1.0)) ** 2
    return np.asarray(np.sign(beyond) * np.sqrt(np.real(lambertw(tail * square)) / tail))


def _columns(
    steps: Sequence[StepError], shape: Shape
) -> tuple[NDArray[np.float64], NDArray[np.float64], NDArray[np.float64]]:
    """Returns the error of each step, its scale by its kernels, and its median in scales."""
    error = np.array([step.log_error for step in steps])
    kernels = np.array([step.kernel_spread for step in steps])
    transformer = np.array([step.transformer for step in steps])
    return error, kernels * (shape.kernel_share / KERNEL_SHARE), shape.median * transformer


def _rounded(value: float) -> float:
    return float(f"{value:.2g}")
