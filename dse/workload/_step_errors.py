"""How far off predicted times of whole steps are, as published steps of each program show.

The logarithm of actual over predicted time has a scale that the errors of kernels and of the
program make together. Most steps lie closer to their prediction than a normal distribution of that
scale says, and a few meet something that nobody modelled and lie much farther out; on the slow
side farther than on the fast one, where the limits of the hardware hold: a normal number `z`
becomes `z · exp(tail · z² / 2)` (Tukey's h), and on the fast side `FAST_SIDE` times that. Programs
differ in how many of their steps are outliers, so each has a tail of its own that is drawn towards
`TAIL`. What a prediction leaves out only adds time, so more than half of all steps of transformers
take longer: the median lies `TRANSFORMER_MEDIAN` scales above the prediction. Programs of
recommendation models have more values that were fitted on their own steps, which are as often
faster as slower.
"""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path
from statistics import NormalDist
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from dse._io.reading import load_json, read_text
from dse.workload._programs import IDEAL

if TYPE_CHECKING:
    from numpy.typing import NDArray

#: Share of the spread of single kernels and transfers that a step shows: their spreads are of one
#: kernel each, and errors of many cancel in part. Published steps alone would take less, but all
#: ran on machines whose kernels were measured; elsewhere nothing else widens the interval.
KERNEL_SHARE = 0.35

#: Errors on the fast side, as a share of those on the slow side.
FAST_SIDE = 0.6

#: Median of the errors of transformers, in scales: the less certain a prediction, the more it
#: leaves out.
TRANSFORMER_MEDIAN = 0.1

#: How heavy the tails are, where nothing is known of a program: 0 are those of a normal
#: distribution, 0.3 about those of Student's t with three degrees of freedom.
TAIL = 0.3


class ErrorShape(NamedTuple):
    """Distribution of the logarithm of actual over predicted time.

    Attributes:
        scale: How far off steps are: the standard deviation, were the tails normal.
        tail: How heavy the tails are.
        median: The median, in scales.
    """

    scale: float
    tail: float = TAIL
    median: float = 0.0


class StepErrors(NamedTuple):
    """Errors of the steps of programs.

    Written by ``python benchmarks/probability.py --fit --write``.

    Attributes:
        programs: By name; what remains when every kernel is right.
        experts: What models with experts add to the scale, in squares.
        without_steps: Scale of programs of which no step was published.
    """

    programs: dict[str, ErrorShape]
    experts: float
    without_steps: float


@lru_cache(maxsize=1)
def step_errors() -> StepErrors:
    """Returns the errors that come with dse."""
    text = read_text(Path(__file__).with_name("step_errors.json"))
    known = load_json(text)["spreads"]
    programs = {name: ErrorShape(**shape) for name, shape in known["programs"].items()}
    return StepErrors(programs, known["experts"], known["without_steps"])


def program_errors(name: str, *, experts: bool = False, median: float = 0.0) -> ErrorShape:
    """Returns the distribution of a program's errors that remain when every kernel is right.

    Args:
        name: Name of the program; the ideal one adds nothing to its kernels, and one that is not
            known, or not named, is taken for one of which no step was published.
        experts: Whether the model has experts.
        median: Median of the errors of the kind of model, in scales.
    """
    if name == IDEAL:
        return ErrorShape(0.0)
    known = step_errors()
    shape = known.programs.get(name, ErrorShape(known.without_steps))._replace(median=median)
    return shape._replace(scale=float(np.hypot(shape.scale, known.experts))) if experts else shape


@lru_cache(maxsize=64)
def error_quantiles(count: int, tail: float = TAIL, median: float = 0.0) -> NDArray[np.float64]:
    """Returns evenly spread quantiles of the distribution of errors of scale 1, in their order.

    Args:
        count: How many.
        tail: How heavy the tails are.
        median: The median.

    Returns:
        Logarithms of actual over predicted time; shape `(count,)`.
    """
    normal = NormalDist()
    score = np.array([normal.inv_cdf((place + 0.5) / count) for place in range(count)])
    side = np.where(score < 0, FAST_SIDE, 1.0)
    found: NDArray[np.float64] = median + side * score * np.exp(0.5 * tail * score**2)
    found.flags.writeable = False
    return found
