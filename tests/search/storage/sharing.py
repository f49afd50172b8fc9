"""What processes do that share a study."""

from __future__ import annotations

import time

from dse.search import RunOptions, run
from dse.search.evaluate import ConfigurationEvaluator


def run_and_hang(space, url, out):
    """Evaluates two configurations, then says so and hangs until it is killed."""
    original = ConfigurationEvaluator.evaluate
    seen = []

    def evaluate(self, number, parameters):
        if len(seen) == 2:
            (out.parent / "hangs").touch()
            time.sleep(600)
        seen.append(number)
        return original(self, number, parameters)

    ConfigurationEvaluator.evaluate = evaluate
    run(space, RunOptions(out=out, storage=url))


def run_together(space, url, folder, index):
    """Waits until all three are ready, and for a moment at every evaluation."""
    original = ConfigurationEvaluator.evaluate

    def evaluate(self, number, parameters):
        time.sleep(0.3)
        return original(self, number, parameters)

    ConfigurationEvaluator.evaluate = evaluate
    (folder / f"ready {index}").touch()
    while len(list(folder.glob("ready *"))) < 3:
        time.sleep(0.01)
    run(space, RunOptions(out=folder / f"run {index}", storage=url, trials=14))
