from __future__ import annotations

import base64
from dataclasses import replace
import gzip
from html.parser import HTMLParser
import io
import json
import re
import sys
from typing import Any

import numpy as np
import pytest
from rich.console import Console

from dse.errors import OptionalDependencyError
from dse.report import build_view, render_report, write_report
from dse.report.page._payload import column, packed
from dse.report.terminal import PredictionView, RankingRow, print_prediction, print_ranking
from dse.report.terminal.studies import print_study
from dse.search import Fact, InputFile, StudyResult, TrialRecord, TrialStatus, mark_front
from dse.search.space import Objective
from dse.sharding import ShardingPlan, ShardingType, TablePlan
from dse.simulate import RankBreakdown
from dse.workload import Configuration, MemoryAccount, Prediction

EVIL = "<script>alert(1)</script></script><img src=x onerror=alert(2)>&\u2028"
OBJECTIVES = (
    Objective("throughput_samples_per_s", True),
    Objective("cost_usd_per_million_samples", False),
)


PURPOSES = (
    "embedding weights",
    "embedding optimizer state",
    "dense parameters",
    "activations",
    "indices and pooled embeddings",
    "communication buffers",
)


def account(*sizes_bytes):
    return MemoryAccount(tuple(zip(PURPOSES, sizes_bytes, strict=True)))


def make_prediction(throughput: float, cost: float, feasible: bool = True) -> Prediction:
    return Prediction(
        iteration_time_s=1e-3,
        iteration_time_p5_s=0.9e-3,
        iteration_time_p95_s=1.2e-3,
        throughput_samples_per_s=throughput,
        price_usd_per_hour=10.0,
        cost_usd_per_million_samples=cost,
        breakdown=(RankBreakdown(6e-4, 2e-4, 1e-4, 1e-4),) * 2,
        memory=(account(1e9, 1e8, 1e7, 1e8, 1e7, 1e6), account(2e9, 0, 1e7, 1e8, 1e7, 1e6)),
        usable_memory_bytes=4e9,
        feasible=feasible,
        infeasible_reason="" if feasible else "out of memory: rank 1",
    )


def make_record(
    number: int, throughput: float, cost: float, planner: str = f"size_greedy {EVIL}", **changes
) -> TrialRecord:
    plan = ShardingPlan(
        2,
        (
            TablePlan(EVIL, ShardingType.TABLE_WISE, (0,)),
            TablePlan("b", ShardingType.ROW_WISE, (0, 1)),
        ),
    )
    record = TrialRecord(
        number=number,
        status=TrialStatus.FEASIBLE,
        reason="",
        parameters=(("platform", f"p{number % 3}{EVIL}"), ("world_size", 2)),
        values=(throughput, cost),
        configuration=Configuration(
            kind="dlrm",
            platform=f"p{number % 3}{EVIL}",
            world_size=2,
            global_batch_size=64,
            parameters=(("platform", f"p{number % 3}{EVIL}"), ("world_size", 2)),
            plan=plan,
            planner=planner,
        ),
        prediction=make_prediction(throughput, cost),
    )
    return replace(record, **changes)


def make_study(records: list[TrialRecord]) -> StudyResult:
    marked = mark_front(records, OBJECTIVES)
    return StudyResult(
        name=f"study {EVIL}",
        model_name=EVIL,
        objectives=OBJECTIVES,
        records=marked,
        inputs=(InputFile("space", EVIL, EVIL, "0" * 64, EVIL),),
        facts=(Fact(EVIL, EVIL, EVIL, "datasheet", EVIL, EVIL),),
        versions=(("dse", EVIL),),
        seed=0,
        sampler="nsga2",
        created="2026-01-01",
    )


@pytest.fixture(scope="module")
def study() -> StudyResult:
    rng = np.random.default_rng(0)
    records = [
        make_record(number, float(rng.uniform(1e6, 9e6)), float(rng.uniform(0.1, 1)))
        for number in range(200)
    ]
    records[3] = make_record(
        3, 5e6, 0.5, status=TrialStatus.INFEASIBLE, reason=f"out of memory {EVIL}"
    )
    empty = {"values": (), "configuration": None, "prediction": None}
    records[5] = make_record(5, 0, 0, status=TrialStatus.REJECTED, reason="too dear", **empty)
    records[6] = make_record(6, 0, 0, status=TrialStatus.FAILED, reason="broke", **empty)
    return make_study(records)


class _Page(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.scripts: list[tuple[dict[str, str | None], str]] = []
        self.loads: list[str] = []
        self.images = 0
        self._open: dict[str, str | None] | None = None

    def handle_starttag(self, tag, attrs):
        named = dict(attrs)
        self.loads += [str(named[key]) for key in ("src", "href", "action") if key in named]
        self.images += tag == "img"
        if tag == "script":
            self._open = named
            self.scripts.append((named, ""))

    def handle_endtag(self, tag):
        if tag == "script":
            self._open = None

    def handle_data(self, data):
        if self._open is not None:
            attributes, text = self.scripts[-1]
            self.scripts[-1] = (attributes, text + data)


@pytest.fixture(scope="module")
def page(study):
    parser = _Page()
    parser.feed(render_report(study))
    return parser


def test_the_page_loads_nothing_and_runs_only_its_own_scripts(page):
    assert all(target.startswith("#") for target in page.loads)
    assert page.images == 0
    assert [attributes.get("type") for attributes, _ in page.scripts] == [
        "text/plain",
        "text/plain",
        None,
    ]


def expanded(column: Any) -> list[Any]:
    """The inverse of `column`, as the script of the page does it."""
    if isinstance(column, list):
        return column
    if "codes" in column:
        return [column["words"][code] for code in column["codes"]]
    rows = list(zip(*map(expanded, column["parts"]), strict=True))
    return [() if row in set(column["empty"]) else value for row, value in enumerate(rows)]


@pytest.mark.parametrize(
    "values",
    [
        [],
        [1, 2, 3],
        ["a", "a", "a", "b"],
        [True, 1, True, 1, 1.5, 1.5, None, None],
        [(1.0, None), (), (2.0, "x"), ()],
        [(), ()],
        [(1,), (1, 2)],
        [None, (1, 2)],
    ],
)
def test_a_column_holds_its_values(values):
    found = expanded(json.loads(json.dumps(column(values))))
    assert [tuple(item) if isinstance(item, list) else item for item in found] == values
    if not any(isinstance(item, tuple) for item in values):
        assert [type(item) for item in found] == [type(item) for item in values]


def test_equal_words_are_kept_once():
    assert column(["long word"] * 9) == {"words": ["long word"], "codes": [0] * 9}


def test_the_payload_decodes_to_the_view(page, study):
    payload = json.loads(gzip.decompress(base64.b64decode(page.scripts[0][1])))
    trials = payload["trials"]
    assert trials["count"] == 200
    columns = {name: expanded(column) for name, column in trials["columns"].items()}
    assert columns["group"][0] == f"p0{EVIL}"
    for trial, values in zip(build_view(study).trials, columns["values"], strict=True):
        assert tuple(values) == trial.values
    front = {
        number for number, front in zip(columns["number"], columns["front"], strict=True) if front
    }
    assert front == {record.number for record in study.front}
    assert front <= {detail["number"] for detail in payload["details"]}


def test_text_is_escaped_and_a_policy_forbids_the_network(study):
    text = render_report(study)
    visible = re.sub(r"<script.*?</script>", "", text, flags=re.DOTALL)
    assert "<script>alert" not in visible
    assert "&lt;script&gt;alert(1)" in visible
    assert "default-src &#39;none&#39;" in text or "default-src 'none'" in text


def test_the_own_script_never_writes_html(page):
    own = page.scripts[2][1]
    for word in ("innerHTML", "outerHTML", "insertAdjacentHTML", "document.write", "eval("):
        assert word not in own


def test_view_figures(study):
    view = build_view(study)
    best = view.details[0]
    assert best.number == study.front[0].number
    assert best.breakdown_ms[0] == (0.6, 0.2, 0.1, 0.1)
    assert best.memory_gib[1][0] == pytest.approx(2e9 / 2**30, rel=1e-4)
    assert best.tables[1].ranks == "0-1"
    assert len(view.details) <= len(study.front) + 40
    assert dict(view.counts) == {"feasible": 197, "infeasible": 1, "rejected": 1, "failed": 1}
    assert {status for _, status, _ in view.reasons} == {"infeasible", "rejected", "failed"}
    assert view.trials[0].values[0] == pytest.approx(study.records[0].values[0] / 1e6, rel=1e-5)


def test_the_page_is_written_whole(study, tmp_path):
    path = tmp_path / "new folder" / "report.html"
    write_report(study, path)
    assert path.read_text().rstrip().endswith("</html>")
    assert [item.name for item in path.parent.iterdir()] == ["report.html"]
    assert path.stat().st_size < 3e6


def test_an_empty_study_has_a_page():
    assert "Nothing was evaluated" in render_report(make_study([]))


def console() -> tuple[Console, io.StringIO]:
    out = io.StringIO()
    return Console(file=out, width=160), out


def test_terminal_study(study):
    shown, out = console()
    print_study(study, shown, [("report", "x/report.html")])
    text = out.getvalue()
    assert "x/report.html" in text
    assert text.index("take") < text.index("Pareto front") < text.index("x/report.html")
    assert f"{len(study.records) - 2} configurations evaluated" in text


def test_terminal_prediction_groups_equal_ranks():
    shown, out = console()
    prediction = make_prediction(64e3, 0.1)
    alike = replace(prediction, memory=prediction.memory[:1] * 2)
    print_prediction(PredictionView("a job", "a plan", alike), shown)
    assert "0–1" in out.getvalue()
    assert "0.600 ms" in out.getvalue()


def test_a_rank_that_waits_for_its_host_is_explained():
    prediction = make_prediction(64e3, 0.1)
    parts = prediction.breakdown[0]
    waiting = replace(parts, compute_s=parts.host_s, host_s=parts.compute_s)
    texts = []
    for breakdown in (prediction.breakdown, (waiting, *prediction.breakdown[1:])):
        shown, out = console()
        print_prediction(PredictionView("", "", replace(prediction, breakdown=breakdown)), shown)
        texts.append(out.getvalue())
    assert ["host: includes kernels" in text for text in texts] == [False, True]


def test_terminal_ranking_marks_ties_and_what_does_not_fit():
    shown, out = console()
    slow = replace(make_prediction(1, 1, feasible=False), iteration_time_s=2e-3)
    print_ranking(
        [
            RankingRow("a.json", make_prediction(1, 1), 8, False),
            RankingRow("b.json", make_prediction(1, 1), 8, True),
            RankingRow("c.json", slow, 8, False),
        ],
        shown,
    )
    text = out.getvalue()
    assert "tie with the best" in text
    assert "does not fit" in text
    assert "too large" in text


def test_the_page_draws_with_the_script_that_was_built_in(study, tmp_path, monkeypatch):
    module = sys.modules[render_report.__module__]
    monkeypatch.setattr(module, "__file__", str(tmp_path / "_html.py"))
    monkeypatch.setattr(module, "_packed_plotly", module._packed_plotly.__wrapped__)
    monkeypatch.setitem(sys.modules, "plotly.offline", None)
    with pytest.raises(OptionalDependencyError, match="pip install -e"):
        render_report(study)
    (tmp_path / "plotly.min.js").write_text("draw()")
    assert packed("draw()") in render_report(study)
