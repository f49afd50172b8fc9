"""What a collective should reach: time and bandwidths with an interval, and what decides them."""

from __future__ import annotations

from dataclasses import dataclass
import math
from typing import TYPE_CHECKING

import numpy as np

from dse._text.html import fields_html, rows_html
from dse.errors import ConfigError
from dse.machine.collectives._estimate import (
    between_level_s,
    collective_estimate,
    inside_level_s,
    ranks_inside,
)
from dse.machine.collectives._groups import CollectiveOp, Group
from dse.machine.collectives._inside import volume
from dse.machine.collectives._measured import curves_in_use
from dse.machine.collectives._network_models import network_calibration

if TYPE_CHECKING:
    from dse.machine import Cluster, LinkSpec

#: Standard deviations of a normal distribution from its middle to either end of 90 % of it.
_DEVIATIONS_OF_90 = 1.6449


@dataclass(frozen=True, slots=True)
class TimeSource:
    """Where the time of one level of the machine comes from.

    Attributes:
        basis: ``measured`` for a curve of this operation and number of ranks, ``continued`` from
            other operations or numbers of ranks, ``fitted`` for a network model fitted to
            measurements, ``transferred`` for any of these of another device or network,
            ``formulas`` without measurements.
        calibration: Name of the calibration; empty for formulas.
        nccl: Version of the communication library that was measured; empty if unknown.
        ranks: Numbers of ranks that were measured.
    """

    basis: str
    calibration: str = ""
    nccl: str = ""
    ranks: tuple[int, ...] = ()

    def __str__(self) -> str:
        """Returns the source in words."""
        if not self.calibration:
            return self.basis
        version = f", NCCL {self.nccl}" if self.nccl else ""
        counts = ""
        if self.basis in ("continued", "transferred"):
            counts = f" from {', '.join(map(str, self.ranks))} ranks"
        return f"{self.basis}{counts}: {self.calibration}{version}"


@dataclass(frozen=True, slots=True, repr=False)
class ExpectedCollective:
    """What one collective should reach on a machine, after its last rank has arrived.

    Attributes:
        op: Operation.
        size_bytes: Message as nccl-tests counts it: for all-gather and reduce-scatter the total
            over ranks, otherwise the buffer of one rank.
        ranks: Ranks that take part.
        domains: Scale-up domains (nodes, or pods) that they are on.
        time_s: Expected seconds.
        low_s: Lower end of the 90 % interval.
        high_s: Its upper end.
        inside_s: Seconds inside the domains, as if alone.
        between_s: Seconds between them, as if alone; zero in one domain.
        inside: Where the time inside comes from.
        between: Where the time between domains comes from; None in one domain.
    """

    op: CollectiveOp
    size_bytes: float
    ranks: int
    domains: int
    time_s: float
    low_s: float
    high_s: float
    inside_s: float
    between_s: float
    inside: TimeSource
    between: TimeSource | None

    def __repr__(self) -> str:
        """Returns the answer in one line."""
        bus = self.bus_bandwidth_bytes_per_s / 1e9
        return (
            f"ExpectedCollective({self.op.value}, {self.size_bytes:.6g} B, {self.ranks} ranks: "
            f"{1e6 * self.time_s:.4g} µs, bus {bus:.4g} GB/s, decided {self.decided_by})"
        )

    def _repr_html_(self) -> str:
        """Shows times and bandwidths in a notebook."""
        low, time, high = (
            f"{1e6 * value:.4g}" for value in (self.low_s, self.time_s, self.high_s)
        )
        algorithm, bus = self.algorithm_bandwidth_bytes_per_s, self.bus_bandwidth_bytes_per_s
        return fields_html(
            f"{self.op.value} of {self.size_bytes:.6g} B on {self.ranks} ranks",
            (
                ("time", f"{time} µs (90 % interval {low}–{high})"),
                ("algorithm bandwidth", f"{algorithm / 1e9:.4g} GB/s"),
                ("bus bandwidth", f"{bus / 1e9:.4g} GB/s"),
                ("decided", self.decided_by),
            ),
        )

    @property
    def decided_by(self) -> str:
        """``inside`` or ``between``: the level that takes longer."""
        return "inside" if self.inside_s >= self.between_s else "between"

    @property
    def algorithm_bandwidth_bytes_per_s(self) -> float:
        """Message over time, as nccl-tests defines it."""
        return self.size_bytes / self.time_s

    @property
    def bus_bandwidth_bytes_per_s(self) -> float:
        """Algorithm bandwidth times what each rank moves for a byte, as nccl-tests defines it."""
        return self._bus / self.time_s

    @property
    def low_bus_bandwidth_bytes_per_s(self) -> float:
        """Bus bandwidth at the upper end of the times."""
        return self._bus / self.high_s

    @property
    def high_bus_bandwidth_bytes_per_s(self) -> float:
        """Bus bandwidth at the lower end of the times."""
        return self._bus / self.low_s

    @property
    def _bus(self) -> float:
        return self.size_bytes * volume(self.op, self.ranks)


@dataclass(frozen=True, slots=True, repr=False)
class CollectiveTable:
    """What one operation should reach over message sizes and ranks.

    Attributes:
        op: Operation.
        platform: Name of the platform.
        link: Interconnect inside a node.
        network: Network between nodes.
        points: By size, then by ranks.
    """

    op: str
    platform: str
    link: str
    network: str
    points: tuple[ExpectedCollective, ...]

    def __repr__(self) -> str:
        """Returns the table in one line."""
        sizes, ranks = len(self.sizes_bytes), ", ".join(map(str, self.world_sizes))
        return (
            f"CollectiveTable({self.op} on {self.platform} over {self.network}, {sizes} sizes, "
            f"{ranks} ranks)"
        )

    def _repr_html_(self) -> str:
        """Shows the times in a notebook."""
        heads = (f"{self.op}, µs", *(f"{ranks} ranks" for ranks in self.world_sizes))
        rows = (
            (
                f"{size:.6g} B",
                *(f"{1e6 * self.at(size, ranks).time_s:.4g}" for ranks in self.world_sizes),
            )
            for size in self.sizes_bytes
        )
        return rows_html(heads, rows)

    @property
    def sizes_bytes(self) -> tuple[float, ...]:
        """Message sizes, ascending."""
        return tuple(sorted({point.size_bytes for point in self.points}))

    @property
    def world_sizes(self) -> tuple[int, ...]:
        """Numbers of ranks, ascending."""
        return tuple(sorted({point.ranks for point in self.points}))

    def at(self, size_bytes: float, world_size: int) -> ExpectedCollective:
        """Returns one point.

        Raises:
            ConfigError: The table has no such point.
        """
        for point in self.points:
            if (point.size_bytes, point.ranks) == (size_bytes, world_size):
                return point
        raise ConfigError(
            f"no point of {size_bytes:g} bytes on {world_size} ranks; the table has "
            f"{', '.join(f'{size:g}' for size in self.sizes_bytes)} bytes on "
            f"{', '.join(map(str, self.world_sizes))} ranks"
        )


def expected_collective(
    cluster: Cluster, op: CollectiveOp | str, size_bytes: float
) -> ExpectedCollective:
    """Returns what a collective over all ranks of a cluster should reach.

    Args:
        cluster: The cluster, of two ranks at least.
        op: The operation.
        size_bytes: Message as nccl-tests counts it, more than zero.

    Raises:
        ValueError: One rank, or an empty message.
    """
    operation, group = CollectiveOp(op), Group.world(cluster)
    if group.size < 2 or not size_bytes > 0:
        raise ValueError(f"two ranks and a byte at least, found {group.size} and {size_bytes:g}")
    size = np.asarray(size_bytes, dtype=np.float64)
    estimate = collective_estimate(cluster, operation, size, group)
    time_s, spread = float(estimate.time_s), float(estimate.spread)
    inside_s = inside_level_s(cluster, operation, size, group)
    between_s = between_level_s(cluster, operation, size, group)
    factor = math.exp(_DEVIATIONS_OF_90 * spread)
    calibration = network_calibration(cluster.network, operation)
    between = (
        TimeSource("formulas")
        if calibration is None
        else TimeSource(
            "transferred" if calibration.transferred else "fitted", calibration.provenance.name
        )
    )
    return ExpectedCollective(
        op=operation,
        size_bytes=float(size_bytes),
        ranks=group.size,
        domains=group.domains,
        time_s=time_s,
        low_s=time_s / factor,
        high_s=time_s * factor,
        inside_s=float(inside_s),
        between_s=float(between_s),
        inside=_inside_source(
            cluster.link, operation, int(ranks_inside(cluster, operation, size, group))
        ),
        between=between if group.domains > 1 else None,
    )


def _inside_source(link: LinkSpec, op: CollectiveOp, ranks: int) -> TimeSource:
    curves = curves_in_use(link)
    own = [curve for curve in curves if curve.op == op]
    for curve in own:
        if curve.ranks == ranks:
            basis = "transferred" if curve.transferred else "measured"
            return TimeSource(basis, curve.provenance.name, curve.nccl, (ranks,))
    if not curves or ranks < 2:
        return TimeSource("formulas")
    others = own or curves
    nearest = min(others, key=lambda curve: abs(curve.ranks - ranks))
    counts = tuple(sorted({curve.ranks for curve in others}))
    basis = "transferred" if nearest.transferred else "continued"
    return TimeSource(basis, nearest.provenance.name, nearest.nccl, counts)
