"""Commands that are interrupted at a random moment, for `benchmarks/faults.py`."""

from __future__ import annotations

from importlib.util import find_spec
import shutil
import signal
import time
from typing import TYPE_CHECKING

from synthetic_trace import write_synthetic
import yaml

from dse.search import load_study
from tests.search.files import unfinished
from tests.search.runs import Command, wait_until_alone
from tests.trace.replay.making import RELU, T, call, write

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from faults import Try, Workplace

#: Commands, and what they write.
COMMANDS = (
    ("shard dlrm_tiny --platform h100_sxm --world-size 2 --global-batch-size 16384 --force --out",
     "plan.json"),
    ("recommend dlrm_tiny --target 1Msamples/s --platforms h100_sxm --world-sizes 2 --force "
     "--export", "plan.json"),
    ("export ../whole --candidate 0 --format yaml --force --out", "configuration.yaml"),
    ("fit gemm ../gemm.csv --platform h100_sxm --time-unit us --force --out", "fitted.json"),
    ("whatif ../whole --set memory_bandwidth=+20% --out", "study"),
    ("compare ../whole ../whole", ""),
    ("trace info ../trace.json", ""),
    ("trace simulate ../trace.json", ""),
    ("trace overheads ../trace.json --force --out", "host.yaml"),
    ("replay ../operators.json --compute-only --iterations 200", ""),
)  # fmt: skip


def interrupts(place: Workplace) -> Iterator[Try]:
    """Ctrl-C or SIGTERM of other commands at a random moment, with an old file in the way."""
    rows = [(128 << at % 4, 128 << at % 3, 128 << at % 5) for at in range(60)]
    lines = [f"{m},{n},{k},bf16,{2 + m * n * k / 1e8}" for m, n, k in sorted(set(rows))]
    (place.folder / "gemm.csv").write_text("\n".join(["m,n,k,dtype,time_us", *lines, ""]))
    write_synthetic(place.folder / "trace.json", events=70_000)
    operators = [
        call(at, 1, RELU, [T(1, (1000, 1000))], [T(2, (1000, 1000))]) for at in range(2, 99)
    ]
    write(place.folder / "operators.json", operators)
    commands = [one for one in COMMANDS if not one[0].startswith("replay") or find_spec("torch")]
    took_s: dict[str, float] = {}
    while True:
        text, target = place.chance.choice(commands)
        folder = place.new()
        folder.mkdir()
        if target and target != "study":
            (folder / target).write_text("old")
        words = [*text.split(), *([target] if target else [])]
        number = place.chance.choice((signal.SIGINT, signal.SIGTERM))
        start_s = time.monotonic()
        command = Command(folder / "messages", *words, cwd=folder)
        # The first time it is left alone; later it is given the time to reach the command line.
        patience_s = place.chance.uniform(0.2, took_s[text]) if text in took_s else None
        command.process.join(patience_s)
        command.interrupt(number)
        code, messages = command.join()
        took_s.setdefault(text, time.monotonic() - start_s)
        yield words[0], _interrupted_well(command, folder, target, code == 128 + number, messages)
        shutil.rmtree(folder)


def _interrupted_well(
    command: Command, folder: Path, target: str, interrupted: bool, messages: str
) -> str:
    """Returns what is wrong after an interrupt, or nothing."""
    if not interrupted and command.process.exitcode:
        return f"exit code {command.process.exitcode}: {messages[-200:]}"
    if interrupted and messages.strip().count("\n"):
        return f"several lines: {messages[-200:]}"
    if left := wait_until_alone(command.process.pid):
        return f"processes left: {left}"
    if unfinished(folder):
        return f"left behind: {unfinished(folder)}"
    if target == "study":
        if (folder / target / "study.yaml").exists():
            load_study(folder / target)
    elif target and (content := (folder / target).read_text()) != "old":
        # Half a document is none.
        yaml.safe_load(content)
        if not content.endswith("\n"):
            return f"half of {target}"
    return ""
