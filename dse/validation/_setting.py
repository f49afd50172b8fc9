"""What was run, and what that leaves out, in sentences."""

from __future__ import annotations

import statistics
from typing import TYPE_CHECKING

from dse.search import ValidationMode
from dse.validation._plan_runs import trained_software
from dse.workload.dlrm import Configuration

if TYPE_CHECKING:
    from collections.abc import Sequence

    from dse.calibration.microbench import MachineInfo
    from dse.search import StudyResult, ValidatedCandidate
    from dse.validation._plan_runs import PlannedRun

#: Clock time over processor time from which on a reader is told.
_DISTURBED = 1.5


def words_of(
    study: StudyResult,
    mode: ValidationMode,
    runs: Sequence[PlannedRun],
    machine: MachineInfo,
    scale_words: str,
) -> tuple[str, ...]:
    """Says how candidates were run.

    Args:
        study: The study.
        mode: How they were run.
        runs: What was run.
        machine: Where.
        scale_words: What scaling did to the model; empty where it was not scaled.
    """
    ranks = sorted({run.candidate.configuration.world_size for run in runs})
    on = "the CPU" if machine.device == "cpu" else "GPUs"
    how = "gloo" if machine.device == "cpu" else "NCCL"
    sizes = " or ".join(str(one) for one in ranks)
    words = []
    if mode is ValidationMode.REAL:
        words.append(
            f"Training processes on {on} of this machine, {sizes} ranks over {how}; model, batch "
            "and plans as in the study."
        )
    elif mode is ValidationMode.RANK_SERIAL:
        words.append(
            f"The work of each of {sizes} ranks, with its exact shards and indices, ran in turn "
            f"on one device ({machine.device}). Collectives were not run: an iteration is the "
            "longest rank's measured time and the exposed communication that the model predicts "
            "for it."
        )
    else:
        words.append(
            f"The study's machines are not here: a smaller model ran on {sizes} CPU ranks of this "
            f"machine over gloo, and the predictions are of that: {scale_words}."
        )
        words += _folding_words(runs)
    words += _changed_words(runs)
    together = mode is not ValidationMode.RANK_SERIAL and machine.device == "cpu"
    if together and max(ranks) > machine.cores:
        words.append(
            f"{max(ranks)} ranks shared {machine.cores} cores; predictions give each rank cores "
            "of its own, so compare the order and not the times."
        )
    if len({run.candidate.configuration.global_batch_size for run in runs}) > 1:
        words.append("Batches differ, so candidates are compared by the time for one sample.")
    return tuple(words)


def disturbance_words(
    candidates: Sequence[ValidatedCandidate], mode: ValidationMode, machine: MachineInfo
) -> tuple[str, ...]:
    """Says so where the clock ran far ahead of the processors of the ranks."""
    if machine.device != "cpu" or mode is ValidationMode.RANK_SERIAL:
        return ()
    ratio = statistics.median(one.measured_s / one.processor_s for one in candidates)
    if ratio <= _DISTURBED:
        return ()
    return (
        f"The clock took {ratio:.1f} times the processor time of the busiest rank: waiting and "
        "other programs were measured, too. Measure again on a machine that does nothing else.",
    )


def _folding_words(runs: Sequence[PlannedRun]) -> list[str]:
    sizes = {}
    for run in runs:
        own = run.record.configuration
        assert isinstance(own, Configuration)
        sizes[own.world_size] = run.candidate.configuration.world_size
    folded = {size: ranks for size, ranks in sizes.items() if size != ranks}
    words = []
    if folded:
        how = ", ".join(f"{size} ranks → {ranks}" for size, ranks in sorted(folded.items()))
        words.append(
            f"Plans were folded ({how}): neighbouring ranks became one that holds what they held, "
            "so imbalance among them is not seen."
        )
    if len(sizes) > 1:
        words.append(
            "Candidates of different world sizes ran on what this machine has: how plans and "
            "batches compare is seen, what more devices bring is not."
        )
    words.append("The dense part ran in fp32.")
    return words


def _changed_words(runs: Sequence[PlannedRun]) -> list[str]:
    changed = []
    for run in sorted(runs, key=lambda one: one.record.number):
        own = run.record.configuration
        assert isinstance(own, Configuration)
        if trained_software(own.software) != own.software:
            changed.append(str(run.record.number))
    if not changed:
        return []
    return [
        f"Candidates {', '.join(changed)} ran, and were predicted, as the trainer's own program "
        "(profile `dse_trainer`) apart from prefetching, overlap, buckets and wire precision."
    ]
