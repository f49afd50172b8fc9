"""A small study with everything that overrides can change: nodes, networks, limits, platforms."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory

from dse.search import RunOptions, Study, run

SPACE = """\
schema_version: 1
name: changeable
workload: {model: dlrm_tiny}
parameters:
  program: pytorch_eager
  platform: [a100_sxm_80, h100_sxm]
  world_size: [1, 2, 8, 16]
  global_batch_size: [16384, 65536]
  network: [default, slow]
  sharding_types: [[table_wise, row_wise]]
objectives:
  - {metric: throughput_samples_per_s, direction: maximize}
  - {metric: cost_usd_per_million_samples, direction: minimize}
constraints:
  - {metric: price_usd_per_hour, at_most: 100 USD/h}
networks:
  slow: {kind: ethernet, nics: 1, bandwidth: 50 Gbit/s, latency: 20 us}
search: {sampler: grid, trials: 64, batch: 16, improvement_rounds: 1, planners: [size_greedy]}
"""

GPT_SPACE = """\
schema_version: 1
name: changeable gpt
workload: {model: gpt_1_7b}
parameters:
  platform: [a100_sxm_80, h100_sxm]
  world_size: [8, 16]
  global_batch_size: 512
  tensor: [1, 2]
  pipeline: [1, 2]
  micro_batch_size: [1, 4]
  recompute: [none, full]
objectives:
  - {metric: throughput_tokens_per_s, direction: maximize}
  - {metric: cost_usd_per_million_samples, direction: minimize}
search: {sampler: grid, trials: 40, batch: 10}
"""


#: Folders of the studies, removed when the tests end.
_FOLDERS: list[TemporaryDirectory[str]] = []


@cache
def study_of(text: str) -> Study:
    """Runs a space once for all tests; tests must not change the folder."""
    _FOLDERS.append(TemporaryDirectory(prefix="dse-revise-"))
    folder = Path(_FOLDERS[-1].name)
    space = folder / "space.yaml"
    space.write_text(text)
    return run(space, RunOptions(out=folder / "study"))
