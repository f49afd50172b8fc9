"""What collectives should reach: one, or a table over sizes and ranks."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dse._text.digits import significant
from dse.report.console import Table, facts, figures, line, plural, size, span

if TYPE_CHECKING:
    from rich.console import Console

    from dse.machine.collectives import CollectiveTable, ExpectedCollective


def print_collective(table: CollectiveTable, console: Console) -> None:
    """Prints the only point of a table with what decides it.

    Args:
        table: One point.
        console: Where to print.
    """
    (point,) = table.points
    where = f"{plural(point.ranks, 'rank')} of {table.platform}"
    line(console, f"{point.op.value}, {size(point.size_bytes)}, {where}", "bold")
    times = span(_us(point.low_s), _us(point.high_s))
    rates = span(
        _gb(point.low_bus_bandwidth_bytes_per_s), _gb(point.high_bus_bandwidth_bytes_per_s)
    )
    rows = [
        ("expected time", f"{_us(point.time_s)} (90 % interval {times})"),
        ("bus bandwidth", f"{_gb(point.bus_bandwidth_bytes_per_s)} (90 % interval {rates})"),
        ("algorithm bandwidth", _gb(point.algorithm_bandwidth_bytes_per_s)),
        ("decided", _decided(point)),
        (f"inside, {table.link}", str(point.inside)),
    ]
    if point.between is not None:
        rows.append((f"between, {table.network}", str(point.between)))
    facts(console, rows)


def print_collectives(table: CollectiveTable, console: Console) -> None:
    """Prints bus bandwidths over sizes and ranks.

    Args:
        table: The points.
        console: Where to print.
    """
    line(
        console,
        f"{table.op} on {table.platform}, {table.link} inside and {table.network} between: "
        "bus bandwidth in GB/s by message and ranks",
        "bold",
    )
    rows = Table("", figures("message", *map(str, table.world_sizes)))
    for message in table.sizes_bytes:
        points = [table.at(message, ranks) for ranks in table.world_sizes]
        cells = [significant(point.bus_bandwidth_bytes_per_s / 1e9, 4) for point in points]
        rows.add(size(message), *cells)
    rows.print(console)
    largest = [table.at(table.sizes_bytes[-1], ranks) for ranks in table.world_sizes]
    for text in dict.fromkeys(
        f"{name}: {source}"
        for point in largest
        for name, source in (("inside", point.inside), ("between", point.between))
        if source is not None
    ):
        line(console, text)


def _decided(point: ExpectedCollective) -> str:
    if point.between is None:
        return "inside"
    times = {"inside": _us(point.inside_s), "between": _us(point.between_s)}
    decisive = times.pop(point.decided_by)
    ((other, quicker),) = times.items()
    places = {"inside": "inside domains", "between": f"between {point.domains} domains"}
    return f"{places[point.decided_by]}: {decisive} there, {quicker} {other}"


def _us(seconds: float) -> str:
    return f"{1e6 * seconds:,.0f} µs" if seconds >= 1e-4 else f"{1e6 * seconds:.1f} µs"


def _gb(bytes_per_s: float) -> str:
    return f"{significant(bytes_per_s / 1e9, 4)} GB/s"
