"""MLPerf submissions with evaluation apart: what counts where, and the marks."""

from __future__ import annotations

import importlib
import json
import math
import sys

import pytest

from dse.errors import DseError
from tests.conftest import ROOT

#: Modules of the benchmarks that the cases need.
PUBLISHED = ("cases", "evaluations", "plans", "reading")

HEADER = (
    "round,benchmark,submitter,system,gpu,nodes,gpus_per_node,interconnect,network,framework,"
    "global_batch,train_ms_per_iter,eval_ms,eval_samples,note\n"
)
ROW = "{round},dlrm,me,box,{gpu},{nodes},8,NVLink,,HugeCTR,51200,1.4,500,1000000,{note}\n"


def rows(*changes: dict[str, object]) -> str:
    plain = {"round": "v1.1", "gpu": "NVIDIA A100-SXM4-80GB", "nodes": 1, "note": ""}
    return HEADER + "".join(ROW.format(**(plain | change)) for change in changes)


@pytest.fixture(scope="module")
def train_only():
    sys.path.insert(0, str(ROOT / "benchmarks"))
    try:
        yield importlib.import_module("train_only_cases")
    finally:
        sys.path.pop(0)
        own = ("train_only_page", "train_only_cases")
        for name in (*own, *(f"published_{what}" for what in PUBLISHED)):
            sys.modules.pop(name, None)


def test_every_row_is_predicted_or_says_why_not(train_only, tmp_path, capsys):
    path = tmp_path / "rows.csv"
    path.write_text(rows({}, {"gpu": "TPU"}, {"gpu": ""}, {"note": "slow input"}))
    train_only.compare_train_only(path, as_json=True)
    document = json.loads(capsys.readouterr().out)
    problems = [case["problem"] for case in document["cases"]]
    assert [bool(problem) for problem in problems] == [False, True, True, False]
    first, tpu, _, doubtful = document["cases"]
    assert "TPU" in tpu["problem"]
    assert tpu["predicted_s"] is None
    assert first["predicted_s"] == doubtful["predicted_s"]
    assert first["low_s"] < first["predicted_s"] < first["high_s"]
    assert first["evaluation_predicted_s"] > 0
    assert {row["group"]: row["cases"] for row in document["groups"]} == {
        "v1.1, a100_sxm_80, one node": 1,
        "all on one node, held out": 1,
        "doubtful": 1,
    }


@pytest.mark.parametrize(
    ("column", "text"),
    [
        *(("train_ms_per_iter", text) for text in ("", "0", "-1", "soon", "inf", "nan")),
        *(("eval_ms", text) for text in ("0", "-1", "soon")),
        *(("eval_samples", text) for text in ("", "0", "x")),
        *((name, text) for name in ("nodes", "global_batch") for text in ("", "0", "x", "1.5")),
        *(("gpus_per_node", text) for text in ("", "0")),
        ("benchmark", "none"),
    ],
)
def test_what_a_row_does_not_state_is_its_problem(train_only, tmp_path, capsys, column, text):
    heading, values = (line.split(",") for line in rows({}).splitlines())
    values[heading.index(column)] = text
    path = tmp_path / "rows.csv"
    path.write_text(",".join(heading) + "\n" + ",".join(values) + "\n")
    (found,) = train_only.train_only_cases(path)
    assert (column if column != "benchmark" else text) in found.problem
    assert math.isnan(found.predicted_s)
    train_only.compare_train_only(path, as_json=False)
    assert found.problem in capsys.readouterr().out


def test_evaluations_count_where_there_are_some(train_only, tmp_path):
    plain = rows({})
    others = (plain.splitlines()[1].replace(",500,1000000,", f",{text},") for text in (",", "9,7"))
    path = tmp_path / "rows.csv"
    path.write_text(plain + "\n".join(others) + "\n")
    first, without, fewer = cases = train_only.train_only_cases(path)
    assert first.predicted_s == without.predicted_s
    assert math.isnan(without.evaluation_predicted_s)
    # Seven samples take less than a million do.
    assert 0 < fewer.evaluation_predicted_s < first.evaluation_predicted_s
    figures = train_only.figures_of("all", cases)
    expected = [
        abs(one.evaluation_predicted_s / one.evaluation_measured_s - 1) for one in (first, fewer)
    ]
    assert figures.evaluation_median == pytest.approx(sum(expected) / 2)


def test_a_slow_drive_is_a_property_of_the_submission(train_only, tmp_path, capsys):
    plain = rows({})
    path = tmp_path / "rows.csv"
    path.write_text(plain + plain.splitlines()[1].replace("me,box", "Supermicro,SYS-420GP-TNAR"))
    train_only.compare_train_only(path, as_json=True)
    fast, slow = json.loads(capsys.readouterr().out)["cases"]
    # 51,200 samples of 160 bytes, at the 47.82 GB in 10.162 s of that machine's first stretch.
    assert slow["predicted_s"] == pytest.approx(51200 * 160 / (47.82e9 / 10.162), rel=1e-3)
    assert fast["predicted_s"] == slow["unlimited_s"] < slow["predicted_s"]
    assert fast["unlimited_s"] is None


def case(train_only, predicted_s: float, **changes):
    fields = {
        "case": "c",
        "round": "v3.1",
        "gpu": "H100",
        "platform": "h100_sxm",
        "gpus": 8,
        "nodes": 1,
        "program": "hugectr",
        "fitted": False,
        "measured_s": 1.0,
        "low_s": 0.9 * predicted_s,
        "high_s": 1.1 * predicted_s,
        "evaluation_measured_s": 1.0,
        "evaluation_predicted_s": 2.0,
    }
    return train_only.TrainOnlyCase(predicted_s=predicted_s, **(fields | changes))


def test_figures_by_hand(train_only):
    cases = [case(train_only, predicted) for predicted in (1.02, 0.9, 1.3)]
    figures = train_only.figures_of("all", cases)
    assert figures.median == pytest.approx(0.1)
    assert figures.mape == pytest.approx((0.02 + 0.1 + 0.3) / 3)
    assert figures.bias == pytest.approx(math.log(1.02))
    assert figures.inside == pytest.approx(1 / 3)
    assert figures.evaluation_median == pytest.approx(1.0)


def test_marks_leave_out_fitted_and_doubtful_submissions(train_only):
    cases = [
        case(train_only, 1.03),
        case(train_only, 2.0, fitted=True),
        case(train_only, 2.0, note="slow input"),
        case(train_only, 1.2, nodes=8, gpus=64),
    ]
    one_node, several, large = train_only.train_only_marks(cases)
    assert one_node.met
    assert one_node.value == pytest.approx(0.03)
    assert several.value == pytest.approx(0.2)
    assert not several.met
    assert not large.met


def test_the_page_has_every_group_and_mark(train_only):
    page = importlib.import_module("train_only_page")
    cases = [case(train_only, 1.03), case(train_only, 1.2, nodes=8, gpus=64)]
    section = page.train_only_section(cases)
    assert section.count("| v3.1, h100_sxm, ") == 2
    assert section.count("**missed**") == 2
    assert "| v3.1, 64 × h100_sxm | 1000.000 | 1200.000 | +20.0 % |" in section
    slow = case(train_only, 1.03, unlimited_s=0.5, read_rate_bytes_per_s=2e9)
    line = "× h100_sxm | 2.0 | 1000.000 | 1030.000 | +3.0 % | -50.0 % |"
    assert page.train_only_section([*cases, slow]).count(line) == 1
    assert line not in section
    assert page.train_only_section([]) == ""


def test_a_file_without_a_column_is_refused(train_only, tmp_path):
    path = tmp_path / "rows.csv"
    path.write_text("round\nv1.1\n")
    with pytest.raises(DseError, match="benchmark"):
        train_only.train_only_cases(path)
