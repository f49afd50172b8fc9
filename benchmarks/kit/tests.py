"""The tests that need a GPU, with what they print."""

from __future__ import annotations

from pathlib import Path
import subprocess
import sys

FILE = "tests.txt"
TESTS = Path(__file__).resolve().parents[2] / "tests" / "cuda"


def run(out: Path, budget_s: float) -> int:
    """Runs them unless they passed before; returns pytest's exit code."""
    written = out / FILE
    if written.is_file() and " passed" in written.read_text(encoding="utf-8"):
        return 0
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", str(TESTS)]
    with written.open("w", encoding="utf-8") as file:
        code = subprocess.run(
            command, stdout=file, stderr=subprocess.STDOUT, timeout=budget_s, check=False
        ).returncode
    # Without a GPU all of them are skipped, which is no failure.
    print(written.read_text(encoding="utf-8")[-2000:])
    return code
