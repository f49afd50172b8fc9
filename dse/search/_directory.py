"""Study directory: its files, and how they are written and read.

::

    study.yaml      inputs with their digests, settings, versions
    run.lock        which run is writing; only while one is
    journal.log     Optuna journal of finished trials; what --resume reads
    trials.csv      one row a configuration
    trials.parquet  the same
    pareto.csv      the front, one row an outcome, best first in the leading objective
    report.html     one self-contained page
    failures.txt    configurations that failed, with tracebacks; only where some did
    validation.json candidates that `dse validate` ran, next to their predictions
    plans/<n>.json  the sharding plan of each configuration on the front

All files but the journal are replaced as a whole, so a reader never sees half of one.
"""

from __future__ import annotations

import contextlib
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from dse._io.reading import is_file, shown_path
from dse._io.writing import write_atomically
from dse.errors import StudyError
from dse.search._header import StudyHeader, header_to_yaml, load_header
from dse.search._tables import csv_text, parquet_bytes, trial_table
from dse.search._validation import read_validation, validation_to_json
from dse.search.analyse._outcomes import front_outcomes
from dse.search.execute import failures_text
from dse.workload import workload_kind

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from dse.search._records import StudyResult
    from dse.search._validation import Validation
    from dse.workload import Parameter


@dataclass(frozen=True, slots=True)
class StudyDirectory:
    """Paths of a study.

    Attributes:
        root: The folder.
    """

    root: Path

    @property
    def header(self) -> Path:
        """Path of `study.yaml`."""
        return self.root / "study.yaml"

    @property
    def journal(self) -> Path:
        """Path of `journal.log`."""
        return self.root / "journal.log"

    @property
    def report(self) -> Path:
        """Path of `report.html`."""
        return self.root / "report.html"

    @property
    def pareto(self) -> Path:
        """Path of `pareto.csv`."""
        return self.root / "pareto.csv"

    @property
    def trials(self) -> Path:
        """Path of `trials.csv`."""
        return self.root / "trials.csv"

    @property
    def parquet(self) -> Path:
        """Path of `trials.parquet`."""
        return self.root / "trials.parquet"

    @property
    def validation(self) -> Path:
        """Path of `validation.json`."""
        return self.root / "validation.json"

    @property
    def failures(self) -> Path:
        """Path of `failures.txt`."""
        return self.root / "failures.txt"

    def remove_leftovers(self) -> None:
        """Removes files that a killed run had not finished writing, where that is possible."""
        whole = (self.header, self.trials, self.parquet, self.pareto)
        names = [path.name for path in (*whole, self.report, self.validation, self.failures)]
        unfinished = [self.root.glob(f".{name}.????????") for name in names]
        unfinished.append((self.root / "plans").glob(".[0-9]*.json.????????"))
        for found in unfinished:
            for path in found:
                with contextlib.suppress(OSError):
                    path.unlink()

    def write_validation(self, validation: Validation) -> None:
        """Writes `validation.json`.

        Raises:
            StudyError: The folder cannot be written.
        """
        write_atomically(self.validation, validation_to_json(validation) + "\n")

    def read_validation(self) -> Validation | None:
        """Reads `validation.json`; None where the study was not validated.

        Raises:
            ConfigError: The file is damaged; every problem with its field.
        """
        return read_validation(self.validation)

    def write_header(self, header: StudyHeader) -> None:
        """Writes `study.yaml`.

        Raises:
            StudyError: The folder cannot be written.
        """
        write_atomically(self.header, header_to_yaml(header))

    def read_header(self) -> StudyHeader:
        """Reads `study.yaml`.

        Raises:
            StudyError: The folder is not a study.
            ConfigError: The file is damaged; every problem with its place.
        """
        self.check()
        return load_header(self.header)

    def check(self) -> None:
        """Refuses a folder without a study.

        Raises:
            StudyError: The folder is not a study.
        """
        if not is_file(self.header):
            raise StudyError(
                f"{shown_path(self.root)} is not a study directory: it has no study.yaml"
            )

    def write_tables(self, study: StudyResult, parameters: Sequence[Parameter]) -> None:
        """Writes the trial tables, the front, what failed, and the front's plans.

        Raises:
            StudyError: The folder cannot be written.
        """
        names = [parameter.name for parameter in parameters]
        trials = trial_table(study.records, names, kind=study.kind)
        write_atomically(self.trials, csv_text(trials))
        write_atomically(self.parquet, parquet_bytes(trials))
        front = trial_table(
            [
                replace(outcome.record, equal_count=outcome.equal)
                for outcome in front_outcomes(study)
            ],
            names,
            kind=study.kind,
        )
        write_atomically(self.pareto, csv_text(front))
        failures = failures_text(study.records)
        if failures:
            write_atomically(self.failures, failures)
        else:
            self.failures.unlink(missing_ok=True)
        plans = self.root / "plans"
        if plans.is_symlink():
            raise StudyError(f"{plans} is a link; plans are replaced there, so remove the link")
        written = set()
        for record in study.front:
            configuration = record.configuration
            if configuration is not None:
                path = plans / f"{record.number}.json"
                kind = workload_kind(configuration.kind)
                write_atomically(path, kind.deployment(configuration, study.model_name))
                written.add(path.name)
        for stale in plans.glob("*.json"):
            if stale.name not in written and stale.stem.isdecimal():
                stale.unlink()
