"""Predicted against measured times of collectives, for any table of measurements.

One row is one measurement: device (`platform`, `system`, `device` or `gpu`), operation, ranks,
message size (in bytes, or in elements with their type) and time (in µs or ms by the name of the
column; tables of aiconfigurator are known by theirs) or bus bandwidth. `nodes`, `network`, `link`
and `nccl` are used where a table has them: without a version the newest measured one counts.
Dispatches of mixtures of experts are all-to-alls.
"""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache
import math
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
from table_errors import PredictedRow, print_errors
from tables import read_table

from dse.calibration.measurements import dispatch_message_bytes, value_bytes_of
from dse.errors import DseError
from dse.machine.collectives import CollectiveOp, Group, collective_estimate, volume
from dse.machine.platforms import (
    list_platforms,
    load_platform,
    nearest_platform,
    override_platform,
)

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from dse.machine import Cluster
    from dse.machine.platforms import Platform

#: Columns by our names.
_COLUMNS = {
    "op": ("op", "op_name", "collective"),
    "ranks": ("gpus", "num_gpus", "ranks", "world_size"),
    "nodes": ("nodes", "num_nodes"),
    "dtype": ("dtype", "nccl_dtype"),
    "nccl": ("nccl", "nccl_version"),
    "network": ("network",),
    "link": ("link",),
}
_DEVICES = ("platform", "system", "device", "gpu")
_SIZES = {"size_bytes": "bytes", "bytes": "bytes", "message_size": "elements", "count": "elements"}
_SECONDS = {
    "time_s": 1.0,
    "latency_us": 1e-6,
    "time_us": 1e-6,
    "latency_ms": 1e-3,
    "time_ms": 1e-3,
    "latency": 1e-3,
}
_BANDWIDTHS = ("busbw_gb_s", "bus_gb_s", "busbw")

_OPS = {op.value.replace("_", ""): op for op in CollectiveOp}

#: Half the width of the 90 % interval in standard deviations.
_HALF_WIDTH = 1.645

#: What makes rows one call of the model.
_KEY = ["platform", "op", "ranks", "nodes", "network", "link", "nccl"]


def compare_collectives(
    path: Path, *, as_json: bool, platform: str = "", network: str = ""
) -> None:
    """Prints the errors on a table, or everything as JSON.

    Args:
        path: The table; lines of a CSV file that begin with `#` are comments.
        as_json: Whether to print JSON.
        platform: Platform of rows that name no device.
        network: Network of rows that name none; the platform's own if empty.
    """
    print_errors(collective_cases(path, platform, network), as_json=as_json)


def collective_cases(path: Path, platform: str = "", network: str = "") -> list[PredictedRow]:
    """Returns the rows of a table with their predictions, in the order of the table.

    Args:
        path: The table.
        platform: Platform of rows that name no device.
        network: Network of rows that name none; the platform's own if empty.
    """
    rows = _normalized(read_table(path))
    rows["platform"] = rows["platform"].where(rows["device"] != "", platform)
    rows["network"] = rows["network"].where(rows["network"] != "", network)
    predicted: dict[int, PredictedRow] = {}
    for key, group in rows.groupby(_KEY, sort=False, dropna=False):
        for row in _predicted(dict(zip(_KEY, key, strict=True)), group):
            predicted[row.row] = row
    return [predicted[number] for number in sorted(predicted)]


def _normalized(table: pd.DataFrame) -> pd.DataFrame:
    """The columns by our names, sizes in bytes and times in seconds; NaN where there is none.

    What a table does not say at all is empty, and a problem of each of its rows.
    """
    if "moe_ep_size" in table:
        table = _dispatches(table)
    rows = pd.DataFrame({"row": np.arange(len(table)) + 1})
    for ours, names in _COLUMNS.items():
        found = next((name for name in names if name in table), None)
        rows[ours] = "" if found is None else table[found].fillna("").to_numpy()
    devices = [name for name in _DEVICES if name in table]
    named = table[devices].fillna("").astype(str).to_numpy().tolist()
    rows["device"] = [", ".join(filter(None, words)) for words in named]
    known = {text: _platform_name(text.split(", ")) for text in set(rows["device"])}
    rows["platform"] = rows["device"].map(known)
    rows["op"] = [_operation(str(name)) for name in rows["op"]]
    rows["nccl"] = rows["nccl"].astype(str)
    for number in ("ranks", "nodes"):
        rows[number] = pd.to_numeric(rows[number], errors="coerce").fillna(0).astype(int)
    rows["size_bytes"] = _sizes(table, rows)
    rows["time_s"] = _times(table, rows)
    return rows


def _sizes(table: pd.DataFrame, rows: pd.DataFrame) -> Any:
    size = next((name for name in _SIZES if name in table), None)
    if size is None:
        return math.nan
    numbers = pd.to_numeric(table[size], errors="coerce").to_numpy()
    if _SIZES[size] == "bytes":
        return numbers
    bytes_of = {name: value_bytes_of(str(name)) or math.nan for name in set(rows["dtype"])}
    return numbers * rows["dtype"].map(bytes_of).to_numpy()


def _dispatches(table: pd.DataFrame) -> pd.DataFrame:
    """Dispatches of mixtures of experts as all-to-alls; other rows keep their operation."""
    each = table["moe_dtype"].map(lambda name: value_bytes_of(str(name)) or 0)
    plain = (each >= 2) & (table["op_name"] == "alltoall_dispatch")
    names = ["num_tokens", "hidden_size", "topk", "moe_ep_size"]
    sizes = [
        dispatch_message_bytes(*map(int, row), int(value_bytes))
        for row, value_bytes in zip(table[names].to_numpy(), each, strict=True)
    ]
    return table.assign(
        op=table["op_name"].where(~plain, "all_to_all"),
        ranks=table["moe_ep_size"],
        size_bytes=sizes,
        latency_ms=table["latency"],
    )


def _times(table: pd.DataFrame, rows: pd.DataFrame) -> Any:
    time = next((name for name in _SECONDS if name in table), None)
    if time is not None:
        return pd.to_numeric(table[time], errors="coerce").to_numpy() * _SECONDS[time]
    bandwidth = next((name for name in _BANDWIDTHS if name in table), None)
    if bandwidth is None:
        return math.nan
    factors = [
        volume(CollectiveOp(op), ranks) if op and ranks > 1 else math.nan
        for op, ranks in zip(rows["op"], rows["ranks"], strict=True)
    ]
    rate = pd.to_numeric(table[bandwidth], errors="coerce").to_numpy() * 1e9
    return np.array(factors) * rows["size_bytes"].to_numpy() / rate


def _operation(name: str) -> str:
    plain = name.lower().removesuffix("_perf").replace("_", "").replace("-", "")
    return _OPS[plain].value if plain in _OPS else ""


def _platform_name(words: Sequence[str]) -> str:
    """The platform that a row names, or whose device has the name; empty for none."""
    names = list_platforms()
    for word in words:
        if word in names:
            return word
    found = (nearest_platform(word, 2) for word in reversed(words) if word)
    return next((platform.name for platform in found if platform is not None), "")


@lru_cache(maxsize=64)
def _platform(name: str, nccl: str) -> tuple[Platform, str]:
    """A platform with a version of the library, and what to say of the version."""
    platform = load_platform(name)
    if nccl:
        try:
            return override_platform(platform, [f"link.nccl={nccl}"])[0], f"NCCL {nccl}"
        except DseError:
            return platform, f"NCCL {nccl} by the newest"
    return platform, ""


def _predicted(key: dict[str, Any], group: pd.DataFrame) -> Iterator[PredictedRow]:
    """The rows of one call of the model."""
    measured_s = group["time_s"].to_numpy(float)
    numbers = group["row"].tolist()
    try:
        cluster, version = _cluster(key, str(group["device"].iloc[0]))
        size = group["size_bytes"].to_numpy(float)
        estimate = collective_estimate(cluster, key["op"], size, _group(cluster, key))
    except DseError as error:
        for number, time_s in zip(numbers, measured_s, strict=True):
            yield PredictedRow(
                number, key["platform"], key["nccl"], float(time_s), problem=str(error)
            )
        return
    width = np.exp(_HALF_WIDTH * estimate.spread)
    columns = (measured_s, estimate.time_s, estimate.time_s / width, estimate.time_s * width)
    for number, *values in zip(numbers, *columns, strict=True):
        row = PredictedRow(number, key["platform"], version, *map(float, values))
        usable = row.measured_s > 0 and row.predicted_s > 0
        yield row if usable else replace(row, problem="without a size or a time")


def _cluster(key: dict[str, Any], device: str) -> tuple[Cluster, str]:
    if not key["platform"]:
        raise DseError(f"no platform has the device {device}" if device else "no device is named")
    if not key["op"]:
        raise DseError("not a collective that is modelled")
    if key["ranks"] < 2:
        raise DseError("fewer than two ranks")
    platform, version = _platform(key["platform"], key["nccl"])
    return platform.cluster(key["ranks"], link=key["link"], network=key["network"]), version


def _group(cluster: Cluster, key: dict[str, Any]) -> Group:
    """The ranks on as many nodes as the table says; full nodes where it says nothing."""
    nodes, ranks = key["nodes"], key["ranks"]
    if nodes in (0, cluster.node_count):
        return Group.world(cluster)
    if ranks % nodes or ranks // nodes > cluster.devices_per_node:
        raise DseError(f"{ranks} ranks do not fill {nodes} nodes equally")
    return Group(nodes, ranks // nodes)
