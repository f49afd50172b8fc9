"""Names in files that would like to be markup or orders to the terminal, by every printer."""

from __future__ import annotations

import json
import re

import pytest
from typer.testing import CliRunner
import yaml

from dse.cli._app import app
from tests.conftest import ROOT
from tests.search.traces import rank_events
from tests.trace.helpers import document
from tests.validation.studies import MODEL

EVIL = "[/][red]\x1b[2J\x1b]0;t\x07\u202e"
SHOWN = "[/][red]␛"
ACTED_ON = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]")
SIZES = ("--world-size", "2", "--global-batch-size", "64")


@pytest.fixture
def files(tmp_path):
    events = rank_events(reduced=False)
    for event in events:
        if event["cat"] in ("kernel", "cpu_op") and "autograd" not in event["name"]:
            event["name"] = EVIL + event["name"]
    devices = [{"id": 0, "name": f"V100{EVIL}"}]
    trace = document(events, 0, 1, deviceProperties=devices)
    (tmp_path / "rank0.json").write_text(json.dumps(trace))
    model = yaml.safe_load(MODEL)
    model |= {"name": f"m{EVIL}", "description": EVIL, "source": EVIL}
    for table in model["tables"]:
        table["name"] += EVIL
    (tmp_path / "m.yaml").write_text(yaml.safe_dump(model))
    platform = yaml.safe_load((ROOT / "platforms/h100_sxm.yaml").read_text())
    # The name of a platform may not be like that.
    platform |= {"name": "p", "description": EVIL}
    platform["device"]["name"] += EVIL
    (tmp_path / "p.yaml").write_text(yaml.safe_dump(platform))
    return tmp_path


@pytest.mark.parametrize(
    ("arguments", "shows"),
    [
        (("trace", "info", "rank0.json", "--streams", "--shapes"), True),
        (("trace", "simulate", "rank0.json"), False),
        (("trace", "overheads", "rank0.json"), True),
        (("trace", "whatif", "rank0.json", "--optimization", "amp"), False),
        (("predict", "m.yaml", "--platform", "p.yaml", *SIZES, "--explain"), True),
        (("shard", "m.yaml", "--platform", "p.yaml", *SIZES), False),
    ],
    ids=lambda value: "-".join(value[:2]) if isinstance(value, tuple) else None,
)
def test_names_are_shown_as_they_are(files, monkeypatch, arguments, shows):
    monkeypatch.chdir(files)
    monkeypatch.setenv("COLUMNS", "300")
    result = CliRunner().invoke(app, list(arguments))
    assert result.exception is None, result.output
    assert not ACTED_ON.search(result.output)
    assert (SHOWN in result.output) or not shows
