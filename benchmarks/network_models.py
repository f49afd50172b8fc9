"""Errors of network models on collectives over several nodes that their fits did not see.

Each number of nodes, or each message size, is left out in turn. Beside the fitted model stands the
one that a network of its kind has without measurements. Figures of two clusters are published
without what a fit needs: shares of an unnamed peak bandwidth (taken to be eight cards of 400
Gbit/s), and bandwidths at an unnamed message size (the size that fits best).
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from collective_models import ORIGIN
from device_models import AccuracyRow
import numpy as np
from tables import read_rows

from dse.calibration import fit_network
from dse.calibration.measurements import CollectiveSamples, ColumnOptions, read_collective
from dse.machine.collectives import CollectiveOp, collective_time_s, volume
from dse.machine.fits import held_out_errors
from dse.machine.platforms import load_platform

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from numpy.typing import NDArray

    from dse.machine import Cluster
    from dse.machine.fits import NetworkCalibration

#: Smallest message of the tests on 2–32 nodes; smaller ones were measured on two nodes only.
_LARGE_BYTES = 32 * 2**20

#: Peak that the shares of the cloud's cluster are taken of: eight cards of 400 Gbit/s a node.
_PEAK_BYTES_PER_S = 400e9

#: Tests of one operation on two nodes: file, and the platform and network that it measured.
_TWO_NODES = (
    ("tcpxo_a3mega", "h100_sxm", "tcpxo_1600g"),
    ("tcpxo_a3mega_all_gather", "h100_sxm", "tcpxo_1600g"),
    ("tcpx_a3high", "h100_sxm", "tcpx_800g"),
    ("roce_a4", "b200_sxm", "roce_3200g"),
)

#: Traces of the figures of 2–64 nodes with EFA, and their operations.
_FIGURES = {
    "AllReduce": CollectiveOp.ALL_REDUCE,
    "AllGather": CollectiveOp.ALL_GATHER,
    "ReduceScatter": CollectiveOp.REDUCE_SCATTER,
}


def network_rows(measurements: Path, data: Path) -> Iterator[AccuracyRow]:
    """Yields the errors of all networks.

    Args:
        measurements: Folder of the published points that lie beside this script.
        data: Folder of further measurements; rows of what it lacks are left out.
    """
    yield from _efa_rows(measurements / "efa_p5.csv")
    for name, platform, network in _TWO_NODES:
        yield from _two_node_rows(measurements / f"{name}.csv", platform, network)
    if (data / "network/simai_busbw_ratio.csv").is_file():
        yield from _roce_rows(data / "network/simai_busbw_ratio.csv")
    if (data / "network/playbook_figures.csv").is_file():
        yield from _figure_rows(data / "network/playbook_figures.csv")


def _efa_rows(path: Path) -> Iterator[AccuracyRow]:
    samples = read_collective(path, ColumnOptions())
    cluster = load_platform("h100_sxm").cluster(8, network="efa_3200g")
    large = samples.size_bytes >= _LARGE_BYTES
    by_nodes = _left_out(
        samples, cluster, [samples.nodes == at for at in np.unique(samples.nodes)]
    )
    sizes = np.unique(samples.size_bytes[large])
    by_sizes = _left_out(samples, cluster, [samples.size_bytes == size for size in sizes])
    unfitted = _predicted_s(samples, cluster, ())
    for op, what in (("all_reduce", "all_reduce"), ("all_to_all", "all_to_all")):
        rows = large & (samples.op == op)
        for model, times_s in (
            ("dse", by_nodes),
            ("dse, sizes left out", by_sizes),
            ("kind of network", unfitted),
        ):
            yield _row(f"{what}, 2–32 nodes", "h100_sxm efa_3200g", model, times_s, samples, rows)
    small = "all_reduce below 32 MiB, 2 nodes"
    for model, times_s in (("dse", by_nodes), ("kind of network", unfitted)):
        yield _row(small, "h100_sxm efa_3200g", model, times_s, samples, ~large)


def _two_node_rows(path: Path, platform: str, network: str) -> Iterator[AccuracyRow]:
    samples = read_collective(path, ColumnOptions())
    cluster = load_platform(platform).cluster(8, network=network)
    what, device = f"{samples.op[0]}, 2 nodes", f"{platform} {network}"
    fitted = fit_network([samples], cluster, ORIGIN)
    yield AccuracyRow.of(what, device, "dse", fitted.held_out)
    everything = np.ones(len(samples), dtype=np.bool_)
    unfitted = _predicted_s(samples, cluster, ())
    yield _row(what, device, "kind of network", unfitted, samples, everything)


def _roce_rows(path: Path) -> Iterator[AccuracyRow]:
    points = []
    for row in read_rows(path):
        if row["table"] == "nic" and row["nodes"] and float(row["nodes"]) > 1:
            nodes, size = int(float(row["nodes"])), int(row["size_bytes"])
            rate = float(row["ratio_of_peak_busbw"]) * _PEAK_BYTES_PER_S
            moved = size * volume(CollectiveOp.ALL_GATHER, 8 * nodes)
            points.append((nodes, size, moved / rate))
    nodes, sizes, times_s = (np.array(column) for column in zip(*points, strict=True))
    samples = CollectiveSamples(
        op=np.full(len(points), "all_gather"),
        ranks=8 * nodes,
        nodes=nodes,
        size_bytes=sizes,
        time_s=times_s,
        source_rows=np.arange(len(points)) + 1,
        dtype=np.full(len(points), ""),
        nccl=np.full(len(points), ""),
    )
    cluster = load_platform("h100_sxm").cluster(8, network="infiniband_ndr400")
    # The cloud's network is Ethernet of the same rate.
    cluster = replace(cluster, network=replace(cluster.network, kind="roce"))
    what, device = "all_gather, 2–128 nodes", "h100_sxm roce 8 × 400 Gbit/s"
    yield AccuracyRow.of(what, device, "dse", fit_network([samples], cluster, ORIGIN).held_out)
    everything = np.ones(len(samples), dtype=np.bool_)
    unfitted = _predicted_s(samples, cluster, ())
    yield _row(what, device, "kind of network", unfitted, samples, everything)


def _figure_rows(path: Path) -> Iterator[AccuracyRow]:
    """Yields rows of bandwidths over nodes; the unnamed traces are the bands about the medians."""
    platform = load_platform("h100_sxm")
    rows = [row for row in read_rows(path) if row["figure"] == "pp_comm_bandwidth"]
    for trace, op in _FIGURES.items():
        points = [
            (2 ** int(float(row["x"])), float(row["y"]))
            for row in rows
            if row["trace"] == trace and float(row["x"]) > 0
        ]
        measured = np.array([rate for _, rate in points])
        errors = []
        for size in 2.0 ** np.arange(20, 34, 0.25):
            rates = []
            for nodes, _ in points:
                cluster = platform.cluster(8 * nodes, network="efa_3200g")
                time_s = float(collective_time_s(cluster, op, size))
                rates.append(volume(op, 8 * nodes) * size / time_s / 1e9)
            errors.append(held_out_errors(np.array(rates), measured, "size that fits best"))
        best = min(errors, key=lambda found: found.mape)
        what = f"{op}, 2–64 nodes, size fitted"
        yield AccuracyRow.of(what, "h100_sxm efa_3200g", "dse", best)


def _left_out(
    samples: CollectiveSamples, cluster: Cluster, folds: Sequence[NDArray[np.bool_]]
) -> NDArray[np.float64]:
    """Times of each fold's points by a fit to all others; not a number for points of no fold."""
    times_s = np.full(len(samples), np.nan)
    for unseen in folds:
        fitted = fit_network([samples], cluster, ORIGIN, unseen)
        times_s[unseen] = _predicted_s(samples, cluster, (fitted,))[unseen]
    return times_s


def _predicted_s(
    samples: CollectiveSamples, cluster: Cluster, calibrations: tuple[NetworkCalibration, ...]
) -> NDArray[np.float64]:
    network = replace(cluster.network, calibrations=calibrations)
    times_s = np.empty(len(samples))
    for op, ranks in set(zip(samples.op.tolist(), samples.ranks.tolist(), strict=True)):
        rows = (samples.op == op) & (samples.ranks == ranks)
        whole = replace(cluster, network=network, world_size=ranks)
        times_s[rows] = collective_time_s(whole, op, samples.size_bytes[rows])
    return times_s


def _row(
    what: str,
    device: str,
    model: str,
    times_s: NDArray[np.float64],
    samples: CollectiveSamples,
    rows: NDArray[np.bool_],
) -> AccuracyRow:
    errors = held_out_errors(times_s[rows], samples.time_s[rows], "")
    return AccuracyRow.of(what, device, model, errors)
