"""A tiny study of this machine's CPU, and runs of it without processes."""

from __future__ import annotations

from dataclasses import replace

from dse.search import (
    CalibrationFactor,
    RankingMetrics,
    RunOptions,
    ValidatedCandidate,
    Validation,
    ValidationMode,
    ValidationSetting,
    run,
)
from dse.validation import Measurement

MODEL = """\
schema_version: 1
kind: dlrm
name: small
description: Four tables
source: made for tests
dense_features: 8
bottom_mlp: [16, 8]
interaction: {kind: dot}
top_mlp: [16, 1]
precision: fp32
optimizer: {dense: sgd, sparse: sgd}
global_batch_size: 64
table_defaults: {dim: 8, pooling: 4, indices: {kind: zipf, alpha: 1.05}, data_type: fp32}
tables:
  - {name: a, rows: 400}
  - {name: b, rows: 200}
  - {name: c, rows: 100, pooling: [2, 3]}
  - {name: d, rows: 50}
"""

SPACE = """\
schema_version: 1
name: loop
workload: {model: MODEL}
parameters:
  platform: [cpu]
  world_size: [2]
  global_batch_size: [64, 128]
  program: dse_trainer
  sharding_types:
    - [table_wise]
    - [row_wise]
    - [data_parallel]
objectives:
  - {metric: throughput_samples_per_s, direction: maximize}
search: {trials: 6, batch: 6, sampler: grid, improvement_rounds: 1, planners: [size_greedy]}
"""


def write_space(folder, **changes):
    """Writes the space and its model; changes replace text."""
    (folder / "small.yaml").write_text(MODEL)
    text = SPACE.replace("MODEL", str(folder / "small.yaml"))
    for old, new in changes.items():
        line = next(line for line in text.splitlines() if line.strip().startswith(f"{old}:"))
        text = text.replace(line, line[: line.index(":")] + f": {new}")
    path = folder / "space.yaml"
    path.write_text(text)
    return path


def make_study(folder, **changes):
    return run(write_space(folder, **changes), RunOptions(out=folder / "study"))


class Oracle:
    """Stands where candidates are measured: times by a rule, and what was asked."""

    def __init__(self, time_of, stop_after=None, rounds=6):
        self.time_of, self.stop_after, self.rounds, self.asked = time_of, stop_after, rounds, []

    def __call__(self, candidates, *, on_step=None, on_samples=None, **how):
        self.asked.append((candidates, how))
        found = tuple(self._measurement(one) for one in candidates)
        for number in range(6):
            some = tuple(_fewer(one, number + 1) for one in found)
            if on_step is not None:
                on_step(f"round {number + 1}")
            if on_samples is not None:
                on_samples(some)
            if number + 1 == self.stop_after:
                raise KeyboardInterrupt
            if number + 1 == self.rounds:
                return some
        return found

    def _measurement(self, one):
        time_s = self.time_of(one)
        samples = tuple(time_s * (1 + 0.001 * number) for number in range(-2, 4))
        ranks = one.world_size
        return Measurement(
            one.name, time_s, samples[0], samples[-1], samples, 2, (time_s,) * ranks,
            (time_s,) * ranks, True, needed_s=50.0,
        )  # fmt: skip


def _fewer(one, count):
    if count == len(one.samples):
        return one
    return replace(one, samples=one.samples[:count], low_s=-float("inf"), high_s=float("inf"))


VALIDATION = Validation(
    schema_version=1,
    sentence="use 1",
    agreement=RankingMetrics(1, 1, 0.0, True, None, 1.0, 1, 1, 0, 1.0, None),
    candidates=(
        ValidatedCandidate(
            1, (2,), "best", 2, 64, 1e-3, 2, 64, 1e-3, 9e-4, 2e-3, 1.1e-3, None, 2e-3, (1e-3,), 5,
            1e-3, True,
        ),
    ),
    factors=(CalibrationFactor("cpu", ValidationMode.REAL, 1, 1.1, 1.0),),
    setting=ValidationSetting(
        "2026-01-01", ValidationMode.REAL, "cpu", "x", 2, 1e9, 1, (("python", "3.11"),), "cpu",
        1.0, 0, 60.0, False, ("words",), ((3, "too large"),),
    ),
)  # fmt: skip
