"""Validation of a study: candidates that were run for real, next to their predictions.

`validation.json` holds one :class:`Validation`, the latest; calibration factors of other
platforms, modes and trainers are carried over from the one before.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
import json
from typing import TYPE_CHECKING

from pydantic import model_validator
from pydantic_core import PydanticCustomError

from dse._io.reading import read_text
from dse._text.html import fields_html
from dse.config import Document, parse_json

if TYPE_CHECKING:
    from pathlib import Path


class ValidationMode(StrEnum):
    """How candidates are run.

    ``real``: as they are, a device (or CPU process) a rank. ``rank-serial``: the work of each
    rank in turn on one device, collectives by the model. ``scaled``: a smaller model on processes
    of this machine's CPU, for studies of other machines.
    """

    REAL = "real"
    RANK_SERIAL = "rank-serial"
    SCALED = "scaled"


@dataclass(frozen=True, slots=True)
class ValidatedCandidate:
    """One configuration of the study that was run.

    Attributes:
        number: Its trial.
        same: Other trials that are the same on this machine, so that one run stands for all.
        chosen: ``best`` or ``random``.
        world_size: Ranks in the study.
        global_batch_size: Samples of an iteration in the study.
        study_time_s: Iteration time that the study predicts on its own platform.
        run_world_size: Ranks of the run.
        run_batch_size: Samples of an iteration of the run.
        predicted_s: Predicted iteration time of what was run, where it was run.
        predicted_low_s: Lower end of its 90 % interval.
        predicted_high_s: Upper end.
        measured_s: Median of the measured iteration times.
        measured_low_s: Lower end of its 95 % interval; None with too few samples for one.
        measured_high_s: Upper end.
        samples_s: Iteration time of each round.
        iterations_per_sample: Iterations that a round's time is the mean of.
        processor_s: Processor time of an iteration on the busiest rank.
        settled: Whether the interval is as narrow as was asked for.
    """

    number: int
    same: tuple[int, ...]
    chosen: str
    world_size: int
    global_batch_size: int
    study_time_s: float
    run_world_size: int
    run_batch_size: int
    predicted_s: float
    predicted_low_s: float
    predicted_high_s: float
    measured_s: float
    measured_low_s: float | None
    measured_high_s: float | None
    samples_s: tuple[float, ...]
    iterations_per_sample: int
    processor_s: float
    settled: bool

    @property
    def error(self) -> float:
        """Predicted over measured, less 1."""
        return self.predicted_s / self.measured_s - 1.0

    @property
    def inside(self) -> bool:
        """Whether the measured time lies in the predicted interval."""
        return self.predicted_low_s <= self.measured_s <= self.predicted_high_s

    @property
    def predicted_sample_s(self) -> float:
        """Predicted time for one sample; what candidates of different batches are compared by."""
        return self.predicted_s / self.run_batch_size

    @property
    def measured_sample_s(self) -> float:
        """Measured time for one sample."""
        return self.measured_s / self.run_batch_size

    def ties_with(self, other: ValidatedCandidate) -> bool:
        """Whether the measured intervals, a sample each, overlap or are not known."""
        ends = []
        for one in (self, other):
            if one.measured_low_s is None or one.measured_high_s is None:
                return True
            ends.append(
                (one.measured_low_s / one.run_batch_size, one.measured_high_s / one.run_batch_size)
            )
        return ends[0][0] <= ends[1][1] and ends[1][0] <= ends[0][1]


@dataclass(frozen=True, slots=True)
class RankingMetrics:
    """How predictions and measurements agree, by the time for one sample.

    What depends on the measured order is None where there were too few rounds for the intervals of
    all candidates: the next round may turn it around.

    Attributes:
        favourite: Trial that is predicted fastest.
        fastest: Trial whose measured median is the least.
        top1_regret: How much slower than the fastest the favourite is, as a share.
        success: Whether that is at most 10 %.
        kendall_tau: Rank correlation; None, too, where there is no order to compare, as where the
            measured intervals of every pair overlap.
        pairwise_accuracy: Share of the counted pairs in the right order; None, too, without any.
        counted_pairs: Pairs whose measurements differ by more than 5 %.
        pairs: All pairs.
        tied_pairs: Pairs whose measured intervals overlap.
        coverage: Share of measurements inside their predicted intervals.
        study_kendall_tau: Rank correlation of the study's own predictions, on its own platform,
            with the measurements; None where there is no order to compare.
    """

    favourite: int
    fastest: int
    top1_regret: float | None
    success: bool | None
    kendall_tau: float | None
    pairwise_accuracy: float | None
    counted_pairs: int
    pairs: int
    tied_pairs: int
    coverage: float
    study_kendall_tau: float | None


@dataclass(frozen=True, slots=True)
class CalibrationFactor:
    """How far a platform's predictions were off as a whole.

    Attributes:
        platform: Platform that predicted.
        mode: How it was measured.
        candidates: How many runs it is from.
        factor: Geometric mean of measured over predicted iteration time, without any factor.
        spread: Geometric standard deviation of that; 1 where all are off by the same factor.
        trainer: What trained the candidates.
    """

    platform: str
    mode: ValidationMode
    candidates: int
    factor: float
    spread: float
    trainer: str = "reference"


@dataclass(frozen=True, slots=True)
class ValidationSetting:
    """Where and how candidates were run.

    Attributes:
        created: ISO date and time.
        mode: How candidates were run.
        device: ``cpu`` or ``cuda``.
        device_name: Processor or GPU.
        cores: Logical cores that could be used.
        memory_bytes: Memory of the machine, or of a GPU.
        threads: Threads of a rank.
        versions: `(name, version)` of Python, torch and others.
        platform: Platform of the predictions.
        applied_factor: Factor of an earlier validation that predictions were multiplied by.
        seed: Seed of the choice, the weights and the batches.
        budget_s: Time that was given.
        interrupted: Whether it was stopped before the end.
        words: What was run, and what it leaves out, in sentences.
        left_out: `(trial, reason)` of those that would have been chosen but cannot be run.
        trainer: What trained the candidates.
    """

    created: str
    mode: ValidationMode
    device: str
    device_name: str
    cores: int
    memory_bytes: float
    threads: int
    versions: tuple[tuple[str, str], ...]
    platform: str
    applied_factor: float
    seed: int
    budget_s: float
    interrupted: bool
    words: tuple[str, ...]
    left_out: tuple[tuple[int, str], ...]
    trainer: str = "reference"


class Validation(Document):
    """One validation of a study; the content of `validation.json`.

    Attributes:
        sentence: What to do, in one sentence.
        agreement: Figures over all candidates.
        candidates: What was run, in the order of the predictions.
        factors: Calibration factors, that of this run first.
        setting: Where and how.
    """

    sentence: str
    agreement: RankingMetrics
    candidates: tuple[ValidatedCandidate, ...]
    factors: tuple[CalibrationFactor, ...]
    setting: ValidationSetting

    @property
    def decided(self) -> bool:
        """Whether there were enough rounds for the measured intervals of all candidates."""
        return all(one.measured_low_s is not None for one in self.candidates)

    def __repr__(self) -> str:
        count = (
            "1 candidate" if len(self.candidates) == 1 else f"{len(self.candidates)} candidates"
        )
        return f"Validation({count}: {self.sentence})"

    def _repr_html_(self) -> str:
        """Shows predicted and measured times in a notebook."""
        fields = (
            (
                f"candidate {each.number}",
                f"predicted {1e3 * each.predicted_s:.4g} ms, measured "
                f"{1e3 * each.measured_s:.4g} ms ({100 * each.error:+.1f} %)",
            )
            for each in self.candidates
        )
        return fields_html(self.sentence, fields)

    @model_validator(mode="after")
    def _check(self) -> Validation:
        numbers = {candidate.number for candidate in self.candidates}
        for number in (self.agreement.favourite, self.agreement.fastest):
            if number not in numbers:
                raise PydanticCustomError(
                    "candidates",
                    "`agreement` names configuration {number}, which is not among `candidates`",
                    {"number": number},
                )
        for candidate in self.candidates:
            counts = (candidate.run_world_size, candidate.run_batch_size)
            if min(candidate.predicted_s, candidate.measured_s, *counts) <= 0:
                raise PydanticCustomError(
                    "candidates",
                    "configuration {number}: expected times, ranks and batch of more than 0",
                    {"number": candidate.number},
                )
        return self


def validation_to_json(validation: Validation) -> str:
    """Returns the text of `validation.json`."""
    return json.dumps(validation.model_dump(mode="json"), indent=1, allow_nan=False)


def read_validation(path: Path) -> Validation | None:
    """Reads `validation.json`; None if it does not exist.

    Raises:
        ConfigError: The file cannot be read or is damaged; every problem with its field.
    """
    if not path.is_file():
        return None
    return parse_json(read_text(path), Validation, file=str(path))
