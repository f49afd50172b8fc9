"""Options and platforms: how they are read, shown, refused and noted."""

from __future__ import annotations

import re

import pytest

from dse.errors import ConfigError
from dse.trace import read_kineto
from dse.trace.whatif import (
    bound_by,
    captured_machine,
    captured_step,
    optimization_options,
    parse_optimization,
    read_changes,
)
from dse.trace.whatif.optimizations import OPTIMIZATIONS
from tests.conftest import ROOT
from tests.trace.helpers import operator, write
from tests.trace.whatif.helpers import rank_events, two_ranks


@pytest.fixture
def captured(tmp_path):
    return two_ranks(tmp_path, 2**22)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("network,2x", "`2x` is no option"),
        ("network=2x,factor=3x", "`factor` is given twice"),
        ("amp,3", "`3` is no option"),
        ("blueconnect=8", "sizes of groups such as `2x4`"),
        ("resize=a:b", "expected sizes as `512:1024`"),
        ("data_parallel=65537", "at most 65536"),
        (f"resize=8:{10**400}", "at most"),
        ("precision=int3", "expected one of `fp32`"),
    ],
)
def test_wrong_options_are_explained(text, message):
    with pytest.raises(ConfigError, match=message):
        parse_optimization(text)


@pytest.mark.parametrize(
    ("step", "message"),
    [
        ("{select: {name: x}, scale: 2, remove: true}", "one action a step, found `scale` and"),
        ("{optimization: network, factor: 2, schedule: x}", "`schedule` and `optimization`"),
        ("{select: {name: x}, remove: false}", "`remove` only takes `true`"),
    ],
)
def test_a_step_is_one_action(tmp_path, step, message):
    file = tmp_path / "steps.yaml"
    file.write_text(f"schema_version: 1\nname: two\nsteps:\n  - {step}\n")
    with pytest.raises(ConfigError, match=message):
        read_changes(file)


@pytest.mark.parametrize(
    ("text", "options"),
    [
        ("amp", {}),
        ("amp,communication=2x", {"communication": "2x"}),
        ("network,latency=0.5x", {"latency": "0.5x"}),
        ("network=2x, latency=0.5x", {"factor": "2x", "latency": "0.5x"}),
        ("fusion,layer=1", {"layer": "1"}),
        ("fusion=a=b", {"a": "b"}),
        ("resize=512:1024;8:16,times=4;2", {"dimensions": "512:1024;8:16", "times": "4;2"}),
    ],
)
def test_a_name_ends_at_the_first_sign(text, options):
    name = text.replace("=", ",").split(",")[0]
    assert optimization_options(text) == {"optimization": name, **options}


def test_every_optimization_is_documented():
    text = (ROOT / "docs" / "whatif.md").read_text()
    headings = " ".join(re.findall(r"^### (.*):", text, re.MULTILINE))
    assert set(re.findall(r"`(\w+)`", headings)) == set(OPTIMIZATIONS)


def test_titles_show_figures_with_their_units():
    titles = {
        "cuda_graphs=5us": "cuda_graphs launch=5 us",
        "data_parallel=8,gradients=100MB": "data_parallel ranks=8 gradients=95.37 MiB",
        "dgc=1%": "dgc ratio=1 %",
        "amp,communication=2x": "amp communication=2",
        "fusion,layer=1": "fusion layer=1",
        "vdnn=matrix,sync=true": "vdnn layers=matrix sync=true",
        "resize=8:16,times=4;2,samples=true": "resize=8:16 times=4;2 samples=true",
    }
    assert {text: parse_optimization(text).title for text in titles} == titles


def test_a_platform_of_another_kind_is_refused(tmp_path):
    write(tmp_path / "gpu.json", rank_events())
    with pytest.raises(ConfigError, match=r"platform cpu has a CPU .* hold work of a GPU"):
        captured_step(read_kineto(tmp_path / "gpu.json"), platform="cpu")
    write(tmp_path / "cpu.json", [operator("aten::mm", 0, 20)])
    with pytest.raises(ConfigError, match=r"h100_sxm has a GPU .* no work of a GPU"):
        captured_step(read_kineto(tmp_path / "cpu.json"), platform="h100_sxm")
    assert captured_machine(read_kineto(tmp_path / "cpu.json"), "cpu").kind == "cpu"


def test_a_cpu_trace_without_a_platform_is_offered_cpus(tmp_path):
    write(tmp_path / "cpu.json", [operator("aten::mm", 0, 20)])
    machine = captured_machine(read_kineto(tmp_path / "cpu.json"))
    with pytest.raises(ConfigError, match=r"--platform, or as `platform` .*\(cpu, or a file\)"):
        machine.known_platform("device")


@pytest.mark.parametrize(
    ("device", "platform", "noted"),
    [
        ("NVIDIA GeForce RTX 2080 Ti", "v100_dgx1", True),
        ("Tesla V100-SXM2-32GB", "v100_dgx1", False),
        ("NVIDIA A100-SXM4-40GB", "a100_sxm_80", True),
        ("NVIDIA H100 80GB HBM3", "h100_sxm", False),
        ("NVIDIA B200", "b200_sxm", False),
    ],
)
def test_another_device_is_noted(tmp_path, device, platform, noted):
    write(tmp_path / "a.json", rank_events(), deviceProperties=[{"id": 0, "name": device}])
    notes = captured_machine(read_kineto(tmp_path / "a.json"), platform).notes
    assert [device in note for note in notes] == [True] * noted


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("network=1x", "stay as they are"),
        ("network,latency=1", "stay as they are"),
        ("amp=1,other=1", "all speed-ups are 1"),
    ],
)
def test_options_that_change_nothing_are_refused(captured, text, message):
    with pytest.raises(ConfigError, match=message):
        captured.what_if([parse_optimization(text)])


def test_what_bounds_the_changed_step(captured):
    answer = captured.what_if([parse_optimization("network=2x")])
    parts = bound_by(answer)
    assert sum(part.share for part in parts) == pytest.approx(1)
    assert sum(part.seconds for part in parts) == pytest.approx(float(answer.timeline.end_s.max()))
    by_name = {part.part: part.seconds for part in parts}
    slower = captured.what_if([parse_optimization("network=0.25x")])
    worse = {part.part: part.seconds for part in bound_by(slower)}
    assert worse["collectives"] > by_name.get("collectives", 0.0)
