"""A study directory: what it holds and how it is written and read.

::

    study.yaml      inputs with their digests, settings, versions
    journal.log     Optuna journal of finished trials; what --resume reads
    trials.parquet  one row a configuration
    trials.csv      the same
    pareto.csv      the rows on the front, best first in the leading objective
    report.html     one self-contained page
    validation.json candidates that `dse validate` ran, beside their predictions
    plans/<n>.json  the sharding plan of each configuration on the front

Everything but the journal is written by replacing whole files, so a reader never sees half of one.
"""

from __future__ import annotations

from dataclasses import dataclass
import io
from pathlib import Path
from typing import TYPE_CHECKING

from dse._files import write_atomically
from dse.documents import Document, StrictModel, load_document
from dse.errors import StudyError
from dse.search._records import InputFile
from dse.search._tables import trial_table
from dse.search._trace_types import StudyTrace
from dse.search._validation import read_validation, validation_to_json
from dse.sharding import plan_to_json
from dse.space import Metric, Objective, Parameter, SamplerName, WorkloadKind
from dse.transformers import StepConfiguration, configuration_to_json

if TYPE_CHECKING:
    from collections.abc import Sequence

    from dse.prediction import Configuration
    from dse.search._records import StudyResult
    from dse.search._validation import Validation


class InputBlock(StrictModel):
    """One input file, kept whole so that the study can be read without it."""

    role: str
    name: str
    path: str
    sha256: str
    text: str


class VersionBlock(StrictModel):
    """A package that took part."""

    package: str
    version: str


class AxisBlock(StrictModel):
    """One objective."""

    metric: Metric
    maximize: bool


class ChoiceBlock(StrictModel):
    """One outer parameter."""

    name: str
    choices: list[bool | int | float | str]


class StudyDocument(Document):
    """`study.yaml`: what a study was made from."""

    name: str
    model: str | None = None
    kind: WorkloadKind | None = None
    trace: StudyTrace | None = None
    objectives: list[AxisBlock]
    parameters: list[ChoiceBlock]
    created: str
    seed: int
    trials: int
    sampler: SamplerName
    versions: list[VersionBlock]
    inputs: list[InputBlock]


@dataclass(frozen=True, slots=True)
class StudyHeader:
    """What is fixed when a study starts.

    Attributes:
        name: Study name.
        model: Name of the model, or of the file or folder of the trace.
        objectives: Axes of the front.
        parameters: Outer parameters.
        created: ISO date and time of the start.
        seed: Seed.
        trials: Configurations to evaluate.
        sampler: Sampler.
        versions: `(package, version)` pairs.
        inputs: Every input file.
        trace: The captured step; None in studies of a model.
        kind: What kind of workload it is.
    """

    name: str
    model: str
    objectives: tuple[Objective, ...]
    parameters: tuple[Parameter, ...]
    created: str
    seed: int
    trials: int
    sampler: SamplerName
    versions: tuple[tuple[str, str], ...]
    inputs: tuple[InputFile, ...]
    trace: StudyTrace | None = None
    kind: WorkloadKind = WorkloadKind.DLRM


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
    def validation(self) -> Path:
        """Path of `validation.json`."""
        return self.root / "validation.json"

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
        import yaml

        document = StudyDocument(
            schema_version=1,
            name=header.name,
            model=header.model if header.trace is None else None,
            kind=header.kind,
            trace=header.trace,
            objectives=[
                AxisBlock(metric=axis.metric, maximize=axis.maximize) for axis in header.objectives
            ],
            parameters=[
                ChoiceBlock(name=parameter.name, choices=list(parameter.choices))
                for parameter in header.parameters
            ],
            created=header.created,
            seed=header.seed,
            trials=header.trials,
            sampler=header.sampler,
            versions=[VersionBlock(package=name, version=text) for name, text in header.versions],
            inputs=[
                InputBlock(
                    role=file.role,
                    name=file.name,
                    path=file.path,
                    sha256=file.sha256,
                    text=file.text,
                )
                for file in header.inputs
            ],
        )
        text = yaml.safe_dump(
            document.model_dump(mode="json", exclude_none=True),
            sort_keys=False,
            allow_unicode=True,
            width=100,
        )
        write_atomically(self.header, text)

    def read_header(self) -> StudyHeader:
        """Reads `study.yaml`.

        Raises:
            StudyError: The folder is not a study.
            ConfigError: The file is damaged; every problem with its place.
        """
        if not self.header.is_file():
            raise StudyError(f"{self.root} is not a study directory: it has no study.yaml")
        document = load_document(self.header, StudyDocument)
        return StudyHeader(
            name=document.name,
            model=_workload_name(document),
            objectives=tuple(
                Objective(block.metric, block.maximize) for block in document.objectives
            ),
            parameters=tuple(
                Parameter(block.name, tuple(block.choices)) for block in document.parameters
            ),
            created=document.created,
            seed=document.seed,
            trials=document.trials,
            sampler=document.sampler,
            versions=tuple((block.package, block.version) for block in document.versions),
            inputs=tuple(
                InputFile(block.role, block.name, block.path, block.sha256, block.text)
                for block in document.inputs
            ),
            trace=document.trace,
            kind=_workload_kind(document),
        )

    def write_tables(self, study: StudyResult, parameters: Sequence[Parameter]) -> None:
        """Writes the trial tables, the front and the front's plans.

        Raises:
            StudyError: The folder cannot be written.
        """
        trials = trial_table(study.records, parameters, kind=study.kind)
        write_atomically(self.trials, trials.to_csv(index=False, lineterminator="\n"))
        parquet = io.BytesIO()
        trials.to_parquet(parquet, index=False)
        write_atomically(self.root / "trials.parquet", parquet.getvalue())
        front = trial_table(study.front, parameters, kind=study.kind)
        write_atomically(self.pareto, front.to_csv(index=False, lineterminator="\n"))
        plans = self.root / "plans"
        written = set()
        for record in study.front:
            if record.configuration is not None:
                path = plans / f"{record.number}.json"
                write_atomically(path, _plan_text(record.configuration, study.model_name))
                written.add(path.name)
        for stale in plans.glob("*.json"):
            if stale.name not in written:
                stale.unlink()


def _plan_text(configuration: Configuration | StepConfiguration, model_name: str) -> str:
    """Returns what is deployed: a sharding plan, or how a transformer's step is spread."""
    if isinstance(configuration, StepConfiguration):
        return configuration_to_json(configuration, model_name)
    return plan_to_json(configuration.plan, model_name)


def _workload_kind(document: StudyDocument) -> WorkloadKind:
    """Studies that say nothing are of the kinds that there were before transformers."""
    if document.kind is not None:
        return document.kind
    return WorkloadKind.DLRM if document.trace is None else WorkloadKind.TRACE


def _workload_name(document: StudyDocument) -> str:
    if document.trace is not None:
        return Path(document.trace.path).name or document.trace.path
    return document.model or ""
