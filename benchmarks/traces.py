"""How fast traces are read, linked and replayed, how much memory that takes, how true replays are.

Usage: python benchmarks/traces.py [PATH …] [--synthetic-megabytes N]
       python benchmarks/traces.py --events N [N …] [--write docs/traces.md]

Reads each Kineto file in a process of its own on one core: megabytes of JSON text a second, and
the peak of resident memory above that of the bare interpreter, as a multiple of the text. Without
PATH the files beside the repository are taken (or those in DSE_MEASUREMENTS), and a synthetic
trace of 100 MB that the script makes itself and removes again. Then each file but the synthetic
one is replayed: measured and simulated length of every rank's step, alone and together, with
the time and the peak of memory of reading, linking, graph and simulation; and linked with the
execution traces of the same run. A graph of 100,000 tasks is simulated on its own. At the end
stands each figure beside the mark that it has to reach.

With `--events`, `dse trace info` and `dse trace simulate` run on synthetic traces of so many
events instead: processor time and the peak of memory of each command. 10^7 events take 3 GB of
disk, 8 GB of memory and ten minutes. `--write` replaces the table on that page.
"""

from __future__ import annotations

import argparse
from dataclasses import asdict, replace
import gc
from itertools import pairwise
import json
import os
from pathlib import Path
import subprocess
import sys
import tempfile
import time

from costs import command_cost, peak_bytes
from folders import DATA, ROOT
from marks import Mark
import numpy as np
from synthetic_trace import write_synthetic

from dse.graph import ExecutionGraph, GraphBuilder, TaskKind, collective_members
from dse.simulate import simulate
from dse.trace import (
    compare_with_measured,
    link,
    link_execution_trace,
    match_collectives,
    read_execution_trace,
    read_kineto,
    trace_graph,
)
from dse.trace.read._files import documents

FOLDER = DATA / "traces"

SYNTHETIC = "synthetic.json"

#: Execution traces that were captured in the same run as a Kineto trace.
PARTNERS = {
    "dlrm_kineto.tar.gz": "dlrm_pytorch_et.tar.gz",
    "linear_kineto.json.gz": "linear_et.json.gz",
}

#: Times of the ranks are whole µs, and their clocks agree to a few.
CLOCKS_S = 4e-6

#: The shortest of so many durations counts: the one least disturbed by others.
REPEATS = 3

TASKS = 100_000


#: What this process measured; passed on as the last line of its output.
MARKS: list[Mark] = []


def mark(what: str, value: float, limit: float, unit: str, *, at_least: bool = False) -> None:
    sign = "≥" if at_least else "≤"
    MARKS.append(Mark.of(what, float(value), sign, limit, lambda number: f"{number:.3g} {unit}"))


def measure(path: str) -> None:
    """Prints the figures of one file; runs in a process of its own."""
    text = sum(len(content) for _, content in documents(path, ()))
    read_s = 9e9
    for _ in range(REPEATS):
        before = time.perf_counter()
        traces = read_kineto(path)
        read_s = min(read_s, time.perf_counter() - before)
    before = time.perf_counter()
    links = [link(trace) for trace in traces]
    link_s = time.perf_counter() - before
    collectives = match_collectives(traces, links)
    events = sum(map(len, traces))
    mark(f"{Path(path).name}: read", text / 1e6 / read_s, 40, "MB/s", at_least=True)
    print(
        f"{Path(path).name}: {text / 1e6:.1f} MB of JSON, {len(traces)} ranks, {events} events; "
        f"read in {read_s:.2f} s = {text / 1e6 / read_s:.0f} MB/s; "
        f"linked in {link_s:.3f} s = {link_s / max(events, 1) * 1e6:.2f} s per 10^6 events; "
        f"{sum(found.complete for found in collectives)} of {len(collectives)} collectives matched"
    )


def peak(path: str) -> None:
    """Prints the peak of memory while reading; runs in a process of its own."""
    base = peak_bytes()
    read_kineto(path)
    used = peak_bytes() - base
    text = sum(len(content) for _, content in documents(path, ()))
    print(f"{Path(path).name}: peak {used / 1e6:.0f} MB = {used / text:.1f} × the text")


def replays(path: str) -> None:
    """Prints how replays of one file compare with what was measured; in a process of its own."""
    name = Path(path).name
    base = peak_bytes()
    runs = []
    for _ in range(REPEATS):
        moments = [time.perf_counter()]
        traces = read_kineto(path)
        moments.append(time.perf_counter())
        links = [link(trace) for trace in traces]
        made = trace_graph(traces, links, match_collectives(traces, links))
        moments.append(time.perf_counter())
        times = simulate(made.graph)
        moments.append(time.perf_counter())
        if not runs:
            used = peak_bytes() - base
        runs.append([b - a for a, b in pairwise(moments)])
    read_s, graph_s, simulate_s = min(runs, key=sum)
    all_s = read_s + graph_s + simulate_s
    print(
        f"{name}: {made.graph.task_count} tasks of {len(traces)} ranks; read in "
        f"{read_s:.2f} s, linked and made a graph in {graph_s:.2f} s, simulated in "
        f"{simulate_s:.2f} s, together {all_s:.2f} s; peak {used / 1e6:.0f} MB"
    )
    mark(f"{name}: read, graph and simulation", all_s, 1.5, "s")
    mark(f"{name}: their memory", used / 1e6, 300, "MB")
    for note in made.notes:
        print(f"  {note}")
    print(
        "  rank  measured µs  alone µs  error     together µs  error     "
        "compute  exposed communication  idle µs  unexplained"
    )
    graphs = [trace_graph([trace], [link(trace)]) for trace in traces]
    alone = [one for each in graphs for one in compare_with_measured(each, simulate(each.graph))]
    together = compare_with_measured(made, times)
    for one, all_ranks in zip(alone, together, strict=True):
        print(
            f"  {one.rank:4}  {one.measured_s * 1e6:11.0f}  {one.simulated_s * 1e6:8.0f}  "
            f"{one.error:+.3%}  {all_ranks.simulated_s * 1e6:12.0f}  {all_ranks.error:+.3%}  "
            f"{all_ranks.compute_s * 1e6:8.0f}  {all_ranks.exposed_communication_s * 1e6:21.0f}  "
            f"{all_ranks.idle_s * 1e6:7.0f}  {one.unexplained_share:11.3%}"
        )
    mark(f"{name}: worst rank alone", max(100 * abs(one.error) for one in alone), 2, "%")
    if len(traces) > 1:
        worst = max(100 * abs(one.error) for one in together)
        mark(f"{name}: worst rank together", worst, 3, "%")
    spreads = [
        transfer_spread(made.graph.duration_s[tasks])
        for tasks in collective_members(made.graph).values()
    ]
    if spreads:
        mark(f"{name}: transfer over ranks, beyond clocks", 100 * max(spreads), 10, "%")


def transfer_spread(transfer_s: np.ndarray) -> float:
    """Largest deviation from the median over ranks that clocks do not account for, relative."""
    middle = np.median(transfer_s)
    apart = np.abs(transfer_s - middle).max()
    return float(apart / middle) if apart > CLOCKS_S else 0.0


def partners(path: str) -> None:
    """Prints how many operators of the execution traces of the same run were found."""
    other = Path(path).parent / PARTNERS.get(Path(path).name, "")
    if not other.is_file():
        return
    traces = {trace.rank: trace for trace in read_kineto(path)}
    shares = [
        link_execution_trace(one, traces.get(one.rank, traces[min(traces)])).share
        for one in read_execution_trace(other)
    ]
    print(f"{other.name}: {min(shares):.2%} of the operators that launched work linked, at least")
    mark(f"{other.name}: linked operators", 100 * min(shares), 99, "%", at_least=True)


def large_graph(tasks: int = TASKS, ranks: int = 8) -> ExecutionGraph:
    """Returns a graph as traces give it: rank by rank, in each the host before its streams.

    A layer has 16 tasks of the host, which launch seven kernels and a collective of all ranks.
    """
    rng = np.random.default_rng(0)
    builder = GraphBuilder()
    layers = tasks // ranks // 25
    collectives: list[list[int]] = [[] for _ in range(layers)]
    for rank in range(ranks):
        host, launches, compute, wire = (
            builder.add_stream(rank, name) for name in ("host", "launches", "compute", "wire")
        )
        calls = []
        for _ in range(8 * layers):
            builder.add_task("operator", TaskKind.HOST, host, rng.uniform(0, 1e-5))
            calls.append(builder.add_task("call", TaskKind.HOST, host, 5e-6))
        received: list[int] = []
        for layer, members in enumerate(collectives):
            launched = calls[8 * layer : 8 * layer + 8]
            delay = builder.add_task("delay", TaskKind.HOST, launches, 4e-6, launched[:1])
            last = -1
            for launch in [delay, *launched[1:7]]:
                after = [launch, *(received if launch == delay else ())]
                last = builder.add_task(
                    "kernel", TaskKind.COMPUTE, compute, rng.uniform(0, 2e-5), after
                )
            after = [launched[7], last]
            received = [builder.add_task("all_reduce", TaskKind.COLLECTIVE, wire, 1e-5, after)]
            members += received
    for members in collectives:
        builder.add_collective(members)
    return builder.build()


def large(_: str) -> None:
    """Prints how long the simulation of a large graph takes, with finding out who waits for whom.

    Compared with the plain simulator of the tests, which takes tasks in order of time.
    """
    from tests.simulate.by_time import simulate_by_time

    graph = large_graph()
    gc.collect()
    seconds = {simulate: 9e9, simulate_by_time: 9e9}
    for _ in range(REPEATS):
        for run in seconds:
            # Another array of streams: what is known of the structure is not known of this graph.
            fresh = replace(graph, stream=graph.stream.copy())
            start = time.perf_counter()
            run(fresh)
            seconds[run] = min(seconds[run], time.perf_counter() - start)
    first_s, plain_s = seconds.values()
    simulate(graph)
    start = time.perf_counter()
    simulate(graph)
    again_s = time.perf_counter() - start
    print(
        f"simulate {graph.task_count:,} tasks: {first_s:.3f} s, {again_s:.3f} s once more; "
        f"in order of time {plain_s:.3f} s, {plain_s / first_s:.1f} times as long"
    )
    mark(f"simulate {graph.task_count:,} tasks", first_s, 0.2, "s")


def print_sizes(counts: list[int], page: Path | None) -> None:
    """Prints what commands cost on traces of so many events, and writes it into the page."""
    rows = [_SIZES_HEAD, "|---:|---:|---|---:|---:|"]
    print("\n".join(rows))
    with tempfile.TemporaryDirectory() as folder:
        made = Path(folder) / SYNTHETIC
        for count in counts:
            write_synthetic(made, events=count)
            for command in ("info", "simulate"):
                cpu_s, most_bytes = command_cost("trace", command, str(made))
                rows.append(
                    f"| {count:,} | {made.stat().st_size / 1e9:.2g} GB | `dse trace {command}` | "
                    f"{cpu_s:.0f} s | {most_bytes / 1e9:.2g} GB |"
                )
                print(rows[-1], flush=True)
    if page is not None:
        before, _, after = page.read_text().partition(_SIZES_HEAD)
        rest = after.partition("\n\n")[2]
        page.write_text(before + "\n".join(rows) + "\n" + ("\n" + rest if rest else ""))


#: First line of the table in docs/traces.md.
_SIZES_HEAD = "| events | file | command | processor time | peak of memory |"


ONLY = {"measure": measure, "peak": peak, "replay": replays, "partners": partners}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("paths", nargs="*", metavar="PATH")
    parser.add_argument("--synthetic-megabytes", type=float, default=100)
    parser.add_argument("--events", type=int, nargs="+", metavar="N")
    parser.add_argument("--write", type=Path, metavar="PAGE")
    parser.add_argument("--only", choices=(*ONLY, "large"), help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.only:
        for path in arguments.paths:
            {**ONLY, "large": large}[arguments.only](path)
        print(json.dumps([asdict(one) for one in MARKS]))
        return
    if arguments.events:
        print_sizes(arguments.events, arguments.write)
        return
    marks = []
    with tempfile.TemporaryDirectory() as folder:
        paths = arguments.paths
        if not paths:
            made = Path(folder) / SYNTHETIC
            write_synthetic(made, arguments.synthetic_megabytes)
            paths = [*map(str, sorted(FOLDER.glob("*kineto*"))), str(made)]
        for path in paths:
            for only in ONLY:
                if only in ("replay", "partners") and Path(path).name == SYNTHETIC:
                    continue
                marks += run_alone(only, path)
    marks += run_alone("large", "-")
    print("", *(one.line for one in marks), sep="\n")
    print(f"{sum(bool(one.met) for one in marks)} of {len(marks)} marks met")


def run_alone(only: str, path: str) -> list[Mark]:
    """Measures one thing in a process of its own, and passes on what it prints."""
    command = [sys.executable, __file__, "--only", only, path]
    done = subprocess.run(
        command,
        check=True,
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        stdout=subprocess.PIPE,
        text=True,
    )
    *lines, found = done.stdout.splitlines()
    if lines:
        print("\n".join(lines), flush=True)
    return [Mark(**fields) for fields in json.loads(found)]


if __name__ == "__main__":
    main()
