"""What asking costs, trial by trial: a study of many trials whose evaluations take no time.

The asking process proposes with the sampler of the space, judges limits, sends proposals to the
workers and takes records back, journals them and tells them to the sampler. Run by `scale.py
--driver-trials`, each executor in a process of its own.

    python benchmarks/scale_driver.py --trials 2000 --evaluation-ms 50

has evaluations sleep 50 ms on average and also says how long workers waited for work, which hardly
depends on what else the machine does.
"""

from __future__ import annotations

import argparse
from dataclasses import asdict, dataclass
import itertools
import json
import os
from pathlib import Path
import subprocess
import sys
import tempfile
import time

os.environ.setdefault("OMP_NUM_THREADS", "1")

from costs import peak_bytes, resident_bytes
from scale_plot import Curve, cost_svg
from scale_stub import duration_s, stub_inputs

#: Points of the curve.
POINTS = 40

WORDS = {"process": "processes of this machine", "ray": "local Ray", "serial": "asking process"}


@dataclass(frozen=True, slots=True)
class DriverCost:
    """What one study cost the asking process.

    Attributes:
        executor: Where the evaluations ran.
        sampler: What proposed.
        trials: Evaluated configurations at the points of the curve.
        cpu_s: Processor time of the asking process up to there.
        resident_bytes: Its memory there.
        records: All records at the end, rejected ones included.
        finish_cpu_s: Processor time from the last trial to the files.
        largest_bytes: Most memory that it ever had, the files included.
        journal_bytes: Size of the journal.
        waiting_s: How long each worker waited for work, between the first answer and the last.
    """

    executor: str
    sampler: str
    trials: tuple[int, ...]
    cpu_s: tuple[float, ...]
    resident_bytes: tuple[int, ...]
    records: int
    finish_cpu_s: float
    largest_bytes: int
    journal_bytes: int
    waiting_s: float

    @property
    def mean_s(self) -> float:
        """Processor time of a trial, over all of them."""
        return (self.cpu_s[-1] - self.cpu_s[0]) / (self.trials[-1] - self.trials[0])

    @property
    def last_s(self) -> float:
        """The same, over the last tenth."""
        first = -max(2, len(self.trials) // 10)
        return (self.cpu_s[-1] - self.cpu_s[first]) / (self.trials[-1] - self.trials[first])

    def curve(self) -> Curve:
        """Returns milliseconds a trial between the points."""
        steps = list(zip(self.trials, self.cpu_s, strict=True))
        return Curve(
            WORDS[self.executor],
            tuple(
                (after[0], (after[1] - before[1]) / (after[0] - before[0]) * 1e3)
                for before, after in itertools.pairwise(steps)
            ),
        )


def measure(
    executor: str, jobs: int, space: str, trials: int, evaluation_s: float = 0.0
) -> DriverCost:
    """Runs a study in this process."""
    from dse.search import RunOptions, TrialStatus
    import dse.search._run as run_module

    inputs = stub_inputs(space, evaluation_s)
    run_module.read_inputs = lambda *named: inputs
    points: list[tuple[int, float, int]] = []
    step = max(1, trials // POINTS)
    evaluated = 0
    asleep_s = 0.0
    clocks: list[float] = []

    def note(records, total) -> None:
        nonlocal asleep_s, evaluated
        if records[-1].status is not TrialStatus.REJECTED:
            clocks.append(time.perf_counter())
            evaluated += 1
            asleep_s += duration_s(evaluation_s, dict(records[-1].parameters))
            if evaluated % step == 0:
                points.append((evaluated, time.process_time(), resident_bytes()))

    with tempfile.TemporaryDirectory() as folder:
        options = RunOptions(trials=trials, jobs=jobs, executor=executor, out=Path(folder) / "s")
        study = run_module.run(space, options, progress=note)
        end_s = time.process_time()
        journal_bytes = study.directory.journal.stat().st_size
    return DriverCost(
        executor=executor,
        sampler=study.result.sampler,
        trials=tuple(point[0] for point in points),
        cpu_s=tuple(point[1] for point in points),
        resident_bytes=tuple(point[2] for point in points),
        records=len(study.result.records),
        finish_cpu_s=end_s - points[-1][1],
        largest_bytes=peak_bytes(),
        journal_bytes=journal_bytes,
        waiting_s=clocks[-1] - clocks[0] - asleep_s / (1 if executor == "serial" else jobs),
    )


def measured(executor: str, jobs: int, space: str, trials: int) -> DriverCost:
    """Measures in a process of its own."""
    command = [sys.executable, __file__, "--executor", executor, "--jobs", str(jobs)]
    command += ["--space", space, "--trials", str(trials)]
    # Workers of Ray have to find the module of the evaluations by its name.
    here = str(Path(__file__).resolve().parent)
    paths = [here, *filter(None, [os.environ.get("PYTHONPATH")])]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(paths)}
    done = subprocess.run(command, stdout=subprocess.PIPE, env=environment, check=False)
    if done.returncode != 0:
        sys.exit(f"the study with executor {executor} ended with code {done.returncode}")
    found = json.loads(done.stdout)
    for name in ("trials", "cpu_s", "resident_bytes"):
        found[name] = tuple(found[name])
    return DriverCost(**found)


def write_picture(costs: list[DriverCost], limit_s: float, path: Path) -> None:
    """Writes the cost of a trial against the number of trials as SVG."""
    path.write_text(cost_svg([cost.curve() for cost in costs], limit_s * 1e3))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--executor", default="process")
    parser.add_argument("--space", default=str(Path(__file__).with_name("wide_space.yaml")))
    parser.add_argument("--trials", type=int, default=10_000)
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--evaluation-ms", type=float, default=0.0)
    arguments = parser.parse_args()
    evaluation_s = 1e-3 * arguments.evaluation_ms
    cost = measure(
        arguments.executor, arguments.jobs, arguments.space, arguments.trials, evaluation_s
    )
    print(json.dumps(asdict(cost)))


if __name__ == "__main__":
    main()
