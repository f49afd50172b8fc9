"""`dse trace whatif` from the command line."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from tests.cli.running import answer, dse
from tests.trace.helpers import operator, span, write
from tests.trace.whatif.helpers import rank_events


@pytest.fixture
def folder(tmp_path):
    for rank in range(2):
        write(
            tmp_path / f"rank{rank}.json",
            rank_events(30 * rank),
            rank=rank,
            deviceProperties=[{"id": 0, "name": "Tesla V100-SXM2-32GB"}],
        )
    return tmp_path


def test_json_holds_the_contract(folder):
    found = answer("trace", "whatif", folder, "-O", "network=2x")
    assert set(found) == {
        *("before_s", "after_s", "speedup", "work_factor", "steps", "bound_by", "ranks"),
        *("machine", "notes"),
    }
    for rank in found["ranks"]:
        for kind in ("", "before_"):
            parts = [
                rank[f"{name}_{kind}s"] for name in ("compute", "exposed_communication", "idle")
            ]
            assert sum(parts) == pytest.approx(rank[f"{kind or 'after_'}s"])
            assert 0 <= rank[f"wait_{kind}s"] <= rank[f"idle_{kind}s"] + 1e-12
    assert found["ranks"][0]["wait_before_s"] == pytest.approx(30e-6)
    assert found["machine"] == {
        "platform": "v100_dgx1",
        "device": "Tesla V100-SXM2-32GB",
        "kind": "gpu",
        "world_size": 2,
    }
    assert sum(part["share"] for part in found["bound_by"]) == pytest.approx(1)
    assert {"part", "count", "seconds", "share"} == set(found["bound_by"][0])


def test_the_table_says_what_bounds_the_step(folder):
    done = dse("trace", "whatif", folder, "-O", "network,latency=0.5x")
    assert done.returncode == 0, done.stderr
    assert "network latency=0.5" in done.stdout
    assert "the changed step is bound by: " in done.stdout
    # Progress is for terminals.
    assert done.stderr == ""


def test_a_doubtful_platform_is_noted_once(folder):
    notes = answer("trace", "whatif", folder, "-O", "network=2x", "--platform", "a100_sxm_80")[
        "notes"
    ]
    assert sum("another device" in note for note in notes) == 1
    done = dse("trace", "whatif", folder, "-O", "network=2x", "--platform", "a100_sxm_80")
    assert done.stdout.count("another device") == 1


def test_a_platform_of_another_kind_is_an_error(tmp_path):
    events = [span("user_annotation", "ProfilerStep#1", 0, 30), operator("aten::mm", 0, 20)]
    trace = write(tmp_path / "cpu.json", events)
    done = dse("trace", "whatif", trace, "-O", "network=2x", "--platform", "h100_sxm")
    assert done.returncode == 2
    assert "h100_sxm has a GPU" in done.stderr


def test_many_samples_are_spelled_out(tmp_path):
    shapes = {"Input Dims": [[64, 32], [32, 16]], "Input type": ["float", "float"]}
    trace = write(tmp_path / "cpu.json", [operator("aten::mm", 0, 20, **shapes)])
    change = ("-O", "resize=64:6400000,samples=true", "--platform", "cpu")
    done = dse("trace", "whatif", trace, *change)
    assert done.returncode == 0, done.stderr
    assert "100,000 times the samples" in done.stdout


@pytest.mark.slow
@pytest.mark.skipif(not hasattr(os, "openpty"), reason="needs a pseudo-terminal")
@pytest.mark.parametrize("options", [(), ("--json",)])
def test_progress_is_shown_on_a_terminal(folder, options):
    ours, theirs = os.openpty()
    change = ("-O", "network=2x", *options)
    done = subprocess.run(
        [sys.executable, "-m", "dse", "trace", "whatif", str(folder), *change],
        stdout=subprocess.PIPE,
        stderr=theirs,
        env={**os.environ, "TERM": "xterm"},
        check=True,
    )
    os.close(theirs)
    shown = b""
    try:
        while chunk := os.read(ours, 65536):
            shown += chunk
    except OSError:
        # A terminal that nobody writes to any more.
        pass
    os.close(ours)
    assert (b"change 1 of 1: network" in shown) == (not options)
    assert b"change 1 of 1: network" not in done.stdout
