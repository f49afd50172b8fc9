"""How long gloo's all-to-all takes if ranks hold different amounts.

Usage: python benchmarks/uneven_exchanges.py [--ranks 2] [--rounds 40] [--csv FILE]
       python benchmarks/uneven_exchanges.py --read FILE

Every rank deals what it holds out evenly to all. Amounts of one total are spread over the ranks
more and more unevenly, in rounds of random order. Each law says which bytes decide; the time of an
uneven exchange is predicted from the measured even ones with as many deciding bytes, and the
errors of the laws are printed. Processor time is that of the busiest rank, with gloo's threads; it
hardly depends on what else the machine does.
"""

from __future__ import annotations

import argparse
import csv
from dataclasses import asdict, dataclass, fields
from functools import partial
import os
from pathlib import Path
import socket
import sys
import time
from typing import TYPE_CHECKING

os.environ.setdefault("OMP_NUM_THREADS", "1")

import numpy as np
from tables import read_rows

from dse.machine import LinkKind, LinkSpec
from dse.machine.collectives import deciding_bytes

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

#: Bytes that all ranks hold together, for each rank.
MEAN_BYTES = (2**16, 2**18, 2**20, 2**22)

#: Share of the total that the fullest rank holds; the others share the rest evenly.
SHARES = (0.0, 0.5, 0.75, 0.95)

#: Exchanges of one sample, so that the clock's resolution does not matter.
SAMPLE_BYTES = 2**24


@dataclass(frozen=True, slots=True)
class Row:
    """One exchange, measured.

    Attributes:
        ranks: Number of ranks.
        mean_bytes: Bytes that a rank holds on average.
        most_bytes: Bytes that the fullest rank holds.
        wall_s: Median time by the clock.
        processor_s: Median processor time of the busiest rank.
    """

    ranks: int
    mean_bytes: int
    most_bytes: int
    wall_s: float
    processor_s: float


def _held(mean_bytes: int, ranks: int, share: float) -> list[int]:
    """Bytes of each rank, whole values for every peer."""
    total = mean_bytes * ranks
    most = max(share * total, mean_bytes)
    rest = (total - most) / (ranks - 1)
    part = 4 * ranks
    return [int(size // part) * part for size in (most, *[rest] * (ranks - 1))]


def _rank(rank: int, ranks: int, port: int, rounds: int, out: str) -> None:
    import torch
    from torch import distributed

    cores = sorted(os.sched_getaffinity(0))
    os.sched_setaffinity(0, {cores[rank % len(cores)]})
    torch.set_num_threads(1)
    distributed.init_process_group(
        "gloo", init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=ranks
    )
    cases = [
        (mean, held)
        for mean in (size // (4 * ranks) * 4 * ranks for size in MEAN_BYTES)
        for held in dict.fromkeys(tuple(_held(mean, ranks, share)) for share in SHARES)
    ]
    buffers = []
    for _, held in cases:
        received = sum(held) // ranks
        buffers.append((torch.zeros(held[rank] // 4), torch.zeros(received // 4)))
    samples: dict[int, list[tuple[float, float]]] = {number: [] for number in range(len(cases))}
    order = np.random.default_rng(0)
    for _ in range(rounds + 1):
        for number in order.permutation(len(cases)).tolist():
            mean, held = cases[number]
            sent, received = buffers[number]
            given, taken = (
                [held[rank] // 4 // ranks] * ranks,
                [size // 4 // ranks for size in held],
            )
            times = max(2, SAMPLE_BYTES // (mean * ranks))
            distributed.barrier()
            start_s, start_processor_s = time.perf_counter(), time.process_time()
            for _ in range(times):
                distributed.all_to_all_single(received, sent, taken, given)
            end_s, end_processor_s = time.perf_counter(), time.process_time()
            figures = torch.tensor(
                [(end_s - start_s) / times, (end_processor_s - start_processor_s) / times],
                dtype=torch.float64,
            )
            distributed.all_reduce(figures, distributed.ReduceOp.MAX)
            samples[number].append((float(figures[0]), float(figures[1])))
    if rank == 0:
        rows = []
        for number, (mean, held) in enumerate(cases):
            wall_s, processor_s = np.median(samples[number][1:], axis=0).tolist()
            rows.append(Row(ranks, mean, max(held), wall_s, processor_s))
        write(Path(out), rows)
    distributed.destroy_process_group()


def measure(ranks: int, rounds: int, out: Path) -> None:
    """Measures into a file."""
    from torch import multiprocessing

    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    multiprocessing.spawn(_rank, (ranks, port, rounds, str(out)), nprocs=ranks)


def write(file: Path, rows: Sequence[Row]) -> None:
    """Adds rows to a file."""
    new = not file.exists()
    with file.open("a", newline="") as stream:
        writer = csv.DictWriter(stream, [one.name for one in fields(Row)])
        if new:
            writer.writeheader()
        for row in rows:
            figures = {"wall_s": f"{row.wall_s:.4g}", "processor_s": f"{row.processor_s:.4g}"}
            writer.writerow(asdict(row) | figures)


def read(file: Path) -> list[Row]:
    """Reads rows of a file."""
    return [
        Row(
            int(row["ranks"]),
            int(row["mean_bytes"]),
            int(row["most_bytes"]),
            float(row["wall_s"]),
            float(row["processor_s"]),
        )
        for row in read_rows(file)
    ]


def _link(kind: LinkKind) -> LinkSpec:
    return LinkSpec("link", kind, 1.0, 0.0)


def bytes_by(kind: LinkKind, row: Row) -> float:
    """Returns the bytes that decide over a kind of link, in the performance model."""
    rest = (row.ranks * row.mean_bytes - row.most_bytes) / (row.ranks - 1)
    held = np.array([row.most_bytes, *[rest] * (row.ranks - 1)])
    return float(deciding_bytes(_link(kind), held.reshape(1, -1, 1), row.ranks)[0])


def mean(row: Row) -> float:
    """What a rank sends to others on average."""
    return row.mean_bytes * (row.ranks - 1) / row.ranks


#: Bytes that decide, by the name of the law.
LAWS: dict[str, Callable[[Row], float]] = {
    "shared memory: half of what a rank sends and receives": partial(
        bytes_by, LinkKind.SHARED_MEMORY
    ),
    "links: the most that a rank sends or receives": partial(bytes_by, LinkKind.PCIE),
    "what a rank sends on average": mean,
}


def errors(rows: Sequence[Row], clock: str) -> dict[str, tuple[float, float]]:
    """Returns the bias and the mean error of each law, as factors, on uneven exchanges."""
    found = {}
    for name, law in LAWS.items():
        ratios = []
        for ranks in {row.ranks for row in rows}:
            own = sorted(
                (row for row in rows if row.ranks == ranks), key=lambda row: row.mean_bytes
            )
            even = [row for row in own if row.most_bytes == row.mean_bytes]
            at = np.log([mean(row) for row in even])
            time_s = np.log([getattr(row, clock) for row in even])
            slope = (time_s[-1] - time_s[-2]) / (at[-1] - at[-2])
            for row in own:
                size = np.log(law(row))
                if row.most_bytes > row.mean_bytes:
                    predicted = np.interp(size, at, time_s) + slope * max(0.0, size - at[-1])
                    ratios.append(predicted - np.log(getattr(row, clock)))
        found[name] = (float(np.exp(np.mean(ratios))), float(np.exp(np.abs(ratios).mean())))
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=40)
    parser.add_argument("--csv", type=Path, default=Path("uneven_exchanges.csv"))
    parser.add_argument("--read", type=Path, help="print the errors of what a file holds")
    arguments = parser.parse_args()
    file = arguments.read or arguments.csv
    if arguments.read is None:
        measure(arguments.ranks, arguments.rounds, file)
    rows = read(file)
    for row in rows:
        print(
            f"{row.ranks} ranks, {row.mean_bytes / 2**10:6,.0f} KiB each, fullest "
            f"{row.most_bytes / row.mean_bytes:4.2f} times: {1e3 * row.wall_s:8.3f} ms, processor "
            f"{1e3 * row.processor_s:8.3f} ms"
        )
    for clock in ("wall_s", "processor_s"):
        for name, (bias, error) in errors(rows, clock).items():
            print(f"{clock:12} {name:54} bias × {bias:.2f}, error × {error:.2f}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
