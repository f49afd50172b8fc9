"""Whether published steps were measured: those of vTrain on one node against its own simulator.

Usage: python benchmarks/simulated_steps.py [--data DIR]

vTrain (VIA-Research/vTrain, f8dda847) publishes `data/ground_truth_single.csv` as measured steps.
Its simulator (`src/predictor.py`) adds to a step of several replicas the time of one all-reduce,
which it looks up: the second timing in its table of all-reduces, of the gradients of the first
stage rounded to whole MiB; above the largest message of the table, the rate of that message. Here
the differences between published steps that differ in nothing but their replicas stand beside
these entries. Steps that were measured would scatter around them by more than the two timings of
one message differ; a second check needs no table: the time that a further micro-batch takes is
the same in jobs whose stages have the same layers, however many stages there are.
"""

from __future__ import annotations

import argparse
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from accuracy import DATA
import numpy as np
from tables import read_rows, read_table

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    #: Microseconds, and the bus bandwidth in GB/s, by ranks and MiB.
    AllReduces = Mapping[tuple[int, int], tuple[float, float]]
    Row = Mapping[str, str]

_MIB = 2**20

#: The largest message of the table.
_LARGEST_MIB = 1024

_VALUE_BYTES = 2


class Difference(NamedTuple):
    """What replicas add to a published step.

    Attributes:
        published_us: Between two published steps.
        simulated_us: Between what a simulator adds to them.
    """

    published_us: float
    simulated_us: float


def first_stage_bytes(row: Row) -> int:
    """Returns the bytes of the gradients of the first stage's rank, as vTrain counts them."""
    layers, hidden, tensor = (int(row[name]) for name in ("layers", "hidden", "tp"))
    rows, stages = int(row["vocab"]) // tensor, int(row["pp"])
    part = hidden // tensor
    matrices = 4 * hidden * part + 2 * hidden * (4 * hidden // tensor)
    biases = 3 * hidden // tensor + 4 * hidden // tensor + 2 * hidden
    parameters = layers // stages * (matrices + biases + 4 * hidden)
    parameters += (rows + int(row["seq"])) * hidden
    return _VALUE_BYTES * (parameters + (rows * hidden if stages == 1 else 0))


def all_reduce_us(table: AllReduces, ranks: int, size_bytes: int) -> float:
    """Returns what vTrain takes an all-reduce for; 0 on one rank."""
    if ranks == 1:
        return 0.0
    size = round(size_bytes / _MIB)
    if (ranks, size) in table:
        return table[ranks, size][0]
    # Its own arithmetic: MiB over the bus bandwidth in GiB/s, whatever the number of ranks.
    return size / (table[ranks, _LARGEST_MIB][1] * 1024) * 1e6


def differences(rows: Sequence[Row], table: AllReduces) -> list[Difference]:
    """Returns what each next number of replicas adds to steps that are alike otherwise."""
    alike: dict[tuple[str, ...], list[Row]] = {}
    for row in rows:
        micro_batches = int(row["global_batch"]) // int(row["dp"])
        names = ("layers", "hidden", "tp", "pp", "micro_batch")
        alike.setdefault((*(row[name] for name in names), str(micro_batches)), []).append(row)
    found = []
    for group in alike.values():
        group.sort(key=lambda row: int(row["dp"]))
        for few, many in pairwise(group):
            size = first_stage_bytes(few)
            less, more = (all_reduce_us(table, int(row["dp"]), size) for row in (few, many))
            between_s = float(many["s_per_step"]) - float(few["s_per_step"])
            found.append(Difference(1e6 * between_s, more - less))
    return found


class Stages(NamedTuple):
    """The stages of a job.

    Attributes:
        hidden: Width of the model.
        tensor: Tensor-parallel ranks of each.
        samples: Of a micro-batch.
        count: How many there are.
        layers: Layers of each.
    """

    hidden: int
    tensor: int
    samples: int
    count: int
    layers: int


def further_micro_batches_us(rows: Sequence[Row]) -> dict[Stages, float]:
    """Returns what a further micro-batch takes in jobs without replicas."""
    jobs: dict[Stages, list[tuple[int, float]]] = {}
    for row in rows:
        if row["dp"] == "1":
            names = ("hidden", "tp", "micro_batch", "pp", "layers")
            *kind, stages, layers = (int(row[name]) for name in names)
            job = Stages(*kind, stages, layers // stages)
            micro_batches = int(row["global_batch"]) // job.samples
            jobs.setdefault(job, []).append((micro_batches, 1e6 * float(row["s_per_step"])))
    found = {}
    for job, steps in jobs.items():
        (few, short_us), (many, long_us) = min(steps), max(steps)
        if many > few:
            found[job] = (long_us - short_us) / (many - few)
    return found


def in_jobs_of_other_depth(times_us: Mapping[Stages, float]) -> list[list[float]]:
    """Returns the times of stages that jobs of different depth have, one list a kind of stage."""
    found: dict[Stages, list[float]] = {}
    for job, time_us in times_us.items():
        if job.count > 1:
            found.setdefault(job._replace(count=0), []).append(time_us)
    return [times for times in found.values() if len(times) > 1]


def layers_us(times_us: Mapping[Stages, float]) -> dict[Stages, float]:
    """Returns what a layer adds to a micro-batch, from jobs of one stage that differ in layers."""
    found: dict[Stages, list[tuple[int, float]]] = {}
    for job, time_us in times_us.items():
        if job.count == 1:
            found.setdefault(job._replace(layers=1), []).append((job.layers, time_us))
    return {
        job: (max(both)[1] - min(both)[1]) / (max(both)[0] - min(both)[0])
        for job, both in found.items()
        if len(both) > 1
    }


def read_all_reduces(path: Path) -> AllReduces:
    """Returns the table of all-reduces on A100: the second timing, which the simulator reads."""
    table = read_table(path)
    table = table[table.gpu == "a100"]
    sizes = np.round(table.size_bytes / _MIB).astype(int)
    timings = zip(table.latency_us_2, table.busbw_gb_s_2, strict=True)
    return dict(zip(zip(table.gpus, sizes, strict=True), timings, strict=True))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", type=Path, default=DATA, help="folder of measurements")
    data = parser.parse_args().data
    rows = read_rows(data / "published/steps/vtrain.csv")
    table = read_all_reduces(data / "nccl/vtrain_all_reduce.parquet")
    found = differences(rows, table)
    apart = [abs(published - simulated) for published, simulated in found]
    sizes = [published for published, _ in found]
    print(
        f"{len(found)} pairs of steps that differ in replicas: by {min(sizes):.0f} to "
        f"{max(sizes):.0f} us, of which the table explains all but {max(apart):.1f} us at most"
    )
    times_us = further_micro_batches_us(rows)
    alike = in_jobs_of_other_depth(times_us)
    spread = max(max(times) / min(times) - 1 for times in alike)
    print(
        f"{len(alike)} kinds of stages in jobs of different depth: a further micro-batch takes "
        f"the same to {1e6 * spread:.0f} millionths"
    )
    for job, layer_us in sorted(layers_us(times_us).items()):
        each_us = all_reduce_us(table, job.tensor, 2 * job.samples * 1024 * job.hidden)
        print(
            f"width {job.hidden}, {job.tensor} tensor-parallel ranks, {job.samples} samples: "
            f"{layer_us / 1e3:.1f} ms a layer, {each_us / 1e3:.2f} ms an all-reduce"
        )


if __name__ == "__main__":
    main()
