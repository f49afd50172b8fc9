"""Measures what matters most on a machine with one GPU, within a time budget.

Usage: python benchmarks/gpu_kit.py --minutes 9 --out OUT [--device cuda|cpu] [--parts NAME,…]
       python benchmarks/gpu_kit.py --read OUT [--platform NAME] [--markdown FILE]

Parts: kernels (products, lookups, streams, copies, attention, host overheads), steps (two DLRMs
and two transformers, eager and as CUDA graphs), study (the best plans of a study, rank by rank),
traces (captured steps, simulated and replayed) and tests (those that need a GPU). Each runs in a
process of its own with a share of the time that is left and writes its rows as it measures them:
the same command continues where it ended, and what breaks or hangs costs one part only.

`--read` fits a platform to the measured points (OUT/measured.yaml), predicts the timed steps on it
and on the built-in platform of that GPU, and prints both beside the measurements. On a machine
without a GPU `--device cpu` rehearses all parts with small sizes.
"""

from __future__ import annotations

import argparse
from dataclasses import dataclass
import os
from pathlib import Path
import signal
import subprocess
import sys
import time
from typing import TYPE_CHECKING

os.environ.setdefault("OMP_NUM_THREADS", "1")

from kit.log import append

if TYPE_CHECKING:
    from collections.abc import Sequence

#: Log of what was tried: machine, part, how it ended.
LOG = "kit.jsonl"

#: What a part may take beyond its share before it is ended, to start and to finish what it has
#: begun.
GRACE_SHARE, GRACE_S = 0.25, 20.0


@dataclass(frozen=True, slots=True)
class Part:
    """One part of the kit.

    Attributes:
        name: Name, also of the module in `kit` that runs it.
        share: Share of the time, relative to the others.
        title: What it measures.
    """

    name: str
    share: float
    title: str


PARTS = (
    Part("kernels", 0.36, "kernels, copies and host overheads"),
    Part("steps", 0.24, "training steps, eager and as CUDA graphs"),
    Part("study", 0.14, "plans of a study, rank by rank"),
    Part("traces", 0.12, "captured steps, simulated and replayed"),
    Part("tests", 0.14, "tests that need a GPU"),
)


def measure(out: Path, device: str, minutes: float, names: Sequence[str]) -> int:
    """Runs the parts one after another; returns how many did not end well."""
    out.mkdir(parents=True, exist_ok=True)
    end_s = time.monotonic() + 60 * minutes
    todo = [part for part in PARTS if part.name in names]
    failed = 0
    for number, part in enumerate(todo):
        left_s = end_s - time.monotonic()
        budget_s = left_s * part.share / sum(later.share for later in todo[number:])
        if budget_s < 1:
            print(f"{part.name}: no time left", flush=True)
            failed += 1
            continue
        print(f"{part.name}: {part.title}, {budget_s:.0f} s", flush=True)
        began_s = time.monotonic()
        limit_s = min((1 + GRACE_SHARE) * budget_s, left_s) + GRACE_S
        ended = _in_process(part, out, device, budget_s, limit_s)
        duration_s = time.monotonic() - began_s
        row = {"part": part.name, "device": device, "ended": ended, "duration_s": duration_s}
        append(out / LOG, row)
        print(f"{part.name}: {ended} after {duration_s:.0f} s", flush=True)
        failed += ended != "done"
    return failed


def _in_process(part: Part, out: Path, device: str, budget_s: float, limit_s: float) -> str:
    """Runs a part; returns ``done``, ``failed: …`` or ``ended: …``."""
    command = [sys.executable, __file__, "--part", part.name, "--budget", str(budget_s)]
    command += ["--out", str(out), "--device", device]
    process = subprocess.Popen(command, start_new_session=True)
    try:
        code = process.wait(limit_s)
    except subprocess.TimeoutExpired:
        return f"ended: took more than {limit_s:.0f} s"
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
    return "done" if code == 0 else f"failed: exit code {code}"


def run_part(name: str, out: Path, device: str, budget_s: float) -> int:
    """Runs one part in this process."""
    if name == "kernels":
        from kit import kernels

        kernels.run(out, device, budget_s)
    elif name == "steps":
        from kit import steps

        steps.run(out, device, budget_s)
    elif name == "study":
        from kit import study

        study.run(out, device, budget_s)
    elif name == "traces":
        from kit import traces

        traces.run(out, device, budget_s)
    else:
        from kit import tests

        return tests.run(out, budget_s)
    return 0


def main(arguments: Sequence[str] | None = None) -> int:
    """Measures, or reads what was measured; the exit code is 1 if a part did not end well."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    known = ",".join(part.name for part in PARTS)
    parser.add_argument("--minutes", type=float, default=9.0)
    parser.add_argument("--out", type=Path, default=Path("gpu_kit"))
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--parts", default=known, help=f"some of {known}")
    parser.add_argument("--read", type=Path, help="folder of an earlier run")
    parser.add_argument("--platform", default="", help="built-in platform to compare with")
    parser.add_argument("--markdown", type=Path, help="file for the tables")
    parser.add_argument("--part", help=argparse.SUPPRESS)
    parser.add_argument("--budget", type=float, default=60.0, help=argparse.SUPPRESS)
    given = parser.parse_args(arguments)
    if given.read is not None:
        from kit.reading import read

        text = read(given.read, given.platform)
        print(text)
        if given.markdown is not None:
            given.markdown.write_text(text + "\n", encoding="utf-8")
        return 0
    if given.part is not None:
        return run_part(given.part, given.out, given.device, given.budget)
    return 1 if measure(given.out, given.device, given.minutes, given.parts.split(",")) else 0


if __name__ == "__main__":
    sys.exit(main())
