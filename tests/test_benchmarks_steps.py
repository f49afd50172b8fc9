"""The table of published steps of transformers: what is counted, marks, and left-out groups."""

from __future__ import annotations

import csv
from dataclasses import replace
import importlib
import math
import sys
import xml.etree.ElementTree as ET

import pytest

from benchmarks.folders import DATA
from dse.errors import DseError
from dse.model import MixtureOfExperts
from tests.conftest import ROOT

STEPS = DATA / "published/steps"

HEAD = (
    "source,case,model,layers,hidden,heads,kv_heads,ffn_hidden,gated_ffn,vocab,tied,seq,platform,"
    "gpus,tp,pp,vp,cp,ep,dp,sharding,micro_batch,global_batch,recompute,sequence_parallel,"
    "precision,program,status,s_per_step,peak_memory_gb\n"
)
ROW = (
    "me,{tp} {layers},,{layers},1024,16,16,4096,0,50257,1,1024,a100_sxm_80,8,{tp},1,1,1,1,{dp},"
    "none,1,16,none,0,fp16,{program},{status},{measured},{memory}\n"
)


def row(tp: int, measured: str, **other: object) -> str:
    plain = {"layers": 4, "program": "megatron_deepspeed", "status": "ok", "memory": ""}
    return ROW.format(**{**plain, "tp": tp, "dp": 8 // tp, "measured": measured, **other})


@pytest.fixture(scope="module")
def benchmark():
    before = set(sys.modules)
    sys.path.insert(0, str(ROOT / "benchmarks"))
    yield importlib.import_module
    sys.path.pop(0)
    for name in set(sys.modules) - before:
        if not name.startswith(("dse", "numpy", "pandas", "scipy")):
            sys.modules.pop(name, None)


@pytest.fixture(scope="module")
def marks(benchmark):
    return benchmark("step_marks")


@pytest.fixture(scope="module")
def figures(benchmark):
    return benchmark("step_figures")


@pytest.fixture(scope="module")
def sourced(figures, tmp_path_factory):
    """Three plans that ran, one that failed and one that nobody knows."""
    path = tmp_path_factory.mktemp("steps") / "steps.csv"
    rows = [row(1, "0.1"), row(2, "0.1"), row(4, "0.1", memory="2.0")]
    rows += [row(8, "", status="failed"), row(1, "0.1", program="unknown")]
    path.write_text(HEAD + "".join(rows))
    return figures.read_all([path])


def timed(sourced, *factors):
    """The steps with measured times of which the predicted ones are these multiples."""
    return [
        one._replace(step=replace(one.step, measured_s=one.step.predicted_s / factor))
        for one, factor in zip(sourced, factors, strict=False)
    ]


def test_every_row_is_counted(figures, sourced):
    families = {row.family: row for row in figures.all_figures(sourced)}
    known, unknown = families["megatron_deepspeed"], families["unknown"]
    assert (known.rows, known.cases, known.failed, known.refused) == (4, 3, 1, 0)
    assert (unknown.rows, unknown.cases, unknown.refused, unknown.not_predicted) == (1, 0, 1, 1)
    assert (known.fits, known.failed_fits, unknown.fits) == (1.0, 1.0, 0.0)
    assert known.files == "steps.csv"
    (step,) = [one.step for one in sourced if one.step.row["peak_memory_gb"]]
    assert step.measured_memory_bytes == 2 * 2**30
    document = step.document()
    assert document["predicted_memory_gb"] == step.predicted_memory_bytes / 2**30
    assert known.memory == pytest.approx(abs(step.predicted_memory_bytes / 2**31 - 1))


def test_machines_are_what_their_source_says(benchmark):
    """vTrain states 800 Gbit/s a node, half of what the platform has; other sources do not."""
    (heading,), cells = csv.reader([HEAD]), next(csv.reader([row(8, "0.1")]))
    several = dict(zip(heading, cells, strict=True)) | {"gpus": "16", "dp": "2"}
    published = benchmark("published_steps")
    rates = {
        program: published.published_job(several | {"program": program}).cluster.network
        for program in ("megatron_deepspeed", "megatron")
    }
    assert rates["megatron_deepspeed"].node_bandwidth_bytes_per_s == 100e9
    assert rates["megatron"].node_bandwidth_bytes_per_s == 200e9


def test_what_replicas_add_to_a_step_by_hand(benchmark):
    simulated = benchmark("simulated_steps")
    (heading,) = csv.reader([HEAD])
    one, two, other = (
        dict(zip(heading, next(csv.reader([row(8, measured)])), strict=True)) | changes
        for measured, changes in (
            ("0.1", {}),
            ("0.1001", {"dp": "2", "global_batch": "32"}),
            ("0.3", {"dp": "2", "global_batch": "32", "micro_batch": "2"}),
        )
    )
    # Four layers of 12 · 1024² / 8 weights, 2,944 biases and 4,096 values of norms, 1,024
    # positions, and an eighth of the vocabulary at both ends; in two bytes each, 38.6 MiB.
    assert simulated.first_stage_bytes(one) == 2 * (
        4 * (1_572_864 + 2_944 + 4_096) + 1_024 * 1_024 + 2 * 6_282 * 1_024
    )
    table = {(2, 39): (90.0, 200.0), (2, 1024): (5000.0, 200.0)}
    (found,) = simulated.differences([two, other, one], table)
    assert found == pytest.approx((100.0, 90.0))
    # Beyond the table: 2 GiB at 200 GiB/s.
    assert simulated.all_reduce_us(table, 2, 2**31) == pytest.approx(1e4)
    assert simulated.all_reduce_us(table, 1, 2**31) == 0.0


def test_errors_order_and_choice_by_hand(figures, sourced):
    steps = timed(sourced, 1.1, 0.8, 1.0)
    found = figures.step_figures("f", steps)
    assert found.median == pytest.approx(0.1)
    assert found.mean == pytest.approx(0.1, abs=1e-4)
    assert found.bias == pytest.approx(0.0)
    measured_s = [one.step.measured_s for one in steps]
    predicted_s = [one.step.predicted_s for one in steps]
    chosen_s = measured_s[predicted_s.index(min(predicted_s))]
    assert found.groups == 1
    assert found.regret == pytest.approx(chosen_s / min(measured_s) - 1)
    assert found.chosen == (found.regret <= 0.1)
    assert figures.step_figures("f", timed(sourced, 2, 2, 2)).tau == pytest.approx(1.0)
    assert math.isnan(figures.step_figures("f", steps[:2]).tau)


def test_a_refused_row_misses_the_mark(marks, figures, sourced):
    good = figures.step_figures("composer", timed(sourced, 1.0, 1.01, 1.0))
    assert next(iter(marks.step_marks([good]))).met
    refused = replace(good, not_predicted=1)
    assert not any(mark.met for mark in marks.step_marks([refused]))
    assert marks.step_marks([replace(good, family="nobody's")]) == []


def test_left_out_groups_are_predicted_with_what_the_others_say(benchmark, sourced):
    """Where the host takes 1.4 times as long in all rows, the other groups tell so."""
    steps = []
    for one in sourced[:3]:
        software = one.step.job.software
        calls = 1.4 * software.framework_calls_per_op
        job = replace(one.step.job, software=replace(software, framework_calls_per_op=calls))
        steps.append(replace(one.step, measured_s=job.simulated().time_s))
    shipped = [abs(step.error) for step in steps]
    assert max(shipped) > 0.15
    (by_tensor, _) = benchmark("step_groups").group_errors("f", steps)
    assert by_tensor.by == "tensor"
    assert by_tensor.refitted == ("framework_calls_per_op",)
    assert [(group.name, group.rows) for group in by_tensor.groups] == [
        ("1", 1),
        ("2", 1),
        ("4", 1),
    ]
    assert by_tensor.worst.median < 0.05


@pytest.mark.parametrize("measured", ["-3", "0", "inf", "nan", "soon", ""])
def test_a_time_that_is_none_is_the_problem_of_its_row(figures, tmp_path, measured):
    path = tmp_path / "steps.csv"
    path.write_text(HEAD + row(1, "0.1") + row(1, measured))
    steps = figures.read_all([path])
    assert [bool(one.step.problem) for one in steps] == [False, True]
    (family,) = figures.all_figures(steps)
    assert (family.rows, family.cases, family.failed, family.refused) == (2, 1, 0, 1)


@pytest.mark.parametrize("column", ["global_batch", "micro_batch", "layers", "seq"])
def test_a_number_that_is_not_whole_is_the_problem_of_its_row(benchmark, column):
    (heading,), cells = csv.reader([HEAD]), next(csv.reader([row(1, "0.1")]))
    stated = dict(zip(heading, cells, strict=True))
    published = benchmark("published_steps")
    assert published.published_step(stated | {"global_batch": "16.0"}).problem == ""
    step = published.published_step(stated | {"model": "gpt_175b", column: "256.5"})
    assert "256.5" in step.problem
    assert step.predicted_s != step.predicted_s


@pytest.mark.parametrize("column", ["platform", "dp", "tied"])
def test_a_table_without_a_column_is_refused(figures, tmp_path, column):
    path = tmp_path / "steps.csv"
    path.write_text(HEAD.replace(column, "x", 1) + row(1, "0.1"))
    with pytest.raises(DseError, match=f"`{column}`"):
        figures.read_all([path])


def test_folders_and_files(figures, tmp_path):
    with pytest.raises(DseError):
        figures.step_files(tmp_path)
    nested = tmp_path / "steps"
    nested.mkdir()
    (nested / "b.csv").touch()
    (tmp_path / "transformer_training_cases.csv").touch()
    names = ["b.csv", "transformer_training_cases.csv"]
    assert [path.name for path in figures.step_files(tmp_path)] == names
    assert [path.name for path in figures.step_files(nested)] == names
    assert figures.step_files(nested / "b.csv") == [nested / "b.csv"]


def test_the_section_of_the_page_is_replaced(benchmark, marks, figures, sourced, tmp_path):
    page = benchmark("step_page")
    steps = timed(sourced[:3], 1.1, 0.8, 1.0)
    families = figures.all_figures(steps)
    groups = benchmark("step_groups").group_errors("f", [one.step for one in steps])
    report = marks.StepReport(steps, families, marks.step_marks(families), groups)
    path = tmp_path / "page.md"
    path.write_text(f"# A\n\n## Before\n\nb\n\n{page.TITLE}\nold\n\n## After\n\na\n")
    replace_section = benchmark("pages").replace_section
    replace_section(path, page.step_section(report))
    text = path.read_text()
    assert [line for line in text.splitlines() if line.startswith("## ")] == [
        "## Before",
        page.TITLE.strip(),
        "## After",
    ]
    assert "old" not in text
    assert "`framework_calls_per_op`" in text
    page.write_step_pictures(report, tmp_path / "images")
    for name in ("accuracy_transformers.svg", "accuracy_transformer_groups.svg"):
        assert name in text
        root = ET.fromstring((tmp_path / "images" / name).read_text())
        assert len(list(root.iter("{http://www.w3.org/2000/svg}title"))) >= 1 + len(steps)
    path.write_text("# A\n")
    with pytest.raises(DseError):
        replace_section(path, page.step_section(report))


def test_rooflines_by_hand(benchmark, sourced):
    roofline = benchmark("end_to_end_roofline").transformer_roofline_s
    job = sourced[0].step.job
    model, spread = job.model, job.parallelism
    assert (spread.data, job.micro_batches) == (8, 2)
    hidden, tokens = model.hidden, model.sequence_length
    layer = 2 * tokens * (12 * hidden**2 + 2 * tokens * hidden)
    head = 2 * tokens * hidden * model.vocab
    peak = job.cluster.device.peak.of(job.precision)
    least_s = 2 * 3 * (model.layers * layer + head) / peak
    assert least_s < roofline(job) < 4 * least_s
    assert roofline(replace(job, global_batch_size=32)) > 1.5 * roofline(job)
    assert roofline(job) < sourced[0].step.predicted_s


def test_rooflines_count_layers_by_kind(benchmark, sourced):
    roofline = benchmark("end_to_end_roofline").transformer_roofline_s
    job = sourced[0].step.job

    def of(every):
        experts = MixtureOfExperts(64, 2, 4096, every=every) if every else None
        model = replace(job.model, layers=4, experts=experts)
        spread = replace(job.parallelism, expert=8 if every else 1)
        return roofline(replace(job, model=model, parallelism=spread))

    # Of four layers none, one, two or all have experts.
    assert of(0) < of(4) < of(2) < of(1)
    assert of(2) - of(4) == pytest.approx((of(1) - of(4)) / 3)


@pytest.mark.slow
@pytest.mark.skipif(not STEPS.is_dir(), reason="no published steps beside the checkout")
@pytest.mark.parametrize(
    ("name", "every", "limit"),
    [
        ("vtrain.csv", 12, 0.08),
        ("nanotron.csv", 25, 0.15),
        ("dgxc.csv", 7, 0.05),
        ("megatron.csv", 4, 0.12),
    ],
)
def test_a_sample_of_the_published_steps_is_met(figures, tmp_path, name, every, limit):
    """The whole files: `python benchmarks/accuracy.py --steps`."""
    head, *rows = (STEPS / name).read_text().splitlines()
    (tmp_path / name).write_text("\n".join([head, *rows[::every]]))
    for found in figures.all_figures(figures.read_all([tmp_path / name])):
        assert not found.not_predicted
        assert found.median <= limit, found
