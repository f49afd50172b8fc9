"""How fast traces are read, linked and replayed, how much memory that takes, how true replays are.

Usage: python benchmarks/traces.py [PATH …] [--synthetic-megabytes N]

Reads each Kineto file in a process of its own on one core: megabytes of JSON text a second, and
the peak of resident memory above that of the bare interpreter, as a multiple of the text. Without
PATH the files beside the repository are taken (or those in DSE_MEASUREMENTS), and a synthetic
trace of 100 MB that the script makes itself and removes again. Then each file but the synthetic
one is replayed: measured and simulated length of every rank's step, alone and together, with
the time and the peak of memory of reading, linking, graph and simulation.
"""

from __future__ import annotations

import argparse
from itertools import pairwise
import json
import os
from pathlib import Path
import resource
import subprocess
import sys
import tempfile
import time

from dse.simulate import simulate
from dse.traces import compare, link, match_collectives, read_kineto, replay, trace_graph
from dse.traces._files import documents

ROOT = Path(__file__).resolve().parent.parent
FOLDER = Path(os.environ.get("DSE_MEASUREMENTS", ROOT.parent / "shared" / "data")) / "traces"

SYNTHETIC = "synthetic.json"


def write_synthetic(path: Path, megabytes: float) -> None:
    """Writes a trace of nested operators, launches, kernels and arrows, a step a millisecond."""
    head = {"schemaVersion": 1, "distributedInfo": {"rank": 0, "world_size": 1}}
    with path.open("w") as file:
        file.write(json.dumps(head)[:-1] + ', "traceEvents": [\n')
        number, separator = 0, ""
        while file.tell() < megabytes * 1e6:
            lines = [json.dumps(event) for event in _launch(number)]
            file.write(separator + ",\n".join(lines))
            number, separator = number + 1, ",\n"
        file.write("\n]}\n")


def _launch(number: int) -> list[dict[str, object]]:
    start = 1000000.125 + 50.0 * number
    name = f"aten::operator_{number % 97}"
    shapes = {"Input Dims": [[1024, number % 31 + 1], []], "Input type": ["float", "Scalar"]}
    host = {"pid": 1, "tid": 1}
    device = {"pid": 0, "tid": 7}
    ids = {"External id": 3 * number, "correlation": number}
    kernel = {"device": 0, "stream": 7, "grid": [80, 1, 1], "block": [128, 1, 1], **ids}
    arrow = {"cat": "ac2g", "name": "ac2g", "id": number}
    operators = [
        {
            "ph": "X",
            "cat": "cpu_op",
            "name": name + suffix,
            "ts": start + inner,
            "dur": 30.5 - 2 * inner,
            **host,
            "args": {
                "External id": 3 * number + inner,
                "Record function id": 3 * number + inner,
                "Ev Idx": 3 * number + inner,
                **shapes,
            },
        }
        for inner, suffix in enumerate(("", "_inner", "_out"))
    ]
    call = {"ph": "X", "cat": "cuda_runtime", "name": "cudaLaunchKernel", "ts": start + 5}
    work = {"ph": "X", "cat": "kernel", "name": f"void kernel_{number % 53}<float, 4>(float*)"}
    return [
        *operators,
        {**call, "dur": 6.25, **host, "args": {**ids, "External id": 3 * number + 2, "cbid": 211}},
        {**arrow, "ph": "s", **host, "ts": start + 5},
        {**work, "ts": start + 15, "dur": 40.125, **device, "args": kernel},
        {**arrow, "ph": "f", "bp": "e", **device, "ts": start + 15},
    ]


def measure(path: str) -> None:
    """Prints the figures of one file; runs in a process of its own."""
    text = sum(len(content) for _, content in documents(path))
    before = time.perf_counter()
    traces = read_kineto(path)
    read_s = time.perf_counter() - before
    before = time.perf_counter()
    links = [link(trace) for trace in traces]
    link_s = time.perf_counter() - before
    meetings = match_collectives(traces, links)
    events = sum(map(len, traces))
    print(
        f"{Path(path).name}: {text / 1e6:.1f} MB of JSON, {len(traces)} ranks, {events} events; "
        f"read in {read_s:.2f} s = {text / 1e6 / read_s:.0f} MB/s; "
        f"linked in {link_s:.3f} s = {link_s / max(events, 1) * 1e6:.2f} s per 10^6 events; "
        f"{sum(meeting.complete for meeting in meetings)} of {len(meetings)} collectives matched"
    )


def peak(path: str) -> None:
    """Prints the peak of memory while reading; runs in a process of its own."""
    base = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    read_kineto(path)
    used = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - base) * 1024
    text = sum(len(content) for _, content in documents(path))
    print(f"{Path(path).name}: peak {used / 1e6:.0f} MB = {used / text:.1f} × the text")


def marks(path: str) -> None:
    """Prints how replays of one file compare with what was measured; in a process of its own."""
    base = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    moments = [time.perf_counter()]
    traces = read_kineto(path)
    moments.append(time.perf_counter())
    links = [link(trace) for trace in traces]
    made = trace_graph(traces, links, match_collectives(traces, links))
    moments.append(time.perf_counter())
    times = simulate(made.graph)
    moments.append(time.perf_counter())
    used = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - base) * 1024
    read_s, graph_s, simulate_s = (b - a for a, b in pairwise(moments))
    print(
        f"{Path(path).name}: {made.graph.task_count} tasks of {len(traces)} ranks; read in "
        f"{read_s:.2f} s, linked and made a graph in {graph_s:.2f} s, simulated in "
        f"{simulate_s:.2f} s, together {moments[-1] - moments[0]:.2f} s; peak {used / 1e6:.0f} MB"
    )
    for note in made.notes:
        print(f"  {note}")
    print(
        "  rank  measured µs  alone µs  error     together µs  error     "
        "compute  exposed communication  idle µs  unexplained"
    )
    alone = replay(traces, simulate, together=False)
    for one, all_ranks in zip(alone, compare(made, times), strict=True):
        print(
            f"  {one.rank:4}  {one.measured_s * 1e6:11.0f}  {one.simulated_s * 1e6:8.0f}  "
            f"{one.error:+.3%}  {all_ranks.simulated_s * 1e6:12.0f}  {all_ranks.error:+.3%}  "
            f"{all_ranks.compute_s * 1e6:8.0f}  {all_ranks.exposed_communication_s * 1e6:21.0f}  "
            f"{all_ranks.idle_s * 1e6:7.0f}  {one.unexplained_share:11.3%}"
        )


ONLY = {"measure": measure, "peak": peak, "replay": marks}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("paths", nargs="*", metavar="PATH")
    parser.add_argument("--synthetic-megabytes", type=float, default=100)
    parser.add_argument("--only", choices=tuple(ONLY), help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.only:
        for path in arguments.paths:
            ONLY[arguments.only](path)
        return
    with tempfile.TemporaryDirectory() as folder:
        paths = arguments.paths
        if not paths:
            made = Path(folder) / SYNTHETIC
            write_synthetic(made, arguments.synthetic_megabytes)
            paths = [*map(str, sorted(FOLDER.glob("*kineto*"))), str(made)]
        for path in paths:
            for only in ONLY:
                if only == "replay" and Path(path).name == SYNTHETIC:
                    continue
                command = [sys.executable, __file__, "--only", only, path]
                subprocess.run(
                    command, check=True, cwd=ROOT, env={**os.environ, "PYTHONPATH": str(ROOT)}
                )


if __name__ == "__main__":
    main()
