"""Samples that a program reads from a node's storage while earlier ones are trained.

Readers run far ahead on threads of their own, so reading takes nothing from an iteration until it
takes longer than all the rest; then iterations follow one another at the rate of the storage.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from dse.workload.dlrm.program._software import InputPath

if TYPE_CHECKING:
    from dse.workload.dlrm._problem import DlrmProblem


def read_bytes(problem: DlrmProblem) -> float:
    """Returns what each node reads of a batch.

    Where ranks take the indices of their tables for the global batch, every node reads it whole;
    otherwise a node reads the samples of its ranks.

    Args:
        problem: Everything but the plan.
    """
    model, software = problem.model, problem.software
    if software.input_path is InputPath.ON_DEVICE:
        return 0.0
    lookups = sum(table.lookups_per_sample for table in model.tables)
    values = model.dense_features + model.outputs + lookups
    samples = problem.global_batch_size
    if software.input_path is InputPath.BY_SAMPLE:
        samples = problem.local_batch_size * problem.cluster.local_size
    return float(samples * values * software.read_value_bytes)


def read_time_s(problem: DlrmProblem) -> float:
    """Returns how long storage takes for a batch; 0 where its rate is not known.

    Args:
        problem: Everything but the plan.
    """
    bandwidth = problem.cluster.storage_bandwidth_bytes_per_s
    return read_bytes(problem) / bandwidth if bandwidth is not None else 0.0


def reading_notes(problem: DlrmProblem) -> tuple[str, ...]:
    """Returns a note where storage is stated for a program that does not read by itself."""
    if problem.cluster.storage_bandwidth_bytes_per_s is None or read_bytes(problem):
        return ()
    return ("the rate of storage is not counted: the program leaves reading samples to you",)
