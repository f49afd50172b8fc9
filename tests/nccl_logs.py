"""Text as nccl-tests prints it, with times by a rule of one's own."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

_COLUMNS = (
    "#       size         count      type   redop    root     time   algbw   busbw #wrong     "
    "time   algbw   busbw #wrong"
)
_UNITS = (
    "#        (B)    (elements)                               (us)  (GB/s)  (GB/s)            "
    "(us)  (GB/s)  (GB/s)       "
)
#: Bus over algorithm bandwidth of `ranks`, as nccl-tests defines it.
_BUS = {
    "all_reduce": lambda ranks: 2 * (ranks - 1) / ranks,
    "all_gather": lambda ranks: (ranks - 1) / ranks,
    "reduce_scatter": lambda ranks: (ranks - 1) / ranks,
    "alltoall": lambda ranks: (ranks - 1) / ranks,
}


def nccl_log(
    op: str,
    nodes: int,
    time_s: Callable[[int], float],
    *,
    per_node: int = 8,
    sizes: Sequence[int] = tuple(2**power for power in range(10, 31)),
    named: bool = True,
) -> str:
    """Returns the output of one run.

    Args:
        op: As in the name of the program, `all_reduce` or `alltoall`.
        nodes: Hosts.
        time_s: Seconds of a message size; in-place times are 2 % shorter.
        per_node: Ranks of each host.
        sizes: Message sizes in bytes.
        named: Whether the run says its operation, as new versions do.
    """
    ranks = nodes * per_node
    lines = [f"# Collective test starting: {op}_perf"] if named else []
    lines += [
        f"# nThread 1 nGpus 1 minBytes {sizes[0]} maxBytes {sizes[-1]} step: 2(factor) "
        "warmup iters: 5 iters: 20 agg iters: 1 validation: 1 graph: 0",
        "#",
        "# Using devices",
        *(
            f"#  Rank {rank:2d} Group  0 Pid {7000 + rank:6d} on  node-{rank // per_node:02d} "
            f"device {rank % per_node:2d} [0x{16 + rank % per_node:02x}] NVIDIA H100 80GB HBM3"
            for rank in range(ranks)
        ),
        "NCCL version 2.27.3+cuda12.9",
        "#",
        f"#{'out-of-place':>74}{'in-place':>36}",
        _COLUMNS,
        _UNITS,
    ]
    for size in sizes:
        reduction = "sum" if op in ("all_reduce", "reduce_scatter") else "none"
        row = f"{size:12d} {size // 4:13d}     float {reduction:>7}      -1"
        for share, wrong in ((1.0, "0"), (0.98, "N/A")):
            took_us = share * time_s(size) * 1e6
            rate = size / took_us / 1e3
            row += f" {took_us:8.2f} {rate:7.2f} {_BUS[op](ranks) * rate:7.2f} {wrong:>6}"
        lines.append(row)
    lines += ["# Out of bounds values : 0 OK", "# Avg bus bandwidth    : 100.000", "#"]
    return "\n".join(lines) + "\n"
