"""Notes of a validation: how candidates were run, and what that leaves out."""

from __future__ import annotations

import statistics
from typing import TYPE_CHECKING, Any

from dse.search import ValidationMode
from dse.validation.study._choose import configuration_of

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from dse.calibration.microbench import MachineInfo
    from dse.search import ValidatedCandidate
    from dse.validation._protocol import Trainer
    from dse.validation._types import Measurement
    from dse.validation.study.runs import PlannedRun, RunPlanner

#: Ratio of clock to processor time above which a note warns of disturbances.
_DISTURBED = 1.5


def setting_notes(
    planner: RunPlanner,
    runs: Sequence[PlannedRun],
    machine: MachineInfo,
    scaling: str,
) -> tuple[str, ...]:
    """Describes how candidates were run.

    Args:
        planner: What planned the runs.
        runs: The runs.
        machine: This machine.
        scaling: Description of the scaling; empty without scaling.
    """
    mode, trainer = planner.mode, planner.trainer
    ranks = sorted({run.candidate.world_size for run in runs})
    on = "the CPU" if machine.device == "cpu" else "GPUs"
    how = "gloo" if machine.device == "cpu" else "NCCL"
    sizes = " or ".join(map(str, ranks))
    notes = []
    if mode is ValidationMode.REAL:
        notes.append(
            f"Training processes on {on} of this machine by {trainer.title}, {sizes} ranks over "
            f"{how}; model, batch and plans as in the study."
        )
    elif mode is ValidationMode.RANK_SERIAL:
        notes.append(
            f"The work of each of {sizes} ranks, with its exact shards and indices, ran in turn "
            f"on one device ({machine.device}). Collectives were not run: an iteration is the "
            "longest rank's measured time and the exposed communication that the model predicts "
            "for it."
        )
    else:
        notes.append(
            "The study's machines are not available: a smaller model ran on "
            f"{sizes} CPU ranks of this machine over gloo by {trainer.title}, and was predicted: "
            f"{scaling}."
        )
        notes += _folding_notes(runs)
        notes += [planner.scaled_words] if planner.scaled_words else []
    notes += _program_notes(runs, trainer)
    together = mode is not ValidationMode.RANK_SERIAL and machine.device == "cpu"
    if together and max(ranks) > machine.cores:
        notes.append(
            f"{max(ranks)} ranks shared {machine.cores} cores; predictions assume separate "
            "cores, so compare the order rather than the times."
        )
    if len({run.candidate.global_batch_size for run in runs}) > 1:
        notes.append("Batches differ, so candidates are compared by the time for one sample.")
    return tuple(notes)


def divergence_notes(measured: Mapping[int, Measurement]) -> tuple[str, ...]:
    """Says whose training diverged.

    Args:
        measured: Measurements by trial number.
    """
    numbers = sorted(number for number, one in measured.items() if one.diverged)
    if not numbers:
        return ()
    noun = "candidate" if len(numbers) == 1 else "candidates"
    return (
        f"The training of {noun} {', '.join(map(str, numbers))} diverged: its loss was no finite "
        "number any more. The times are those of the same operations on such values; whether the "
        "model learns in this configuration was not tested.",
    )


def disturbance_notes(
    candidates: Sequence[ValidatedCandidate], mode: ValidationMode, machine: MachineInfo
) -> tuple[str, ...]:
    """Warns if clock times are much longer than processor times."""
    if machine.device != "cpu" or mode is ValidationMode.RANK_SERIAL:
        return ()
    ratio = statistics.median(one.measured_s / one.processor_s for one in candidates)
    if ratio <= _DISTURBED:
        return ()
    return (
        f"The clock time was {ratio:.1f} times the processor time of the busiest rank, so waiting "
        "and other programs were measured too. Measure again on an idle machine.",
    )


def _folding_notes(runs: Sequence[PlannedRun]) -> list[str]:
    sizes = {}
    for run in runs:
        sizes[configuration_of(run.record).world_size] = run.candidate.world_size
    folded = {size: ranks for size, ranks in sizes.items() if size != ranks}
    notes = []
    if folded:
        how = ", ".join(f"{size} ranks → {ranks}" for size, ranks in sorted(folded.items()))
        notes.append(
            f"Plans were folded ({how}): neighbouring ranks were merged, so imbalance among them "
            "is not measured."
        )
    if len(sizes) > 1:
        notes.append(
            "Candidates of different world sizes ran on the same ranks: the comparison covers "
            "plans and batches, but not the benefit of more devices."
        )
    return notes


def _program_notes(runs: Sequence[PlannedRun], trainer: Trainer[Any]) -> list[str]:
    changed = sorted(run.record.number for run in runs if run.other_program)
    if not changed:
        return []
    kept = f" apart from {trainer.keeps}" if trainer.keeps else ""
    return [
        f"Candidates {', '.join(map(str, changed))} ran, and were predicted, as the trainer's own "
        f"program (`{trainer.program}`){kept}."
    ]
