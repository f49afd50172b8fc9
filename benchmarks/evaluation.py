"""Processor time of one evaluation of a study, by phase.

Usage: python benchmarks/evaluation.py [--space NAME] [--trials N] [--skip N] [--json]

Runs the first trials of a study in this process, without files, and says where the processor time
of its evaluations went. Time within one phase that another one calls counts for the inner one.
"""

from __future__ import annotations

import argparse
from collections import Counter
from contextlib import contextmanager
from dataclasses import replace
import functools
import importlib
import json
import os
from pathlib import Path
import time
from typing import TYPE_CHECKING

os.environ.setdefault("OMP_NUM_THREADS", "1")

from dse.search._inputs import read_inputs
from dse.search._records import TrialStatus
from dse.search.propose import Proposer

if TYPE_CHECKING:
    from collections.abc import Iterator

#: Phase → functions and methods whose time is its.
PHASES: dict[str, tuple[str, ...]] = {
    "graphs": (
        "dse.workload.dlrm.scoring._compiled:build_layout",
        "dse.workload.dlrm.solver.bound._nodes:build_layout",
    ),
    "compiling": ("dse.workload.dlrm.scoring._scorer:compile_layout",),
    "baselines": ("dse.sharding._planners:plan_greedily",),
    "cuts": ("dse.workload.dlrm.solver._options:ShardingOptions._make",),
    "first plans": ("dse.workload.dlrm.solver.starts._constructor:Constructor.plans",),
    "balancing": (
        "dse.workload.dlrm.solver.moves._balance:Balancer.descend",
        "dse.workload.dlrm.solver.moves._balance:Balancer.improve",
    ),
    "neighbours": (
        "dse.workload.dlrm.solver.moves._neighbours:Neighbourhood.around",
        "dse.workload.dlrm.solver.moves._neighbours:Neighbourhood.exchanges",
    ),
    "scoring": (
        "dse.workload.dlrm.scoring._scorer:PlanScorer.score_features",
        "dse.workload.dlrm.scoring._scorer:PlanScorer.score_options",
        "dse.workload.dlrm.scoring._scorer:PlanScorer.marginal_costs",
    ),
    "rest of the search": ("dse.search.evaluate._configurations:ConfigurationEvaluator._planned",),
    "interval": ("dse.workload._iteration:Iteration.sample_times_s",),
    "rest of the prediction": ("dse.search.evaluate._configurations:predict_job",),
    "rest": ("dse.search.evaluate._configurations:ConfigurationEvaluator._evaluate",),
}


class Clock:
    """Processor time by phase, each second counted once."""

    def __init__(self) -> None:
        self.seconds: Counter[str] = Counter()
        self._running: list[str] = []
        self._since = time.process_time()

    def _book(self) -> None:
        now = time.process_time()
        if self._running:
            self.seconds[self._running[-1]] += now - self._since
        self._since = now

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Books the time inside for a phase."""
        self._book()
        self._running.append(name)
        try:
            yield
        finally:
            self._book()
            self._running.pop()

    def watch(self, place: str, name: str) -> None:
        """Books the time of a function, named `module:name` or `module:class.name`."""
        module, path = place.split(":")
        *owners, attribute = path.split(".")
        owner = functools.reduce(getattr, owners, importlib.import_module(module))
        if not hasattr(owner, attribute):
            raise SystemExit(f"{place} is gone; name what took its place in PHASES")
        inner = getattr(owner, attribute)

        @functools.wraps(inner)
        def timed(*arguments, **named):
            with self.phase(name):
                return inner(*arguments, **named)

        setattr(owner, attribute, timed)


def measured(space: str, trials: int, skip: int) -> dict[str, object]:
    """Runs the first trials of a study and returns seconds a trial by phase."""
    inputs = read_inputs(space)
    search = inputs.space.search
    context = replace(inputs.context, seed=search.seed)
    clock = Clock()
    for name, places in PHASES.items():
        for place in places:
            clock.watch(place, name)
    evaluator = context.make_evaluator()
    proposer = Proposer(context.space, search.sampler, search.seed, evaluator)
    done, asking_s, evaluating_s = 0, 0.0, 0.0
    records = []
    while done < skip + trials and not proposer.exhausted:
        begun = time.process_time()
        batch = proposer.ask(min(search.batch, skip + trials - done))
        asking_s += time.process_time() - begun
        answers = []
        for proposal in batch.proposals:
            begun = time.process_time()
            answers.append(evaluator.evaluate(proposal.number, dict(proposal.parameters)))
            evaluating_s += time.process_time() - begun
            done += 1
            if done == skip:
                clock.seconds.clear()
                asking_s = evaluating_s = 0.0
        begun = time.process_time()
        proposer.tell(answers)
        asking_s += time.process_time() - begun
        records += answers
    failed = [record.reason for record in records if record.status is TrialStatus.FAILED]
    if failed:
        raise SystemExit(f"{len(failed)} evaluations failed, the first one: {failed[0]}")
    counted = max(1, done - skip)
    return {
        "space": space,
        "trials": counted,
        "after": skip,
        "evaluation_s": evaluating_s / counted,
        "asking_s": asking_s / counted,
        "phases_s": {name: clock.seconds[name] / counted for name in PHASES},
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--space", default=str(Path(__file__).with_name("wide_space.yaml")))
    parser.add_argument("--trials", type=int, default=120)
    parser.add_argument("--skip", type=int, default=0, help="trials before, not counted")
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    result = measured(arguments.space, arguments.trials, arguments.skip)
    if arguments.json:
        print(json.dumps(result, indent=1))
        return
    print(
        f"{arguments.space}: {result['trials']} trials after the first {result['after']}, "
        "milliseconds of processor time a trial"
    )
    for name, seconds in result["phases_s"].items():
        print(f"  {name:<24} {seconds * 1e3:8.2f}")
    print(f"  {'evaluation':<24} {result['evaluation_s'] * 1e3:8.2f}")
    print(f"  {'asking and telling':<24} {result['asking_s'] * 1e3:8.2f}")


if __name__ == "__main__":
    main()
