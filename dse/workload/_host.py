"""Host time of one operator of the model, with its uncertainty.

Without a profile every dispatch costs the platform's five overheads. A profile measured from
traces replaces them, and where it holds the PyTorch operator that a step of the model stands for,
that operator's own figures and number of launches are used.
"""

from __future__ import annotations

from functools import cache
import math
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from dse.machine.host import OperatorFigures, SharedFigures, spread_of

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from dse.machine import HostSpec
    from dse.machine.host import Figure

#: Spread of assumed host overheads: their orders of magnitude differ by about a third.
_ASSUMED_SPREAD = 0.30
#: Spread of a step's host time by figures of other models: on one machine they miss by 5–27 %.
_MODEL_SPREAD = 0.15
#: The end of an operator's name → PyTorch operators that do it, the likeliest first. A star stands
#: for the rest of a name. Longer endings come before those that they end with.
_PYTORCH = (
    ("activation.backward", ("ReluBackward0", "ThresholdBackward0")),
    ("activation", ("aten::relu", "aten::relu_")),
    ("weight_gradient", ("AddmmBackward0", "LinearBackward0", "MmBackward0")),
    ("loss.backward", ("BinaryCrossEntropyWithLogitsBackward0",)),
    ("loss.forward", ("aten::binary_cross_entropy_with_logits",)),
    ("concat.backward", ("CatBackward0",)),
    ("concat", ("aten::cat", "aten::concat")),
    ("dot.backward", ("BmmBackward0",)),
    ("dot", ("aten::bmm", "aten::matmul")),
    ("triangle.backward", ("IndexBackward0",)),
    ("triangle", ("aten::index",)),
    (".forward", ("aten::linear", "aten::addmm")),
    ("dense optimizer", ("aten::_fused_*", "aten::_foreach_add_")),
    (
        "replicated lookup backward",
        ("CppNode<SplitLookupFunction_Dense_Op>",),
    ),
    ("lookup backward", ("CppNode<SplitLookupFunction_*",)),
    ("replicated lookup", ("fbgemm::dense_embedding_codegen_lookup_function",)),
    ("lookup", ("fbgemm::split_embedding_codegen_lookup_*",)),
    ("input all-to-all", ("c10d::alltoall_base_",)),
    ("output all-to-all", ("All2All_Pooled_Req", "c10d::alltoall_base_")),
    ("gradient all-to-all", ("All2All_Pooled_WaitBackward",)),
    ("output reduce-scatter", ("ReduceScatter_Req", "c10d::_reduce_scatter_base_")),
    ("gradient all-gather", ("ReduceScatter_WaitBackward",)),
    ("dense all-reduce", ("c10d::allreduce_",)),
)
#: A second launch inside the call that also makes the gradient of the weights.
_INSIDE = "input_gradient"
#: Stands for what a profile does not hold.
_UNKNOWN = OperatorFigures("", 0, 0.0)
_COPIES = ("cudaMemcpyAsync", "hipMemcpyAsync")


class Dispatch(NamedTuple):
    """Time of the host for one operator, in seconds, and its spread."""

    duration_s: float
    spread: float


class HostTimes:
    """Times of dispatches on one platform.

    Args:
        host: The platform's host.
    """

    def __init__(self, host: HostSpec) -> None:
        self._host = host
        self._profile = host.profile
        self._shared = host.profile.shared if host.profile else SharedFigures()
        self.dispatch = cache(self._dispatch)

    def step_spread(self, spread: NDArray[np.float64], dispatches: float) -> NDArray[np.float64]:
        """Returns the spreads of dispatches as far as they do not average out over a step.

        Assumed figures are wrong all together. Of measured ones each call varies by itself, so
        what counts is the mean of a step; besides, a step of another model differs.

        Args:
            spread: Spreads of single dispatches.
            dispatches: Number of dispatches of one rank in a step.
        """
        if self._profile is None:
            return spread
        return np.hypot(_MODEL_SPREAD, spread / math.sqrt(dispatches))

    def graph_launch(self) -> Dispatch:
        """Returns the launch of a captured graph."""
        measured = self._shared.graph_launch
        return _sum([_Part(1, self._host.graph_launch_s, measured)])

    def _dispatch(self, name: str, launches: int, copy: bool = False) -> Dispatch:
        """Returns T1 + T2 + launches · T4 + (launches − 1) · T5 + T3 of an operator.

        The gradient of a layer's input is one more launch of the operator that makes the gradient
        of its weights, where the profile holds that one.
        """
        host, profile = self._host, self._profile
        shared = self._shared
        own = self._own(name)
        launch = _Part(launches, host.launch_s, shared.launch)
        if profile and copy:
            known = [found for found in map(profile.launch, _COPIES) if found is not None]
            launch = launch.measured_as(known[0] if known else None)
        between = _Part(
            launches - 1, host.between_launches_s, shared.between_launches
        ).measured_as(own.between_launches)
        if own.calls and name.endswith(_INSIDE):
            return _sum([launch.times(1), between.times(1)])
        if own.calls:
            count = own.launches
            if name.endswith("weight_gradient"):
                # The average call also makes the gradient of the input, which is counted there.
                count -= 1
            count = max(1.0, count)
            launch, between = launch.times(count), between.times(count - 1)
        return _sum(
            [
                _Part(1, host.between_operators_s, shared.between_operators),
                _Part(1, host.before_launch_s, shared.before_launch).measured_as(
                    own.before_launch
                ),
                launch,
                between,
                _Part(1, host.after_launch_s, shared.after_launch).measured_as(own.after_launch),
            ]
        )

    def _own(self, name: str) -> OperatorFigures:
        """Returns the figures of the operator that stands for a step of the model, if any."""
        if self._profile is None:
            return _UNKNOWN
        searched = "weight_gradient" if name.endswith(_INSIDE) else name
        wanted = next((names for ending, names in _PYTORCH if searched.endswith(ending)), ())
        for pattern in wanted:
            for known in self._profile.operators:
                same = known.name == pattern
                same |= pattern.endswith("*") and known.name.startswith(pattern[:-1])
                if same and known.calls:
                    return known
        return _UNKNOWN


class _Part(NamedTuple):
    """A summand: how often, its duration, and what was measured of it."""

    repeats: float
    assumed_s: float
    measured: Figure | None

    def measured_as(self, figure: Figure | None) -> _Part:
        """Returns the same part with another measured figure, if there is one."""
        return self if figure is None else self._replace(measured=figure)

    def times(self, repeats: float) -> _Part:
        """Returns the same part another number of times."""
        return self._replace(repeats=repeats)

    @property
    def one_s(self) -> float:
        return self.assumed_s if self.measured is None else self.measured.mean_s

    @property
    def variance_s2(self) -> float:
        if self.measured is not None:
            return self.measured.variance_s2
        return self.assumed_s**2 * math.expm1(_ASSUMED_SPREAD**2)


def _sum(parts: list[_Part]) -> Dispatch:
    """Adds parts up; a sum of assumed figures is as unsure as each of them."""
    total_s = sum(part.repeats * part.one_s for part in parts)
    if all(part.measured is None for part in parts):
        return Dispatch(total_s, _ASSUMED_SPREAD)
    variance_s2 = sum(part.repeats * part.variance_s2 for part in parts)
    return Dispatch(total_s, spread_of(total_s, variance_s2))
