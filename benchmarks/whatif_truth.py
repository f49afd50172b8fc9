"""What-ifs against the truth: change one thing for real and compare with the prediction.

Usage: python benchmarks/whatif_truth.py [--rounds N] [--only PART] [--work FOLDER] [--json]

Captures an MLP and a transformer on this machine's CPU, changes batch, width, threads, precision,
optimizer or the number of gloo ranks, captures again, and compares the change of the step's length
that `dse trace whatif` predicts from the first capture with the measured one. The captures of a
case alternate, so that drift of the machine hits both alike. Kernel and collective models are
calibrated here first, with one thread and with two; the points are kept in the work folder.
"""

from __future__ import annotations

import argparse
from dataclasses import asdict, dataclass, replace
import json
import os
from pathlib import Path
import socket
import statistics
import subprocess
import sys
import tempfile
from typing import TYPE_CHECKING

from marks import Mark
from pages import percent
from training_jobs import JobOptions

from dse.calibration import fit_machine, write_machine
from dse.calibration.microbench import make_plan, run_session
from dse.machine import Precision
from dse.trace import read_kineto
from dse.trace.whatif import captured_step, parse_optimization

if TYPE_CHECKING:
    from collections.abc import Sequence

    from dse.trace import RankTrace

#: Mean error that the predicted changes have to keep.
MARK = 0.10
OPERATORS = (
    "gemm",
    "elementwise",
    "layer_norm",
    "softmax",
    "attention",
    "optimizer_step",
    "concat",
    "memcpy_h2d",
    "memcpy_d2d",
)
POINTS = 48
BUDGET_S = 240.0

MLP = JobOptions("mlp", batch=512, width=768)
TRANSFORMER = JobOptions("transformer", batch=8, width=256)


@dataclass(frozen=True, slots=True)
class Case:
    """One thing that is changed.

    Attributes:
        name: Name.
        before: The job as captured.
        after: The job with the change.
        question: The what-if that predicts it; `{two}` stands for the platform of two threads.
    """

    name: str
    before: JobOptions
    after: JobOptions
    question: str


CASES = (
    Case("mlp batch ×2", MLP, replace(MLP, batch=1024), "resize=512:1024,samples=true"),
    Case("mlp batch ÷2", MLP, replace(MLP, batch=256), "resize=512:256,samples=true"),
    Case("mlp width ×1.5", MLP, replace(MLP, width=1152), "resize=768:1152"),
    Case("mlp two threads", MLP, replace(MLP, threads=2), "gpu={two}"),
    Case("mlp bf16 → fp32", replace(MLP, precision="bf16"), MLP, "precision=fp32"),
    Case("mlp fused Adam", MLP, replace(MLP, optimizer="fused_adam"), "fused_optimizer"),
    Case("mlp two ranks", MLP, replace(MLP, ranks=2), "data_parallel=2"),
    Case(
        "transformer batch ×2",
        TRANSFORMER,
        replace(TRANSFORMER, batch=16),
        "resize=8:16;384:768;32:64,samples=true",
    ),
    Case(
        "transformer width ×1.5",
        TRANSFORMER,
        replace(TRANSFORMER, width=384),
        "resize=256:384;1024:1536;768:1152;64:96",
    ),
    Case("transformer two threads", TRANSFORMER, replace(TRANSFORMER, threads=2), "gpu={two}"),
    Case(
        "transformer bf16 → fp32",
        replace(TRANSFORMER, precision="bf16"),
        TRANSFORMER,
        "precision=fp32",
    ),
    Case(
        "transformer fused Adam",
        TRANSFORMER,
        replace(TRANSFORMER, optimizer="fused_adam"),
        "fused_optimizer",
    ),
    Case("transformer two ranks", TRANSFORMER, replace(TRANSFORMER, ranks=2), "data_parallel=2"),
)


@dataclass(frozen=True, slots=True)
class Outcome:
    """Measured and predicted change of one case.

    Attributes:
        name: Name of the case.
        before_s: Median captured step without the change, in seconds.
        after_s: Median captured step with it.
        predicted_s: Median prediction from the captures without it.
    """

    name: str
    before_s: float
    after_s: float
    predicted_s: float

    @property
    def measured_change(self) -> float:
        """Time after over time before."""
        return self.after_s / self.before_s

    @property
    def predicted_change(self) -> float:
        """The same as predicted."""
        return self.predicted_s / self.before_s

    @property
    def error(self) -> float:
        """Predicted over measured change, minus one."""
        return self.predicted_change / self.measured_change - 1.0


def calibrated(work: Path, threads: int) -> Path:
    """Returns the platform of one rank with some threads; measures what is not measured yet."""
    path = work / f"cpu_{threads}.yaml"
    if path.exists():
        return path
    ranks = 2 if threads == 1 else 1
    plan = make_plan(
        "cpu",
        collectives=ranks > 1,
        local_ranks=ranks,
        threads=threads,
        operators=OPERATORS,
        points=POINTS,
        precisions=(Precision.FP32, Precision.BF16),
    )
    print(f"calibrating with {threads} threads …", file=sys.stderr)
    result = run_session(plan, work / f"cpu_{threads}.points.jsonl", BUDGET_S)
    write_machine(fit_machine(path.stem, result, ranks), path)
    return path


def capture(options: JobOptions, folder: Path) -> tuple[RankTrace, ...]:
    """Runs a job in processes of its own and returns what it captured."""
    folder.mkdir(parents=True, exist_ok=True)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    script = Path(__file__).with_name("training_jobs.py")
    command = [sys.executable, str(script), "--job", json.dumps(asdict(options))]
    processes = []
    for rank in range(options.ranks):
        place = {"RANK": str(rank), "WORLD_SIZE": str(options.ranks)}
        place |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
        environment = {**os.environ, **place, "OMP_NUM_THREADS": str(options.threads)}
        processes.append(subprocess.Popen([*command, "--traces", str(folder)], env=environment))
    codes = [process.wait(timeout=300) for process in processes]
    if any(codes):
        raise SystemExit(f"{options}: a rank ended with code {max(codes)}")
    return read_kineto(folder)


def steps_s(traces: Sequence[RankTrace]) -> list[float]:
    """Returns the length of each captured step, of the slowest rank, in seconds."""
    rows = zip(*(trace.steps for trace in traces), strict=True)
    return [max(step.end_ns - step.start_ns for step in row) / 1e9 for row in rows]


def run(case: Case, rounds: int, work: Path) -> Outcome:
    """Captures both jobs of a case in turns, and predicts the second from the first."""
    platform = calibrated(work, 1)
    question = case.question
    if "{two}" in question:
        question = question.format(two=calibrated(work, 2))
    before, after, predicted = [], [], []
    for number in range(rounds):
        folder = work / "captures" / case.name.replace(" ", "_") / str(number)
        traces = capture(case.before, folder / "before")
        before += steps_s(traces)
        after += steps_s(capture(case.after, folder / "after"))
        for step in traces[0].steps:
            captured = captured_step(traces, step=step.number, platform=str(platform))
            predicted.append(captured.what_if([parse_optimization(question)]).after_s)
    return Outcome(
        case.name, *(statistics.median(values) for values in (before, after, predicted))
    )


def main() -> None:
    """Runs all cases and prints the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--only", default="", help="cases whose name contains this")
    parser.add_argument("--work", type=Path, help="folder that keeps calibrations and captures")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        work = options.work or Path(temporary)
        work.mkdir(parents=True, exist_ok=True)
        outcomes = []
        if not options.json:
            print(f"{'case':26}{'before':>12}{'after':>12}{'measured':>10}{'predicted':>10} error")
        for case in CASES:
            if options.only not in case.name:
                continue
            outcome = run(case, options.rounds, work)
            outcomes.append(outcome)
            if not options.json:
                times = (outcome.before_s, outcome.after_s)
                print(
                    f"{outcome.name:26}"
                    + "".join(f"{1e3 * seconds:9.2f} ms" for seconds in times)
                    + f"{outcome.measured_change:9.3f}×{outcome.predicted_change:9.3f}×"
                    + f"{100 * outcome.error:+7.1f} %",
                    flush=True,
                )
    mean = statistics.fmean(abs(outcome.error) for outcome in outcomes)
    if options.json:
        rows = [
            {
                **asdict(outcome),
                "measured_change": outcome.measured_change,
                "predicted_change": outcome.predicted_change,
                "error": outcome.error,
            }
            for outcome in outcomes
        ]
        print(json.dumps({"cases": rows, "mean_error": mean, "mark": MARK}, indent=1))
    else:
        print(Mark.of("mean error", mean, "≤", MARK, percent).line)


if __name__ == "__main__":
    main()
