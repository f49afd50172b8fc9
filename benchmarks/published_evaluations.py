"""What published throughputs include besides training: evaluations, and the rest of a run."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from dse.workload.dlrm import DlrmJob

if TYPE_CHECKING:
    import pandas as pd

#: MLPerf evaluates the samples of the test set every twentieth of an epoch.
_EVALUATED_SAMPLES, _EPOCH_SAMPLES = 89.1e6, 4195.2e6

#: What a run takes besides iterations and evaluations, for each of its evaluations: its start, and
#: where devices hold the samples of evaluations, their first reading. Medians of 9 submissions of
#: v1.0 and v1.1, and 20 of v3.0 and v3.1, by the times in their logs (one node).
_REST_OF_RUN_S, _REST_OF_DCNV2_S = 0.075, 0.015

#: Samples that are evaluated at once, as configurations of submissions say (`batchsize_eval`). Of
#: DLRM-DCNv2 those of 8, 64 and 128 H100 are stored. Of the one-hot model those for four A100 have
#: one value, but Dell's of v1.1, and that for several nodes of v1.0 another one. Lenovo's of v2.1,
#: whose 1,613 batches of 16,384 would not be the whole test set, counts like the others.
_ALL_EVALUATE, _RANK_EVALUATES = 262_144, 16_384
_FOUR_EVALUATE, _DELL_EVALUATES, _NODES_EVALUATE = 55_296, 442_368, 716_800


def evaluation_batch_size(row: pd.Series, program: str) -> int | None:
    """Returns the samples of a batch in evaluations; None for as many as the program says.

    Args:
        row: A published case.
        program: Its training program.
    """
    case, ranks = str(row["case"]), int(float(row["gpus"]))
    if program == "hugectr":
        return max(_ALL_EVALUATE, _RANK_EVALUATES * ranks)
    if program not in {"hugectr_3_1", "hugectr_hybrid"}:
        return None
    if ranks == 4:
        return _DELL_EVALUATES if "v1.1 Dell" in case else _FOUR_EVALUATE
    return _NODES_EVALUATE if float(row.get("nodes", 1)) > 1 and "v1.0" in case else None


def evaluation_share(row: pd.Series) -> float:
    """Returns the evaluated samples for each trained one, where the throughput includes them."""
    included = "in-run evaluation" in str(row.get("note", "")).lower()
    return _EVALUATED_SAMPLES / (0.05 * _EPOCH_SAMPLES) if included else 0.0


def besides_iteration_s(job: DlrmJob, row: pd.Series) -> float:
    """Returns what a published throughput includes for each iteration besides the iteration."""
    evaluated = evaluation_share(row) * job.problem.global_batch_size
    if not evaluated:
        return 0.0
    rest_s = _REST_OF_DCNV2_S if "dcnv2" in str(row["model"]) else _REST_OF_RUN_S
    # Where storage would decide, its rate comes from evaluations themselves.
    evaluation_s = without_storage(job).evaluation_time_s(evaluated)
    return evaluation_s + rest_s * evaluated / _EVALUATED_SAMPLES


def without_storage(job: DlrmJob) -> DlrmJob:
    """Returns the job on machines whose storage limits nothing."""
    cluster = replace(job.problem.cluster, storage_bandwidth_bytes_per_s=None)
    other = DlrmJob(replace(job.problem, cluster=cluster), program=job.program)
    return other if job.plan is None else other.with_plan(job.plan)
