"""Predicted against published training times of recommendation models, evaluation apart.

A row of the file is one submission to MLPerf: milliseconds an iteration between two evaluations,
and the time of one evaluation, both from its logs. It becomes a configuration by the rules of
`published_cases.py`. A row that cannot be predicted carries its problem, and one that its
collectors doubt its note; both are counted apart.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
import json
import math
from typing import TYPE_CHECKING

from marks import Mark
import numpy as np
from pages import percent, without_nan
import pandas as pd
from published_cases import job_of, platform_of, program_of
from published_evaluations import evaluation_batch_size, without_storage
from published_reading import read_rate_bytes_per_s
from tables import read_table, stated_number

from dse.errors import ConfigError, DseError
from dse.ranking import coverage
from dse.workload import predict_job

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from pathlib import Path

COLUMNS = (
    *("round", "benchmark", "submitter", "system", "gpu", "nodes", "gpus_per_node", "network"),
    *("interconnect", "framework", "global_batch", "train_ms_per_iter", "eval_ms"),
    *("eval_samples", "note"),
)

#: What is predicted of a case.
_PREDICTED = (
    *("predicted_s", "low_s", "high_s", "read_rate_bytes_per_s", "unlimited_s"),
    "evaluation_predicted_s",
)

#: Columns of an evaluation.
_EVALUATION = ("eval_ms", "eval_samples")

#: What an iteration is bound by where storage decides.
_READING = "read samples"

#: Models of the benchmarks.
_MODELS = {"dlrm": "mlperf_dlrm_v1", "dlrm_dcnv2": "mlperf_dlrm_dcnv2"}

#: What the parameters of `hugectr` are fitted on, eight devices of one node that a switch joins,
#: and what eight cards leave of PCIe. The links of machines with four are not stated.
_FITTED_ROUNDS = frozenset({"v3.0", "v3.1"})
_FITTED_PLATFORMS = frozenset({"a100_sxm_80", "h100_sxm", "h100_pcie", "l40s_pcie"})
_FITTED_RANKS, _FITTED_PROGRAM = 8, "hugectr"

#: The aims: largest median error, and largest error of a case on 64 to 128 devices.
LIMITS = ONE_NODE_MEDIAN, SEVERAL_NODES_MEDIAN, LARGE_ERROR = 0.04, 0.12, 0.15
_LARGE_RANKS = 64


@dataclass(frozen=True, slots=True)
class TrainOnlyCase:
    """One submission beside its prediction.

    Attributes:
        case: Round, submitter and system.
        round: Round of the benchmark.
        gpu: Device as published.
        platform: Name of its platform; empty if there is none.
        gpus: Number of devices; 0 where the row names no device or a number is none.
        nodes: Number of nodes.
        program: Training program by which it is predicted.
        fitted: Whether a parameter of the program or of the machine was fitted on it.
        measured_s: Published time of an iteration.
        predicted_s: Predicted time; NaN with a problem.
        low_s: Lower end of the 90 % interval.
        high_s: Upper end.
        read_rate_bytes_per_s: Rate at which its storage reads, where that decides; else NaN.
        unlimited_s: Predicted time on storage that limits nothing, where it decides; else NaN.
        evaluation_measured_s: Published time of one evaluation; NaN without one.
        evaluation_predicted_s: Predicted time; NaN with a problem or without an evaluation.
        note: Why its figures are doubtful; empty if they are not.
        problem: Why it cannot be predicted; empty if it can.
    """

    case: str
    round: str
    gpu: str
    platform: str
    gpus: int = 0
    nodes: int = 0
    program: str = ""
    fitted: bool = False
    measured_s: float = math.nan
    predicted_s: float = math.nan
    low_s: float = math.nan
    high_s: float = math.nan
    read_rate_bytes_per_s: float = math.nan
    unlimited_s: float = math.nan
    evaluation_measured_s: float = math.nan
    evaluation_predicted_s: float = math.nan
    note: str = ""
    problem: str = ""

    @property
    def error(self) -> float:
        """Relative error of the predicted time of an iteration."""
        return self.predicted_s / self.measured_s - 1

    @property
    def group(self) -> str:
        """Round, device, and whether there are several nodes."""
        return f"{self.round}, {self.platform or self.gpu}, {self.place}"

    @property
    def place(self) -> str:
        """Whether the devices are on one node."""
        return "one node" if self.nodes == 1 else "several nodes"


@dataclass(frozen=True, slots=True)
class TrainOnlyFigures:
    """Errors over some submissions.

    Attributes:
        group: Which ones.
        cases: How many of them could be predicted.
        median: Median of the relative errors' absolute values.
        mape: Their mean.
        bias: Median of log(predicted / measured): above 0 the model is slower.
        inside: Share of measurements inside the 90 % interval.
        evaluation_median: Median error of the evaluations; NaN without any.
        evaluation_bias: Median of log(predicted / measured) of the evaluations.
    """

    group: str
    cases: int
    median: float
    mape: float
    bias: float
    inside: float
    evaluation_median: float
    evaluation_bias: float


def train_only_cases(path: Path) -> list[TrainOnlyCase]:
    """Predicts every submission of a file, in its order.

    Raises:
        DseError: The file cannot be read or lacks a column.
    """
    rows = read_table(path, COLUMNS, as_text=True)
    known: dict[tuple[object, ...], tuple[float, ...]] = {}
    return [_predicted(row, known) for _, row in rows.iterrows()]


def _predicted(
    row: pd.Series, known: dict[tuple[object, ...], tuple[float, ...]]
) -> TrainOnlyCase:
    stated = TrainOnlyCase(
        case=f"{row['round']} {row['submitter']} {row['system']}",
        round=row["round"],
        gpu=row["gpu"] or "no GPU",
        platform=_platform(row["gpu"]),
        note=row["note"],
    )
    try:
        if not row["gpu"]:
            raise ConfigError("the submission names no GPU")
        nodes, per_node, batch = (
            int(stated_number(row, name, whole=True))
            for name in ("nodes", "gpus_per_node", "global_batch")
        )
        measured_s = stated_number(row, "train_ms_per_iter") / 1e3
        # Some rows have no evaluation.
        evaluated = [stated_number(row, name) for name in _EVALUATION if row["eval_ms"]]
    except DseError as error:
        return replace(stated, problem=str(error))
    gpus = nodes * per_node
    as_case = pd.Series(
        {
            "case": f"MLPerf {stated.case}",
            "model": _MODELS.get(row["benchmark"], row["benchmark"]),
            "gpu": row["gpu"],
            "gpus": gpus,
            "nodes": nodes,
            "interconnect": f"{row['interconnect']} | {row['network']}",
            "global_batch": batch,
            "precision": "AMP",
            "note": f"framework {row['framework']}",
        }
    )
    program = program_of(as_case)
    stated = replace(
        stated,
        gpus=gpus,
        nodes=nodes,
        program=program,
        fitted=(
            program == _FITTED_PROGRAM
            and row["round"] in _FITTED_ROUNDS
            and (nodes, gpus) == (1, _FITTED_RANKS)
            and stated.platform in _FITTED_PLATFORMS
        ),
        measured_s=measured_s,
        evaluation_measured_s=evaluated[0] / 1e3 if evaluated else math.nan,
    )
    setting = tuple(row[key] for key in ("round", "benchmark", "gpu", "interconnect", "network"))
    at_once = evaluation_batch_size(as_case, program)
    setting = (*setting, batch, program, gpus, nodes, at_once, *evaluated[1:])
    setting = (*setting, read_rate_bytes_per_s(as_case["case"]))
    try:
        if setting not in known:
            job = job_of(as_case)
            found = predict_job(job)
            times = (found.iteration_time_s, found.iteration_time_p5_s, found.iteration_time_p95_s)
            unlimited = without_storage(job)
            reading = (math.nan, math.nan)
            if found.bound_by == _READING:
                rate = job.cluster.storage_bandwidth_bytes_per_s or math.nan
                reading = (rate, predict_job(unlimited).iteration_time_s)
            evaluation_s = unlimited.evaluation_time_s(evaluated[1]) if evaluated else math.nan
            known[setting] = (*times, *reading, evaluation_s)
    except DseError as error:
        return replace(stated, problem=str(error), fitted=False)
    return replace(stated, **dict(zip(_PREDICTED, known[setting], strict=True)))


def _platform(gpu: str) -> str:
    try:
        return platform_of(gpu).name
    except DseError:
        return ""


def figures_of(group: str, cases: Iterable[TrainOnlyCase]) -> TrainOnlyFigures:
    """Returns the errors over the submissions of a group that could be predicted."""
    done = [case for case in cases if not case.problem]
    if not done:
        return TrainOnlyFigures(group, 0, *[math.nan] * 6)
    logs = np.array([math.log(case.predicted_s / case.measured_s) for case in done])
    evaluations = np.array(
        [
            math.log(case.evaluation_predicted_s / case.evaluation_measured_s)
            for case in done
            if not math.isnan(case.evaluation_measured_s)
        ]
    )
    evaluations = evaluations if len(evaluations) else np.array([math.nan])
    errors = np.abs(np.expm1(logs))
    return TrainOnlyFigures(
        group,
        len(done),
        median=float(np.median(errors)),
        mape=float(errors.mean()),
        bias=float(np.median(logs)),
        inside=coverage(
            [case.measured_s for case in done],
            [case.low_s for case in done],
            [case.high_s for case in done],
        ),
        evaluation_median=float(np.median(np.abs(np.expm1(evaluations)))),
        evaluation_bias=float(np.median(evaluations)),
    )


def group_figures(cases: Sequence[TrainOnlyCase]) -> list[TrainOnlyFigures]:
    """Returns the errors of each round, device and place, then those of all in one place.

    Submissions that are doubtful count in groups of their own only.
    """
    sure = [case for case in cases if not case.note and not case.problem]
    rows = [
        figures_of(group, [case for case in sure if case.group == group])
        for group in dict.fromkeys(case.group for case in sure)
    ]
    for place in ("one node", "several nodes"):
        for fitted, words in ((True, "fitted"), (False, "held out")):
            chosen = [case for case in sure if case.place == place and case.fitted == fitted]
            if chosen:
                rows.append(figures_of(f"all on {place}, {words}", chosen))
    doubtful = [case for case in cases if case.note and not case.problem]
    if doubtful:
        rows.append(figures_of("doubtful", doubtful))
    return rows


def train_only_marks(cases: Sequence[TrainOnlyCase]) -> list[Mark]:
    """Returns every aim of `LIMITS` with what was reached, without doubtful submissions."""
    sure = [case for case in cases if not case.note and not case.problem]

    def median(place: str) -> float:
        held_out = [case for case in sure if case.place == place and not case.fitted]
        return figures_of(place, held_out).median

    large = [abs(case.error) for case in sure if case.gpus >= _LARGE_RANKS]
    reached = {
        "one node, held out: median": median("one node"),
        "several nodes, held out: median": median("several nodes"),
        f"{_LARGE_RANKS} devices and more: largest": max(large, default=math.nan),
    }
    return [
        Mark(name, percent(error), f"≤ {percent(limit, 0)}", error <= limit, error)
        for (name, error), limit in zip(reached.items(), LIMITS, strict=True)
    ]


def compare_train_only(path: Path, *, as_json: bool) -> None:
    """Predicts every submission of a file and prints errors by group, and the marks.

    Raises:
        DseError: The file cannot be read or lacks a column.
    """
    cases = train_only_cases(path)
    groups, marks = group_figures(cases), train_only_marks(cases)
    if as_json:
        document = {
            "cases": [{**asdict(case), "error": case.error} for case in cases],
            "groups": [asdict(row) for row in groups],
            "marks": [
                {"aim": mark.name, "limit": limit, "reached": mark.value, "met": mark.met}
                for mark, limit in zip(marks, LIMITS, strict=True)
            ],
        }
        print(json.dumps(without_nan(document), indent=1))
        return
    print(f"{'measured':>10} {'predicted':>10} {'error':>8}  {'evaluation':>17}  case (ms)")
    for case in cases:
        print(_line(case))
    width = max((len(row.group) for row in groups), default=len("cases"))
    print(
        f"{'cases':<{width}} {'n':>3} {'median':>7} {'MAPE':>7} {'bias':>6} {'inside 90 %':>11} "
        f"{'evaluation':>10} {'bias':>6}"
    )
    for row in groups:
        print(
            f"{row.group:<{width}} {row.cases:3d} {100 * row.median:6.1f}% {100 * row.mape:6.1f}% "
            f"{row.bias:+6.2f} {100 * row.inside:9.0f} % {100 * row.evaluation_median:9.1f}% "
            f"{row.evaluation_bias:+6.2f}"
        )
    problems = [case for case in cases if case.problem]
    print(f"{len(problems)} of {len(cases)} cannot be predicted")
    for mark in marks:
        print(mark.line)


def _line(case: TrainOnlyCase) -> str:
    name = f"{case.case}, {case.gpus or '?'} × {case.gpu}"
    if case.problem:
        measured = "–" if math.isnan(case.measured_s) else f"{1e3 * case.measured_s:.3f}"
        return f"{measured:>10} {'–':>10} {'–':>8}  {'–':>17}  {name}: {case.problem}"
    outside = " " if case.low_s <= case.measured_s <= case.high_s else "*"
    evaluation = f"{'–':>17}"
    if not math.isnan(case.evaluation_measured_s):
        evaluation = (
            f"{1e3 * case.evaluation_measured_s:8.0f} {1e3 * case.evaluation_predicted_s:8.0f}"
        )
    note = f" ({case.note})" if case.note else " (fitted)" if case.fitted else ""
    return (
        f"{1e3 * case.measured_s:10.3f} {1e3 * case.predicted_s:10.3f} "
        f"{100 * case.error:+7.1f}%{outside} {evaluation}  {name}{note}"
    )
