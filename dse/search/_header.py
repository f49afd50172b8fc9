"""Header of a study: everything that is fixed when it starts; the content of `study.yaml`."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from pydantic import field_validator
from pydantic_core import PydanticCustomError

from dse.config import Document, load_document
from dse.errors import ConfigError
from dse.search._certificate import Certificate
from dse.search._records import InputFile, StudyTrace
from dse.search.space import Constraint, Objective, SamplerName
from dse.workload import Parameter, workload_kind


@dataclass(frozen=True, slots=True)
class StorageNote:
    """The database that a study shares with other runs.

    Attributes:
        url: URL of the database, without password.
        study: Name of the study there.
        stream: Stream of random numbers that the sampler of this folder's run takes.
    """

    url: str
    study: str
    stream: int


@dataclass(frozen=True, slots=True)
class PackageVersion:
    """A package whose version can change results.

    Attributes:
        package: Name of the package.
        version: Its version.
    """

    package: str
    version: str


class StudyHeader(Document):
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
        versions: Packages that took part.
        inputs: Every input file, with its text: the study can be read without the files.
        kind: Kind of workload.
        trace: The captured step; None in studies of a model.
        storage: The database that several runs share; None for a study of one run.
        cost_model: Name of the function that answered in place of our performance model; None if
            none did.
        certificate: How much of the front can be missing; None where nothing was proven.
        constraints: Limits that feasible configurations keep.
        description: One line on what is searched; may be empty.
    """

    name: str
    model: str = ""
    objectives: tuple[Objective, ...]
    parameters: tuple[Parameter, ...]
    created: str
    seed: int
    trials: int
    sampler: SamplerName
    versions: tuple[PackageVersion, ...]
    inputs: tuple[InputFile, ...]
    kind: str = "dlrm"
    trace: StudyTrace | None = None
    storage: StorageNote | None = None
    cost_model: str | None = None
    certificate: Certificate | None = None
    constraints: tuple[Constraint, ...] = ()
    description: str = ""

    @field_validator("parameters")
    @classmethod
    def _have_choices(cls, parameters: tuple[Parameter, ...]) -> tuple[Parameter, ...]:
        for parameter in parameters:
            if not parameter.choices:
                raise PydanticCustomError(
                    "choices", "parameter `{name}` has no choices", {"name": parameter.name}
                )
        return parameters

    def with_changes(self, **changes: object) -> StudyHeader:
        """Returns a copy with some fields replaced."""
        return self.model_copy(update=changes)


def header_to_yaml(header: StudyHeader) -> str:
    """Returns the text of `study.yaml`."""
    import yaml

    fields = header.model_dump(mode="json")
    # The one of libyaml is ten times as fast, and texts of whole files are long.
    text: str = yaml.dump(
        {name: value for name, value in fields.items() if value is not None},
        Dumper=getattr(yaml, "CSafeDumper", yaml.SafeDumper),
        sort_keys=False,
        allow_unicode=True,
        width=100,
    )
    return text


def load_header(path: Path) -> StudyHeader:
    """Reads `study.yaml`.

    Raises:
        ConfigError: The file is damaged; every problem with its place.
    """
    header = load_document(path, StudyHeader)
    if header.trace is not None:
        # Older files name neither the trace nor the kind of workload.
        name = header.model or Path(header.trace.path).name or header.trace.path
        header = header.with_changes(model=name, kind="trace")
    try:
        metrics = [axis.metric for axis in header.objectives]
        for metric in (*metrics, *(constraint.metric for constraint in header.constraints)):
            workload_kind(header.kind).metric(metric)
    except ConfigError as error:
        raise ConfigError(f"{path}: objectives and constraints: {error}") from None
    return header
