"""What is fixed when a study starts, as values and as the text of `study.yaml`."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from pydantic import Field

from dse.config import Document, StrictModel
from dse.search._records import InputFile
from dse.search._records import StudyTrace
from dse.search.space import Objective, SamplerName, WorkloadKind
from dse.workload import Metric, Parameter


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
    choices: Annotated[list[bool | int | float | str], Field(min_length=1)]


class StorageBlock(StrictModel):
    """The database that the study shares with other runs."""

    url: str
    study: str
    stream: int


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
    storage: StorageBlock | None = None


@dataclass(frozen=True, slots=True)
class StorageNote:
    """Where else a study is kept.

    Attributes:
        url: URL of the database, without password.
        study: Name of the study there.
        stream: Stream of random numbers that the sampler of this folder's run takes.
    """

    url: str
    study: str
    stream: int


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
        storage: The database that several runs share; None for a study of one run.
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
    storage: StorageNote | None = None


def header_to_yaml(header: StudyHeader) -> str:
    """Returns the text of `study.yaml`."""
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
        storage=None
        if header.storage is None
        else StorageBlock(
            url=header.storage.url,
            study=header.storage.study,
            stream=header.storage.stream,
        ),
    )
    text: str = yaml.safe_dump(
        document.model_dump(mode="json", exclude_none=True),
        sort_keys=False,
        allow_unicode=True,
        width=100,
    )
    return text


def header_from_document(document: StudyDocument) -> StudyHeader:
    """Returns what a checked `study.yaml` says."""
    return StudyHeader(
        name=document.name,
        model=_workload_name(document),
        objectives=tuple(Objective(block.metric, block.maximize) for block in document.objectives),
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
        storage=None
        if document.storage is None
        else StorageNote(document.storage.url, document.storage.study, document.storage.stream),
    )


def _workload_kind(document: StudyDocument) -> WorkloadKind:
    """Studies that say nothing are of the kinds that there were before transformers."""
    if document.kind is not None:
        return document.kind
    return WorkloadKind.DLRM if document.trace is None else WorkloadKind.TRACE


def _workload_name(document: StudyDocument) -> str:
    if document.trace is not None:
        return Path(document.trace.path).name or document.trace.path
    return document.model or ""
