from __future__ import annotations

import importlib
import math
import sys
import xml.etree.ElementTree as ET

import pytest

from benchmarks.folders import DATA
from tests.conftest import ROOT

PUBLISHED = DATA / "published"

MODULES = (
    "accuracy",
    "accuracy_page",
    "device_models",
    "end_to_end_cases",
    "end_to_end_figures",
    "end_to_end_page",
    "end_to_end_plot",
    "end_to_end_roofline",
    "published_cases",
    "published_plans",
    "published_steps",
    "transformer_cases",
)


@pytest.fixture
def benchmark(monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    yield importlib.import_module
    for name in MODULES:
        sys.modules.pop(name, None)


@pytest.fixture
def case(benchmark):
    made = benchmark("end_to_end_cases").EndToEndCase

    def make(measured: float, predicted: float, **other):
        fields = {
            "case": "c",
            "family": "gpt",
            "source": "f.csv",
            "unit": "s",
            "low": 0.9 * predicted,
            "high": 1.1 * predicted,
            "roofline": 0.5 * measured,
        }
        return made(measured=measured, predicted=predicted, **(fields | other))

    return make


def test_figures_by_hand(benchmark, case):
    figures = benchmark("end_to_end_figures")
    cases = [case(1.0, 1.1), case(2.0, 1.6), case(4.0, 4.0), case(8.0, math.nan)]
    ours = figures.figures_of("gpt", figures.OURS, cases)
    assert (ours.cases, ours.not_predicted) == (3, 1)
    assert ours.median == pytest.approx(0.1)
    assert ours.mean == pytest.approx(0.1, abs=1e-4)
    assert ours.largest == pytest.approx(0.2)
    assert ours.bias == 0.0
    assert ours.tau == pytest.approx(1.0)
    assert ours.pairwise == 1.0
    assert ours.coverage == pytest.approx(2 / 3)
    simple = figures.figures_of("gpt", figures.ROOFLINE, cases)
    assert simple.cases == 4
    assert simple.median == pytest.approx(0.5)
    assert math.isnan(simple.coverage)


def test_bias_means_a_slower_model_for_times_and_rates(benchmark, case):
    figures = benchmark("end_to_end_figures")
    slow_step = figures.figures_of("f", figures.OURS, [case(1.0, 2.0)])
    slow_rate = figures.figures_of("f", figures.OURS, [case(2.0, 1.0, unit="samples/s")])
    assert slow_step.bias == slow_rate.bias == pytest.approx(math.log(2))


def test_a_mark_needs_every_case(benchmark, case):
    figures = benchmark("end_to_end_figures")
    aim = [figures.Limit("gpt", "mean", 0.04), figures.Limit("mpt fsdp", "tau", least=0.9)]

    def met(cases):
        return [mark.met for mark in figures.judged(figures.family_figures(cases), aim)]

    good = [case(1.0, 1.01), case(2.0, 2.02)]
    assert met(good) == [True, False]
    assert met([*good, case(3.0, math.nan)]) == [False, False]
    assert met([case(1.0, 1.1)]) == [False, False]


def test_the_page_names_the_largest_misses_with_their_cause(benchmark, case):
    page = benchmark("end_to_end_page")
    known, unknown = "MLPerf v3.1 SYS-421GU-TNXR", "somebody's board"
    cases = [
        case(1.0, 1.5, case=known, unit="samples/s", family="dlrm cuda graphs"),
        case(1.0, 1.2, case=unknown, note="a stated note"),
        case(1.0, 1.1, case="another"),
    ]
    text = page.end_to_end_section(cases)
    assert text.index(known) < text.index(unknown) < text.index("another")
    assert "evaluations wait for its drives" in page.cause_of(cases[0])
    assert page.cause_of(cases[1]) == "a stated note"
    assert page.cause_of(cases[2]) == "not known"
    assert "+50 % throughput" in text
    assert "`loader_s_per_sample`" in text


def test_pictures_are_svg_with_a_mark_for_each_case(benchmark, case, tmp_path):
    page = benchmark("end_to_end_page")
    rates = [case(10.0**power, 12.0**power, unit="samples/s") for power in (1, 2, 3)]
    page.write_pictures(rates, tmp_path / "images")
    root = ET.fromstring((tmp_path / "images" / page.PICTURE).read_text())
    titles = [one.text for one in root.iter("{http://www.w3.org/2000/svg}title")]
    # Once in our panel, once in the roofline's.
    assert len([text for text in titles if "predicted " in text]) >= 2 * len(rates)


@pytest.mark.slow
@pytest.mark.skipif(
    not PUBLISHED.is_dir(), reason="no published training steps beside the checkout"
)
def test_all_marks_hold_on_the_published_steps(benchmark, tmp_path):
    """On one of each submission that is like many others; `--end-to-end` takes all of them."""
    pd = pytest.importorskip("pandas")
    alike = ["model", "gpus", "precision", "gpu", "global_batch"]
    for name in benchmark("end_to_end_cases").READERS:
        rows = pd.read_csv(PUBLISHED / name)
        rows = rows.drop_duplicates(alike) if set(alike) <= set(rows.columns) else rows
        rows.to_csv(tmp_path / name, index=False)
    cases, left_out = benchmark("end_to_end_cases").end_to_end_cases(tmp_path)
    assert not left_out
    figures = benchmark("end_to_end_figures")
    families = figures.family_figures(cases)
    assert not [str(mark) for mark in figures.judged(families) if not mark.met]
    ours = figures.figures_of("all", figures.OURS, cases)
    assert ours.not_predicted == 0
    assert ours.coverage >= 0.8


def test_a_folder_without_cases_says_so(benchmark, tmp_path):
    from dse.errors import ConfigError

    with pytest.raises(ConfigError, match="no published cases"):
        benchmark("end_to_end_cases").end_to_end_cases(tmp_path)
