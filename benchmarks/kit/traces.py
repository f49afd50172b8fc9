"""Captured steps: simulated and replayed, beside the same steps without a profiler.

The traces themselves are written into one archive and may be published.
"""

from __future__ import annotations

from pathlib import Path
import tarfile
import tempfile
from typing import TYPE_CHECKING, Any

from replay_jobs import JOBS

import dse
from dse.simulate import simulate
from dse.trace import compare_with_measured, link, match_collectives, read_kineto, trace_graph
from dse.trace.replay import ReplayOptions, replay
from kit.log import append, read_log
from kit.timing import step_time, synchronize

if TYPE_CHECKING:
    from collections.abc import Callable

FILE, ARCHIVE = "fidelity.jsonl", "traces.tar"

#: Steps that are captured.
STEPS = 3


def run(out: Path, device: str, budget_s: float) -> None:
    """Captures, simulates and replays the jobs that are not in the file yet."""
    import torch

    done = {row["job"] for row in read_log(out / FILE)}
    # A rehearsal needs no more than one.
    names = list(JOBS) if device == "cuda" else ["mlp"]
    for name in (job for job in names if job not in done):
        torch.manual_seed(0)
        step = JOBS[name](device)
        alone = step_time(step, device, 0.05 * budget_s)
        with tempfile.TemporaryDirectory() as folder:
            _capture(step, device, folder)
            row = {"job": name, "device": device, "trained_s": alone.time_s}
            row |= _simulated(Path(folder)) | _replayed(folder, device)
            with tarfile.open(out / ARCHIVE, "a") as archive:
                for file in sorted(Path(folder).iterdir()):
                    archive.add(file, f"{name}/{file.name}")
        append(out / FILE, row)


def _capture(step: Callable[[], object], device: str, folder: str) -> None:
    with dse.capture(folder, steps=STEPS, skip=4) as capture:
        for _ in capture.steps(range(STEPS + 12)):
            step()
            synchronize(device)


def _simulated(folder: Path) -> dict[str, Any]:
    traces = read_kineto(folder)
    links = [link(trace) for trace in traces]
    made = trace_graph(traces, links, match_collectives(traces, links), None)
    (rank,) = compare_with_measured(made, simulate(made.graph))
    return {"profiled_s": rank.measured_s, "simulated_s": rank.simulated_s}


def _replayed(folder: str, device: str) -> dict[str, Any]:
    result = replay([folder], ReplayOptions(device=device, iterations=5, warm_up=2))
    (rank,) = result.ranks
    return {
        "replayed_s": rank.replayed_s / (rank.original.steps or 1),
        "replayed_share": rank.coverage.operator_share,
        "replayed_device_share": rank.coverage.device_time_share,
        "not_replayed": sorted({f"{one.name}: {one.reason}" for one in rank.skipped}),
    }
