"""The agent in the processes of a captured command, run in this process."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

from dse.trace.capture import CaptureSettings, capture, read_records  # noqa: E402
from dse.trace.capture._agent import Agent, CaptureRequest, read_reports  # noqa: E402
from tests.trace.capture.helpers import Mlp, numbers  # noqa: E402


@pytest.fixture
def agent(tmp_path, monkeypatch):
    for name in ("RANK", "WORLD_SIZE"):
        monkeypatch.delenv(name, raising=False)
    (tmp_path / "reports").mkdir()
    settings = CaptureSettings(steps=2, warm_up=1, skip=1)
    request = CaptureRequest(tmp_path / "out", tmp_path / "reports", tmp_path, settings)
    made = Agent(request)
    yield made
    made._finish()
    made._optimizers.stop()


def test_iterations_after_the_first_are_recorded(agent, tmp_path):
    train = Mlp()
    for _ in range(12):
        train()
    # The first iteration ends before the recording's first one begins.
    assert numbers(tmp_path / "out") == [2, 3]
    (record,) = read_records(tmp_path / "out")
    assert record.complete
    assert record.counted_by == "optimizer"
    (report,) = read_reports(tmp_path / "reports")
    assert report.optimizer_steps > 5
    assert report.messages == ()


@pytest.mark.parametrize(
    ("iterations", "message"), [(3, "ended after 3 of the 5 iterations"), (4, "1 of 2 steps")]
)
def test_a_process_that_ends_early_reports_why(agent, tmp_path, iterations, message):
    train = Mlp()
    for _ in range(iterations):
        train()
    agent._finish()
    (report,) = read_reports(tmp_path / "reports")
    assert message in " ".join(report.messages)


def test_a_process_that_captures_itself_is_not_disturbed(agent, tmp_path):
    train = Mlp()
    with capture(tmp_path / "own", steps=1, warm_up=1, skip=0):
        for _ in range(4):
            train()
    assert numbers(tmp_path / "own") == [1]
    (report,) = read_reports(tmp_path / "reports")
    assert "captured already" in report.messages[0]


def test_a_process_without_an_optimizer_reports_no_step(agent, tmp_path):
    (report,) = read_reports(tmp_path / "reports")
    assert report.optimizer_steps == 0
