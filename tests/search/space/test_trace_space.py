"""Spaces whose workload is a captured trace."""

from __future__ import annotations

import pytest

from dse.config import parse_document
from dse.errors import ConfigError
from dse.search.space import SpaceDocument, TraceReference, load_space
from tests.conftest import SMALL_SPACE

SPACE = """\
schema_version: 1
name: s
workload: {trace: captures/run1, step: 12, samples_per_step: 4096}
parameters:
  platform: [same, h100_sxm]
  network_factor: [1x, 50 %, 4]
  optimizations:
    - []
    - [network=2x, "network=2x,latency=0.5x"]
    - [mine.yaml]
objectives:
  - {metric: throughput_samples_per_s, direction: maximize}
"""


def parse(text: str):
    return parse_document(text, SpaceDocument, file="s.yaml").to_space("folder")


def test_a_space_expands():
    space = parse(SPACE)
    assert space.workload == TraceReference("captures/run1", "folder", "", 12, 4096)
    assert space.workload.name == "run1"
    assert [parameter.name for parameter in space.parameters] == [
        "platform",
        "network_factor",
        "optimizations",
    ]
    assert space.choices("network_factor") == (0.5, 1.0, 4.0)
    assert space.choices("optimizations") == (
        "none",
        "network=2x + network=2x,latency=0.5x",
        "mine.yaml",
    )
    assert space.size == 18


def test_paths_count_from_the_space(tmp_path):
    path = tmp_path / "space.yaml"
    path.write_text(SPACE)
    assert load_space(path).workload.path == tmp_path / "captures" / "run1"


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        (
            "  network_factor",
            "  precision: fp16\n  network_factor",
            "s.yaml:6:14: parameters.prec",
        ),
        ("  network_factor", "  launch: eager\n  network_factor", "optimization `cuda_graphs`"),
        ("[network=2x,", "[netwrk=2x,", "s.yaml:9:8: parameters.optimizations[1][0]: no"),
        ("[network=2x,", "[netwrk=2x,", "did you mean `network`"),
        ("[network=2x,", "[network=q,", "expected a factor"),
        ("50 %", "-1", "s.yaml:6:24: parameters.network_factor[1]"),
        (", samples_per_step: 4096", "", "s.yaml:12:14: objectives[0].metric: `throughput"),
        (", samples_per_step: 4096", "", "needs `workload.samples_per_step`"),
        (
            "throughput_samples_per_s",
            "memory_headroom_fraction",
            "s.yaml:12:14: objectives[0].metric: a trace has no metric `memory_headroom",
        ),
        (
            "objectives:",
            "constraints: [{metric: memory_headroom_fraction, at_least: 5 %}]\nobjectives:",
            "constraints[0].metric: a trace has no metric",
        ),
        (
            "objectives:",
            "links:\n  n: {kind: pcie, bandwidth: 25 GB/s, latency: 5 us}\nobjectives:",
            "only for spaces of a model",
        ),
        ("objectives:", "search: {planners: [size_greedy]}\nobjectives:", "no sharding plan"),
        ("objectives:", "search: {plan: joint}\nobjectives:", "no sharding plan"),
        ("{trace: ", "{model: dlrm_tiny, trace: ", "one of `model` and `trace`"),
        ("step: 12", "step: -1", "s.yaml:3:40: workload.step: expected at least 0"),
        ("step: 12", "stepp: 12", "did you mean `step`"),
    ],
)
def test_wrong_spaces(old, new, words):
    assert old in SPACE
    with pytest.raises(ConfigError) as caught:
        parse(SPACE.replace(old, new, 1))
    assert words in str(caught.value)


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ("world_size:", "optimizations: [amp]\n  world_size:", "is for spaces of a trace"),
        (
            "cost_usd_per_million_samples",
            "speedup",
            "a recommendation model has no metric `speedup`",
        ),
    ],
)
def test_models_have_no_changes(old, new, words):
    with pytest.raises(ConfigError) as caught:
        parse(SMALL_SPACE.replace(old, new))
    assert words in str(caught.value)
