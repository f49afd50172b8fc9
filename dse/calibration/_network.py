"""Fitting a network between nodes: shares of its line rate, its latencies, and both protocols.

Six figures are fitted to all measured operations, sizes and numbers of nodes at once: least
squares of the logarithms with a soft loss, and a weak pull towards the figures of the network's
kind, which decides what the measurements do not tell. The loss has several minima, because
protocols and algorithms compete; the fit starts from several places and keeps the best.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from itertools import product
from typing import TYPE_CHECKING

import numpy as np

from dse.calibration._collectives import held_out_sizes
from dse.calibration.measurements import check_files, check_units, joined
from dse.errors import CalibrationError
from dse.machine.collectives import (
    CollectiveOp,
    Group,
    between_level_s,
    both_levels_s,
    inside_level_s,
    model_of_kind,
)
from dse.machine.fits import (
    HeldOut,
    NetworkCalibration,
    NetworkModel,
    held_out_errors,
    log_spread,
)

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from numpy.typing import NDArray

    from dse.calibration._origin import FitOrigin
    from dse.calibration.measurements import CollectiveSamples
    from dse.machine import Cluster

#: Operations that tests of clusters measure over several nodes.
NETWORK_OPS = (
    CollectiveOp.ALL_REDUCE,
    CollectiveOp.ALL_GATHER,
    CollectiveOp.REDUCE_SCATTER,
    CollectiveOp.ALL_TO_ALL,
)

#: Median of measured over expected time from which on the unit is wrong: a network may be ten
#: times slower than its data sheet, not a hundred times.
_FAR_OFF = 100.0

#: Mean error on held-out points from which on the times are not those of such a network: fits of
#: published tests miss by 2 to 10 %.
_MOST_ERROR = 1.0

#: Fewest different sizes: half of them may be held out to check the fit.
_MIN_SIZES = 8

#: Numbers of nodes from which on whole numbers are held out instead of sizes.
_MIN_NODE_COUNTS = 3

#: Scatter of a measurement about the model, against which the pull is weighed.
_SCATTER = 0.1

#: Standard deviation of each figure's logarithm about that of the network's kind. Trees and
#: exchanges are pulled towards the same ratio to rings, so one slow measurement speaks for all.
_PULLS = {
    "relayed_share": 0.5,
    "branched_share": 0.3,
    "direct_share": 0.3,
    "message_hops": 1.5,
    "low_latency_share": 0.7,
    "full_rate_factor": 0.7,
}
_FIGURES = tuple(_PULLS)

#: Share of the line rate that nothing exceeds.
_MOST_SHARE = 1.0

#: Ranges of the figures; those of trees and exchanges are ratios to rings.
_RANGES = {
    "relayed_share": (0.01, _MOST_SHARE),
    "branched_share": (0.1, 2.0),
    "direct_share": (0.1, 2.0),
    "message_hops": (0.05, 100.0),
    "low_latency_share": (0.03, 1.0),
    "full_rate_factor": (1.0, 10.0),
}

#: Starts besides that of the network's kind: trees as good as rings or far worse, few or many
#: hops, and low-latency protocols with little or much of the rate.
_STARTS = tuple(
    {
        "relayed_share": relayed,
        "branched_share": branched,
        "message_hops": hops,
        "low_latency_share": low_latency,
        "full_rate_factor": 2.0,
    }
    for (relayed, branched), hops, low_latency in product(
        ((0.7, 0.7), (0.95, 0.45)), (1.0, 3.0), (0.1, 0.4)
    )
)


@dataclass(frozen=True)
class _Run:
    """Measurements of one operation on one group of ranks."""

    op: CollectiveOp
    cluster: Cluster
    group: Group
    rows: NDArray[np.int64]
    size_bytes: NDArray[np.float64]

    def times_s(
        self, model: NetworkModel | None, blank: NetworkCalibration
    ) -> NDArray[np.float64]:
        """Returns predicted times; without a model those of the network's kind."""
        known = () if model is None else (replace(blank, model=model),)
        network = replace(self.cluster.network, calibrations=known)
        cluster = replace(self.cluster, network=network)
        between_s = between_level_s(cluster, self.op, self.size_bytes, self.group)
        return both_levels_s(self.op, self._inside_s, between_s)

    @cached_property
    def _inside_s(self) -> NDArray[np.float64]:
        """Inside the domains, where no network takes part: the same for each model."""
        return inside_level_s(self.cluster, self.op, self.size_bytes, self.group)


def fit_network(
    measured: Sequence[CollectiveSamples],
    cluster: Cluster,
    origin: FitOrigin,
    held_out: NDArray[np.bool_] | None = None,
    *,
    tolerance: float = 0.5,
) -> NetworkCalibration:
    """Fits the network of a cluster to collectives measured over several nodes.

    The error is taken on points that the fit did not see: with three numbers of nodes or more,
    each is left out in turn; otherwise every other size. What is returned is fitted to all. With
    held-out points the fit sees only the others, and the error is that on the held-out ones.

    Args:
        measured: Measurements, such as one log for each operation and number of nodes; where they
            do not state the nodes, full ones are assumed.
        cluster: Machine whose network was measured; its number of ranks does not matter.
        origin: Where they come from.
        held_out: Points for checking only, in the order of `measured`; shape `(points,)`.
        tolerance: How much longer, as a fraction, the longest of several times of the same
            operation, ranks, nodes and size may be than the shortest where they are of several
            files.

    Raises:
        CalibrationError: Ranks of a single node, operations that are not fitted, times that cannot
            be seconds on that network, files that disagree, too few sizes, or times that no
            network between so many nodes has.
    """
    nodes = np.concatenate([_nodes(samples, cluster) for samples in measured])
    if len(measured) > 1:
        check_files(measured, nodes, tolerance)
    samples = joined(measured)
    runs = list(_runs(samples, nodes, cluster))
    sizes = samples.size_bytes.astype(np.float64)
    different = len(np.unique(samples.size_bytes))
    if different < _MIN_SIZES:
        raise CalibrationError(
            f"{different} different sizes are too few to fit and check a network; measure at "
            f"least {_MIN_SIZES}, for example from 1 KiB to 1 GiB by factors of 2"
        )
    provenance = origin.provenance(len(samples))
    prior = model_of_kind(cluster.network.kind)
    blank = NetworkCalibration(
        model=prior,
        ops=tuple(op.value for op in NETWORK_OPS if op.value in samples.op),
        size_bytes=(float(sizes.min()), float(sizes.max())),
        nodes=(int(nodes.min()), int(nodes.max())),
        spread=0.0,
        provenance=provenance,
        held_out=HeldOut(1, 0.0, 0.0, 0.0, "none"),
    )
    expected_s = _times_s(runs, None, blank, len(samples))
    check_units(samples, expected_s, fast_share=None, most_ratio=_FAR_OFF)
    fit = _Fit(runs, samples.time_s, prior, blank)
    if held_out is None:
        model = fit.model(np.ones(len(samples), dtype=np.bool_))
        folds, rule = _folds(samples.size_bytes, nodes)
        partial = [fit.model(~unseen, start=model) for unseen in folds]
    else:
        model = fit.model(~held_out)
        folds, rule, partial = [held_out], "held-out points of the session", [model]
    predicted_s = np.full(len(samples), np.nan)
    for unseen, without in zip(folds, partial, strict=True):
        predicted_s[unseen] = _times_s(runs, without, blank, len(samples))[unseen]
    checked = np.isfinite(predicted_s)
    unseen_by_fits = predicted_s[checked], samples.time_s[checked]
    errors = held_out_errors(*unseen_by_fits, rule)
    if held_out is None and errors.mape > _MOST_ERROR:
        where = sorted(set(zip(samples.ranks.tolist(), nodes.tolist(), strict=True)))
        counts = ", ".join(f"{ranks} ranks on {count} nodes" for ranks, count in where)
        raise CalibrationError(
            f"the times are not those of {counts} of {cluster.name}: held-out points are missed "
            f"by {100 * errors.mape:.0f} % on average; check --ranks, --nodes, --network and the "
            "platform"
        )
    return replace(blank, model=model, spread=log_spread(*unseen_by_fits), held_out=errors)


@dataclass(frozen=True, slots=True)
class _Fit:
    """Least squares of some of the points."""

    runs: list[_Run]
    time_s: NDArray[np.float64]
    prior: NetworkModel
    blank: NetworkCalibration

    def model(self, chosen: NDArray[np.bool_], start: NetworkModel | None = None) -> NetworkModel:
        """Returns the model that fits the chosen points best.

        Args:
            chosen: Points; shape `(points,)`.
            start: A model to begin with in addition to the usual starts.
        """
        from scipy.optimize import least_squares

        centre = _vector(self.prior)
        pulls = np.array([_PULLS[name] for name in _FIGURES])
        low, high = np.log([_RANGES[name] for name in _FIGURES]).T

        def residuals(figures: NDArray[np.float64]) -> NDArray[np.float64]:
            predicted_s = _times_s(self.runs, _model(figures), self.blank, len(self.time_s))
            misses = np.log(predicted_s[chosen] / self.time_s[chosen]) / _SCATTER
            return np.concatenate([misses, (figures - centre) / pulls])

        solutions = [
            least_squares(
                residuals,
                np.clip(begin, low + 1e-6, high - 1e-6),
                bounds=(low, high),
                loss="soft_l1",
                max_nfev=60,
            )
            for begin in self._starts(start)
        ]
        return _model(min(solutions, key=lambda solution: float(solution.cost)).x)

    def _starts(self, start: NetworkModel | None) -> Iterator[NDArray[np.float64]]:
        yield _vector(self.prior)
        if start is not None:
            yield _vector(start)
        for figures in _STARTS:
            yield _vector(replace(self.prior, **figures))


def _vector(model: NetworkModel) -> NDArray[np.float64]:
    """Logarithms of the figures; shares of trees and exchanges as ratios to that of rings."""
    figures = np.log([getattr(model, name) for name in _FIGURES])
    figures[1:3] -= figures[0]
    return figures


def _model(figures: NDArray[np.float64]) -> NetworkModel:
    logarithms = figures.copy()
    logarithms[1:3] = np.minimum(logarithms[1:3] + logarithms[0], np.log(_MOST_SHARE))
    return NetworkModel(**dict(zip(_FIGURES, np.exp(logarithms).tolist(), strict=True)))


def _times_s(
    runs: list[_Run], model: NetworkModel | None, blank: NetworkCalibration, points: int
) -> NDArray[np.float64]:
    times_s = np.empty(points)
    for run in runs:
        times_s[run.rows] = run.times_s(model, blank)
    return times_s


def _nodes(samples: CollectiveSamples, cluster: Cluster) -> NDArray[np.int64]:
    """Returns the nodes of each row; where they are not stated, full nodes are assumed.

    Raises:
        CalibrationError: Ranks are on one node, or do not fill nodes equally.
    """
    full, ranks, stated = cluster.devices_per_node, samples.ranks, samples.nodes > 0
    nodes = np.where(stated, samples.nodes, -(-ranks // full))
    for bad, where, what in (
        (
            nodes < 2,
            "a single node",
            "say nothing of the network; fit them with `dse fit collective`, or name the nodes "
            "with --nodes",
        ),
        (
            (ranks % nodes > 0) | (ranks > nodes * full) | (~stated & (ranks % full > 0)),
            "{} nodes",
            f"do not fill nodes of {full} devices ({cluster.name}) equally; measure the same "
            "number of ranks on every node, or name another platform",
        ),
    ):
        if bad.any():
            first = int(np.argmax(bad))
            place = samples.origin.place(int(samples.source_rows[first]))
            raise CalibrationError(
                f"{place}: {ranks[first]} ranks on {where.format(nodes[first])} ({bad.sum()} of "
                f"{len(samples)} rows) {what}"
            )
    return np.asarray(nodes, dtype=np.int64)


def _runs(
    samples: CollectiveSamples, nodes: NDArray[np.int64], cluster: Cluster
) -> Iterator[_Run]:
    keys = list(zip(samples.op.tolist(), samples.ranks.tolist(), nodes.tolist(), strict=True))
    for op, ranks, count in sorted(set(keys)):
        if op not in NETWORK_OPS:
            names = ", ".join(NETWORK_OPS)
            raise CalibrationError(
                f"{op} is not fitted over several nodes, only {names}; choose rows with --where "
                "op=NAME"
            )
        rows = np.array([at for at, key in enumerate(keys) if key == (op, ranks, count)])
        full = replace(cluster, world_size=count * cluster.devices_per_node)
        if full.domain_count < 2:
            raise CalibrationError(
                f"{count} nodes of {cluster.name} are one domain of its link; their collectives "
                "say nothing of the network"
            )
        group = Group(full.domain_count, ranks // full.domain_count)
        sizes = samples.size_bytes[rows].astype(np.float64)
        yield _Run(CollectiveOp(op), full, group, rows, sizes)


def _folds(
    size_bytes: NDArray[np.int64], nodes: NDArray[np.int64]
) -> tuple[list[NDArray[np.bool_]], str]:
    """Returns the points that are left out together, and how they were chosen."""
    counts = np.unique(nodes)
    if len(counts) >= _MIN_NODE_COUNTS:
        return [nodes == count for count in counts], "each number of nodes left out in turn"
    return [held_out_sizes(size_bytes)], "odd-indexed sizes"
