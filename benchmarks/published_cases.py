"""Predicted against published training throughput, case by case.

A file of cases needs the columns case, model, gpu, gpus, nodes, interconnect, global_batch,
precision, samples_per_s, source and note. Models are named by built-in name or alias. Each case
becomes a configuration by the rules below, which look at the stated hardware and software only;
the sharding plan is the program's own where its rule is known, else the solver's.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
import json
import math
import re
from typing import TYPE_CHECKING

import numpy as np
from pages import without_nan
import pandas as pd
from published_evaluations import besides_iteration_s, evaluation_batch_size, without_storage
from published_plans import (
    by_rank,
    first_gpu_free_plan,
    lookup_balanced_plan,
    memory_balanced_plan,
    one_rank_plan,
)
from published_reading import read_rate_bytes_per_s
from scipy.stats import kendalltau
from step_errors import StepError
from tables import read_table, stated_number

from dse.errors import DseError
from dse.machine import LinkKind, Precision
from dse.machine.platforms import Platform, load_platform
from dse.model import load_model
from dse.sharding import ShardingType, check_plan
from dse.workload import find_program, predict_job
from dse.workload.dlrm import DLRM_PROGRAMS, DlrmJob, make_problem
from dse.workload.dlrm.solver import solve

if TYPE_CHECKING:
    from pathlib import Path

    from dse.machine import Cluster
    from dse.sharding import ShardingPlan
    from dse.workload.dlrm import PlanScorer

#: Kinds of software whose figures are reported together.
FAMILIES = ("dlrm cuda graphs", "dlrm synthetic", "dlrm eager")

COLUMNS = ("case", "model", "gpu", "gpus", "global_batch", "precision", "samples_per_s")
HIPC22_COLUMNS = ("gpu", "model", "batch", "iteration_ms", "precision_note")

#: First matching pattern of the device name (spaces and case ignored) decides the platform.
PLATFORM_PATTERNS = (
    (r"v100.*sxm3|dgx-?2", "v100_dgx2"),
    (r"v100", "v100_dgx1"),
    (r"a100.*pcie", "a100_pcie"),
    (r"a100.*40gb", "a100_sxm_40"),
    (r"a100", "a100_sxm_80"),
    (r"a800.*sxm", "a800_sxm_80"),
    (r"h100.*pcie", "h100_pcie"),
    (r"h100.*nvl", "h100_nvl"),
    (r"h200", "h200_sxm"),
    (r"h20", "h20"),
    (r"h100", "h100_sxm"),
    (r"h800.*pcie", "h100_pcie"),
    (r"h800", "h800_sxm"),
    (r"gb300", "gb300_nvl72"),
    (r"gb200", "gb200_nvl72"),
    (r"b300", "b300_sxm"),
    (r"b200", "b200_sxm"),
    (r"l40s", "l40s_pcie"),
    (r"l40", "l40_pcie"),
    (r"l4$", "l4_pcie"),
    (r"a40", "a40_pcie"),
    (r"a10g", "a10g_pcie"),
    (r"a10\b", "a10_pcie"),
    (r"rtxpro6000.*server", "rtx_pro_6000_pcie"),
    (r"mi300x", "mi300x"),
    (r"mi325x", "mi325x"),
    (r"mi355x", "mi355x"),
    (r"titanxp", "titan_xp"),
    (r"p100", "p100_pcie"),
)


@dataclass(frozen=True)
class CaseResult:
    """One published case beside its prediction.

    Attributes:
        case: Name and setting of the case.
        published_samples_per_s: As published; NaN where the row has none.
        predicted_samples_per_s: By the model; NaN when it could not be predicted.
        problem: Why it could not be predicted; empty otherwise.
        predicted_p5_samples_per_s: Lower end of the 90 % interval of the throughput.
        predicted_p95_samples_per_s: Upper end of the 90 % interval of the throughput.
        step_error: Error of the iteration, evaluation apart; None when it could not be predicted.
        family: One of `FAMILIES`; cases of one family share their kind of software.
        note: What is known to make the comparison unfair; empty otherwise.
    """

    case: str
    published_samples_per_s: float
    predicted_samples_per_s: float
    problem: str = ""
    predicted_p5_samples_per_s: float = math.nan
    predicted_p95_samples_per_s: float = math.nan
    step_error: StepError | None = None
    family: str = ""
    note: str = ""

    @property
    def error(self) -> float:
        """Relative error of the predicted throughput."""
        return self.predicted_samples_per_s / self.published_samples_per_s - 1


def platform_of(gpu: str) -> Platform:
    """Returns the platform of a device name as the sources write it."""
    squeezed = gpu.lower().replace(" ", "")
    for pattern, name in PLATFORM_PATTERNS:
        if re.search(pattern, squeezed):
            return load_platform(name)
    raise DseError(f"no platform is known for the device `{gpu}`")


def precision_of(text: str) -> Precision:
    """Returns the arithmetic of a case: AMP and half precision, TF32 where named, else FP32.

    Raises:
        DseError: None is stated.
    """
    lowered = text.lower()
    if lowered in ("", "nan"):
        raise DseError("`precision` is missing; expected such as AMP, FP16, BF16, TF32 or FP32")
    if "amp" in lowered and "no --amp" not in lowered:
        return Precision.FP16
    if "fp16" in lowered or "half" in lowered:
        return Precision.FP16
    if "bf16" in lowered:
        return Precision.BF16
    return Precision.TF32 if "tf32" in lowered else Precision.FP32


def program_of(row: pd.Series) -> str:
    """Returns the name of the training program of a case, by what its source says of software.

    MLPerf submissions of recommendation models run HugeCTR, also where the list of frameworks
    names others, unless the source names PyTorch alone. The model tells its generation.
    """
    case, model = str(row["case"]).lower(), str(row["model"]).lower()
    note = str(row.get("note", "")).lower()
    if "hipc" in case:
        return "pytorch_eager"
    if "torchrec" in case:
        return "torchrec_dlrm" if "data-loading in loop" in note else "torchrec"
    if "tfde" in f"{case} {model}" or "distributed-embeddings" in note or "dle-tf" in case:
        return "distributed_embeddings"
    framework = note.partition("framework ")[2]
    only_pytorch = framework.startswith("pytorch") and "hugectr" not in framework
    if "dle" in case or "pytorch" in case or only_pytorch:
        return "deeplearningexamples"
    if "dcnv2" in model:
        return "hugectr"
    return "hugectr_3_1" if re.search(r"mlperf v(0\.7|1\.0)\b", case) else "hugectr_hybrid"


def cluster_of(row: pd.Series) -> Cluster:
    """Returns the machines of a case: the device's platform, with the nodes that are stated.

    Storage reads as fast as the case's own logs show, where they were looked up.

    Raises:
        DseError: Numbers of devices and nodes are none, or are not those of equal nodes.
    """
    world_size = int(stated_number(row, "gpus", whole=True))
    nodes = int(stated_number(row, "nodes", whole=True)) if "nodes" in row else 1
    if world_size % nodes:
        raise DseError(
            f"`gpus` is {world_size} on {nodes} `nodes`; expected as many on each of them"
        )
    platform = platform_of(str(row["gpu"]))
    inside = str(row.get("interconnect", "")).partition("|")[0].strip().lower()
    # Cards that are said to exchange over PCIe have no bridges.
    only_pcie = inside.startswith("pcie") and platform.links[0].kind is LinkKind.NVLINK_PAIRS
    cluster = platform.cluster(world_size, link="pcie" if only_pcie else "")
    stated = world_size // nodes
    if nodes > 1 or stated > cluster.devices_per_node:
        cluster = replace(cluster, devices_per_node=stated)
    cards = _cards(str(row.get("interconnect", "")))
    if nodes > 1 and cards:
        network = replace(
            cluster.network,
            name="as stated",
            nics_per_node=int(cards[1]),
            nic_bandwidth_bytes_per_s=int(cards[2]) * 1e9 / 8,
        )
        cluster = replace(cluster, network=network)
    read = read_rate_bytes_per_s(str(row["case"]))
    return replace(cluster, storage_bandwidth_bytes_per_s=read)


def _cards(interconnect: str) -> re.Match[str] | None:
    """Finds number and Gbit/s of the cards for collectives; others are named for what they do."""
    for part in re.split(r"[,|]", interconnect.lower()):
        if not part.strip().startswith(("storage", "management")):
            found = re.search(
                r"(\d+)\s*x.{0,40}?(?:ib|infiniband|connectx).{0,30}?(\d+)\s*gb", part
            )
            if found:
                return found
    return None


#: Tables below which size the submissions of DLRM-DCNv2 copy to all ranks, with their optimizer
#: state (`DP_SHARDING_THRESHOLD`): on one node, and on several. Those of v3.0 do not say, and copy
#: none.
_COPIED_BELOW_BYTES = (8e6, 12.5e6)
_COPIES_NOTHING = "v3.0"


def plan_of(scorer: PlanScorer, program: str, case: str = "") -> ShardingPlan:
    """Returns the plan that the program makes, or the solver's where its rule is not known.

    The solver's serves as well where the program's plan does not fit the devices.

    Args:
        scorer: The performance model of the case.
        program: Its training program.
        case: Its name, which tells MLPerf's rounds.
    """
    model, cluster = scorer.problem.model, scorer.problem.cluster
    ranks = cluster.world_size
    if ranks == 1:
        return one_rank_plan(model)
    plan = None
    if program == "deeplearningexamples":
        plan = first_gpu_free_plan(model, ranks)
    elif program == "distributed_embeddings":
        plan = memory_balanced_plan(model, ranks)
    elif program == "hugectr":
        copied_below = _COPIED_BELOW_BYTES[not by_rank(cluster)]
        if _COPIES_NOTHING in case:
            copied_below = 0.0
        plan = lookup_balanced_plan(model, cluster, copied_below)
    if plan is not None:
        tables = model.tables
        local = cluster.devices_per_domain
        plan = check_plan(plan, tables, ranks, local, rows_on_some=program == "hugectr")
        if scorer.score([plan]).fits[0]:
            return plan
    allowed = set(ShardingType)
    if not scorer.problem.software.copies_rows:
        allowed.remove(ShardingType.DATA_PARALLEL)
    return solve(scorer, allowed_types=frozenset(allowed)).plan


def family_of(case: str) -> str:
    """Returns the family of a case by its name."""
    lowered = case.lower()
    if "torchrec" in lowered or "hipc" in lowered:
        return FAMILIES[2]
    return FAMILIES[1] if "synthetic" in lowered else FAMILIES[0]


def hipc22_cases(path: Path) -> list[CaseResult]:
    """Predicts the single-GPU iteration times of HiPC'22, one result a row of the file.

    The file has the columns gpu, model, batch and iteration_ms; results are in samples/s.

    Raises:
        DseError: The file cannot be read.
    """
    measured = read_table(path, HIPC22_COLUMNS)
    batch, iteration_ms = (
        pd.to_numeric(measured[name], errors="coerce") for name in ("batch", "iteration_ms")
    )
    rows = pd.DataFrame(
        {
            "case": "HiPC'22 " + measured["model"],
            "model": "mlpm_" + measured["model"],
            "gpu": measured["gpu"],
            "gpus": 1,
            "nodes": 1,
            "global_batch": measured["batch"],
            "precision": "FP32",
            "samples_per_s": batch / (iteration_ms / 1e3),
            "note": measured["precision_note"],
        }
    )
    return [predict_case(row) for _, row in rows.iterrows()]


def job_of(row: pd.Series) -> DlrmJob:
    """Returns the job of a case with its plan.

    Raises:
        DseError: Device or model are not known, numbers are none, or no plan fits.
    """
    program, precision = program_of(row), precision_of(str(row["precision"]))
    cluster = cluster_of(row)
    # The last batch of an uneven split is smaller; the nearest even split is predicted.
    stated = int(stated_number(row, "global_batch", whole=True))
    batch = math.ceil(stated / cluster.world_size) * cluster.world_size
    software = find_program(DLRM_PROGRAMS, program).software_for(
        precision, one_node=cluster.node_count == 1
    )
    software = replace(
        software,
        # The embedding collection of the submissions has no hot rows.
        hot_rows=software.hot_rows and program != "hugectr",
        evaluation_batch_size=evaluation_batch_size(row, program)
        or software.evaluation_batch_size,
    )
    model = load_model(str(row["model"]))
    job = DlrmJob(make_problem(model, cluster, batch, precision, software), program=program)
    # No program's plan depends on how fast samples are read.
    scorer = without_storage(job).scorer
    return job.with_plan(plan_of(scorer, program, str(row["case"])))


def predict_case(row: pd.Series) -> CaseResult:
    """Predicts one row of the file."""
    name = (
        f"{row['case']} {row['gpus']}×{row['gpu']} batch {row['global_batch']} {row['precision']}"
    )
    published = math.nan
    family = family_of(str(row["case"]))
    try:
        published = stated_number(row, "samples_per_s")
        job = job_of(row)
        batch = job.problem.global_batch_size
        prediction = predict_job(job)
        slower = 1.0 + besides_iteration_s(job, row) / prediction.iteration_time_s
        predicted, low, high = (
            batch / (seconds * slower)
            for seconds in (
                prediction.iteration_time_s,
                prediction.iteration_time_p95_s,
                prediction.iteration_time_p5_s,
            )
        )
        error = StepError.of(job, str(row["model"]), batch / published / slower)
        return CaseResult(name, published, predicted, "", low, high, error, family)
    except DseError as error:
        return CaseResult(name, published, math.nan, str(error), family=family)


def overall(results: list[CaseResult]) -> dict[str, float]:
    """Returns the figures over all cases that could be predicted; NaN without any."""
    done = [result for result in results if not result.problem]
    errors = np.array([abs(result.error) for result in done])
    tau = (
        kendalltau(
            [result.predicted_samples_per_s for result in done],
            [result.published_samples_per_s for result in done],
        ).statistic
        if len(done) > 1
        else math.nan
    )
    return {
        "cases": len(done),
        "not_predicted": len(results) - len(done),
        "median_abs_error": float(np.median(errors)) if done else math.nan,
        "mean_abs_error": float(errors.mean()) if done else math.nan,
        "kendall_tau": float(tau),
    }


def compare_published(path: Path, *, as_json: bool) -> None:
    """Predicts every case of a file and prints the errors.

    Raises:
        DseError: The file cannot be read or lacks a column.
    """
    cases = read_table(path, COLUMNS, as_text=True)
    results = [predict_case(row) for _, row in cases.iterrows()]
    figures = overall(results)
    if as_json:
        listed = [
            {
                "case": result.case,
                "published_samples_per_s": result.published_samples_per_s,
                "predicted_samples_per_s": result.predicted_samples_per_s,
                "error": result.error,
                "problem": result.problem,
            }
            for result in results
        ]
        print(json.dumps(without_nan({"cases": listed, "overall": figures}), indent=1))
        return
    print(f"{'published':>12} {'predicted':>12} {'error':>8}  case (samples/s)")
    for result in results:
        if result.problem:
            rate = result.published_samples_per_s
            stated = "–" if math.isnan(rate) else f"{rate:,.0f}"
            print(f"{stated:>12} {'–':>12} {'–':>8}  {result.case}: {result.problem}")
            continue
        print(
            f"{result.published_samples_per_s:12,.0f} {result.predicted_samples_per_s:12,.0f} "
            f"{100 * result.error:+7.1f}%  {result.case}"
        )
    print(
        f"{figures['cases']} cases: median error {100 * figures['median_abs_error']:.1f} %, "
        f"mean {100 * figures['mean_abs_error']:.1f} %, Kendall tau "
        f"{figures['kendall_tau']:.2f}; {figures['not_predicted']} more cannot be predicted"
    )
