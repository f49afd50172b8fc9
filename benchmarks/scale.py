"""Trials a second of every executor, and what the asking process costs.

Usage: python benchmarks/scale.py [--trials N] [--jobs N] [--executors A,B] [--json]
                                  [--driver-trials N] [--picture FILE]

Runs one study once with each executor, each in a process of its own, and checks that all of them
end at the same front. Marks are judged on this machine as it is at the moment: its load is printed
beside them. With fewer trials than the marks speak of, a run would take at least the time that is
projected: evaluations in proportion, start and end as they were, since the front that is polished
at the end grows more slowly than the trials. That can miss a mark, but not meet it. With
`--trials 0` no study is run.

`--driver-trials 10000` also measures what the asking process costs in a study of so many trials
whose evaluations take no time (`scale_driver.py`), and draws it against the number of trials.
"""

from __future__ import annotations

import argparse
from dataclasses import asdict, dataclass
import hashlib
import importlib.util
import json
import os
from pathlib import Path
import subprocess
import sys
import tempfile
import time

os.environ.setdefault("OMP_NUM_THREADS", "1")

from costs import resident_bytes
from marks import Mark
import scale_driver

#: Trials that the marks of whole runs speak of.
MARK_TRIALS = 2000
MAX_PROCESS_S = 60.0
MAX_RAY_S = 90.0
MIN_SPEED_UP = 1.7
MAX_OVERHEAD_S = 0.005
MAX_RESIDENT_BYTES = 600e6

_OVERHEAD = f"at most {MAX_OVERHEAD_S * 1e3:.0f} ms a trial"

#: How often the memory of a run is looked at.
SAMPLE_S = 0.5


@dataclass(frozen=True, slots=True)
class Case:
    """One run.

    Attributes:
        executor: Which executor.
        jobs: Its workers.
        trials: Evaluated configurations, without those that are rejected before.
        start_s: Until the first one was answered: imports, inputs, workers.
        loop_s: From there to the last one.
        finish_s: From there to the files: thorough searches of the front's plans, tables.
        searched: Plans that were searched thoroughly.
        on_front: Configurations on the front.
        driver_loop_s: Processor time of the asking process in the loop.
        driver_finish_s: Its processor time from there to the files.
        front: Digest of the front.
        largest_bytes: Resident memory of the largest process, as seen from outside.
        together_bytes: Of all processes of the run; pages that they share count for each.
    """

    executor: str
    jobs: int
    trials: int
    start_s: float
    loop_s: float
    finish_s: float
    searched: int
    on_front: int
    driver_loop_s: float
    driver_finish_s: float
    front: str
    largest_bytes: float = 0.0
    together_bytes: float = 0.0

    @property
    def trials_per_s(self) -> float:
        """Of the loop alone."""
        return self.trials / self.loop_s

    @property
    def overhead_s(self) -> float:
        """Processor time of the asking process for one trial, where it does not evaluate."""
        return self.driver_loop_s / self.trials

    def projected_s(self, trials: int) -> float:
        """How long a run of so many trials takes at least."""
        return self.start_s + self.loop_s * trials / self.trials + self.finish_s


def run_case(executor: str, jobs: int, space: str, trials: int) -> Case:
    """Runs a study in this process."""
    start = time.perf_counter()
    from dse.search import RunOptions, run
    from dse.search.storage import Journal

    clocks: list[tuple[float, float]] = []

    def note(records, total) -> None:
        # What is rejected needs no worker, and comes before there is one.
        if records[-1].evaluated:
            clocks.append((time.perf_counter(), time.process_time()))

    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "study"
        options = RunOptions(trials=trials, jobs=jobs, executor=executor, out=out)
        study = run(space, options, progress=note)
        end, end_cpu_s = time.perf_counter(), time.process_time()
        front = hashlib.sha256(study.directory.pareto.read_bytes()).hexdigest()
        revised = Journal(study.directory.journal, study.result.objectives, ()).revised()
    (first_s, first_cpu_s), (last_s, last_cpu_s) = clocks[0], clocks[-1]
    return Case(
        executor=executor,
        jobs=jobs,
        trials=sum(record.evaluated for record in study.result.records),
        start_s=first_s - start,
        loop_s=last_s - first_s,
        finish_s=end - last_s,
        searched=sum(record.thorough for record in revised),
        on_front=len(study.result.front),
        driver_loop_s=last_cpu_s - first_cpu_s,
        driver_finish_s=end_cpu_s - last_cpu_s,
        front=front,
    )


def session_bytes(session: int) -> list[int]:
    """Returns the resident memory of every process of a session."""
    found = []
    for path in Path("/proc").glob("[0-9]*"):
        try:
            if os.getsid(int(path.name)) == session:
                found.append(resident_bytes(path))
        except (OSError, ValueError):
            continue  # It ended in the meantime.
    return found


def measured(executor: str, jobs: int, space: str, trials: int) -> Case:
    """Runs a study in a process of its own and watches its memory."""
    command = [sys.executable, __file__, "--space", space, "--trials", str(trials)]
    command += ["--jobs", str(jobs), "--case", executor]
    with tempfile.TemporaryFile("w+") as output:
        process = subprocess.Popen(command, stdout=output, start_new_session=True)
        largest = together = 0
        while process.poll() is None:
            sizes = session_bytes(process.pid)
            largest = max([largest, *sizes])
            together = max(together, sum(sizes))
            time.sleep(SAMPLE_S)
        output.seek(0)
        text = output.read()
    if process.returncode != 0:
        sys.exit(f"the run with executor {executor} ended with code {process.returncode}")
    return Case(**json.loads(text) | {"largest_bytes": largest, "together_bytes": together})


def marks_of(cases: dict[str, Case]) -> list[Mark]:
    """Judges all marks that the cases speak of."""
    marks = []
    for name, words, limit_s in (
        ("process", "process", MAX_PROCESS_S),
        ("ray", "local Ray, its start included", MAX_RAY_S),
    ):
        if name in cases:
            found_s = cases[name].projected_s(MARK_TRIALS)
            whole = cases[name].trials >= MARK_TRIALS
            said = "" if whole else "at least "
            marks.append(
                Mark(
                    f"{MARK_TRIALS:,} trials, {words}",
                    f"{said}{found_s:.1f} s",
                    f"at most {limit_s:.0f} s",
                    False if found_s > limit_s else whole or None,
                )
            )
    for name in ("process", "ray"):
        if name in cases and "serial" in cases:
            ratio = cases[name].trials_per_s / cases["serial"].trials_per_s
            marks.append(
                Mark(
                    f"speed-up of {cases[name].jobs} jobs, {name}",
                    f"{ratio:.2f}",
                    f"at least {MIN_SPEED_UP}",
                    ratio >= MIN_SPEED_UP,
                )
            )
    for name in ("process", "ray"):
        if name in cases:
            overhead_s = cases[name].overhead_s
            marks.append(
                Mark(
                    f"asking process, {name}",
                    f"{overhead_s * 1e3:.2f} ms",
                    _OVERHEAD,
                    overhead_s <= MAX_OVERHEAD_S,
                )
            )
    if not cases:
        return marks
    largest = max(case.largest_bytes for case in cases.values())
    marks.append(memory_mark("resident memory of a process", largest))
    same = len({case.front for case in cases.values()}) == 1
    marks.append(Mark("one front from all executors", "the same" if same else "differs", "", same))
    return marks


def memory_mark(what: str, largest_bytes: float) -> Mark:
    """Judges the most memory that something had."""
    return Mark(
        what,
        f"{largest_bytes / 1e6:.0f} MB",
        f"at most {MAX_RESIDENT_BYTES / 1e6:.0f} MB",
        largest_bytes <= MAX_RESIDENT_BYTES,
    )


def driver_marks(costs: list[scale_driver.DriverCost]) -> list[Mark]:
    """Judges what the asking process costs in long studies."""
    marks = []
    for cost in costs:
        where = f"asking process, {cost.trials[-1]:,} trials, {cost.executor}"
        marks.append(
            Mark(
                where,
                f"{cost.mean_s * 1e3:.2f} ms, {cost.last_s * 1e3:.2f} ms in the last tenth",
                _OVERHEAD,
                cost.mean_s <= MAX_OVERHEAD_S,
            )
        )
        marks.append(memory_mark(f"{where}, resident memory", cost.largest_bytes))
    return marks


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--space", default=str(Path(__file__).with_name("wide_space.yaml")))
    parser.add_argument("--trials", type=int, default=300)
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--executors", default="serial,process,ray")
    parser.add_argument("--driver-trials", type=int, default=0)
    parser.add_argument("--picture", type=Path, help="SVG of the cost against the trials")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--case", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.case:
        case = run_case(arguments.case, arguments.jobs, arguments.space, arguments.trials)
        print(json.dumps(asdict(case)))
        return

    cases: dict[str, Case] = {}
    costs: list[scale_driver.DriverCost] = []
    for name in arguments.executors.split(","):
        if name == "ray" and importlib.util.find_spec("ray") is None:
            print("ray is not installed: left out", file=sys.stderr)
            continue
        jobs = 1 if name == "serial" else arguments.jobs
        if arguments.trials:
            cases[name] = measured(name, jobs, arguments.space, arguments.trials)
        if arguments.driver_trials and name != "serial":
            costs.append(
                scale_driver.measured(name, jobs, arguments.space, arguments.driver_trials)
            )
    marks = [*marks_of(cases), *driver_marks(costs)]
    if costs and arguments.picture:
        scale_driver.write_picture(costs, MAX_OVERHEAD_S, arguments.picture)
    load = os.getloadavg()[0]
    if arguments.json:
        print(
            json.dumps(
                {
                    "load": load,
                    "processors": os.cpu_count(),
                    "cases": [asdict(case) for case in cases.values()],
                    "driver": [asdict(cost) for cost in costs],
                    "marks": [_document(mark) for mark in marks],
                },
                indent=1,
            )
        )
        return
    print(f"{arguments.space}, load {load:.1f} on {os.cpu_count()} processors")
    if cases:
        print(
            "executor  jobs  trials  start s   loop s  finish s  searched  front  trials/s  "
            "driver ms  largest MB"
        )
    for case in cases.values():
        # The serial executor evaluates where it asks.
        driver = "" if case.executor == "serial" else f"{case.overhead_s * 1e3:.2f}"
        print(
            f"{case.executor:<8} {case.jobs:5d} {case.trials:7d} {case.start_s:8.2f} "
            f"{case.loop_s:8.2f} {case.finish_s:9.2f} {case.searched:9d} {case.on_front:6d} "
            f"{case.trials_per_s:9.2f} {driver:>10} {case.largest_bytes / 1e6:11.0f}"
        )
    for mark in marks:
        print(mark.line)


def _document(mark: Mark) -> dict[str, object]:
    name = f"{mark.name}: {mark.aim}" if mark.aim else mark.name
    return {"name": name, "figure": mark.figure, "met": mark.met}


if __name__ == "__main__":
    main()
