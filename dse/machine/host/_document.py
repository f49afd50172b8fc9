"""YAML of a host profile."""

from __future__ import annotations

from dataclasses import fields
from datetime import date
from typing import TYPE_CHECKING, Annotated, Any, ClassVar

from pydantic import Field, field_validator, model_validator
from pydantic_core import PydanticCustomError

from dse._io.writing import write_atomically
from dse.config import (
    MAX_COUNT,
    SCHEMA_VERSION,
    Count,
    Document,
    NonNegativeFloat,
    Seconds,
    StrictModel,
    WholeNumber,
    parse_document,
    read_source,
)
from dse.machine.host._profile import (
    HOST_FIGURES,
    Figure,
    HostProfile,
    LaunchFigures,
    OperatorFigures,
    ProfileSource,
    SharedFigures,
)

if TYPE_CHECKING:
    from pathlib import Path

Name = Annotated[str, Field(min_length=1, max_length=4000)]
AsOf = Annotated[str, Field(pattern=r"^(\d{4}-(0[1-9]|1[0-2])-(0[1-9]|[12]\d|3[01])|unknown)$")]
Spread = Annotated[NonNegativeFloat, Field(le=10)]


class FigureBlock(StrictModel):
    """One overhead.

    Attributes:
        mean: Mean without outliers.
    """

    described_by: ClassVar = Figure

    mean: Seconds
    spread: Spread
    count: Count


class SourceBlock(StrictModel):
    """Origin of a profile."""

    described_by: ClassVar = ProfileSource

    files: list[Name]
    devices: list[Name] = Field(default_factory=list)
    as_of: AsOf = "unknown"

    @field_validator("as_of")
    @classmethod
    def _is_a_day(cls, value: str) -> str:
        if value != "unknown":
            try:
                date.fromisoformat(value)
            except ValueError:
                raise PydanticCustomError(
                    "date", "expected a day such as `2024-05-31`, found `{day}`", {"day": value}
                ) from None
        return value


class SharedBlock(StrictModel):
    """Figures over all operators; omitted where the traces hold no sample."""

    described_by: ClassVar = SharedFigures

    between_operators: FigureBlock | None = None
    before_launch: FigureBlock | None = None
    after_launch: FigureBlock | None = None
    launch: FigureBlock | None = None
    between_launches: FigureBlock | None = None
    graph_launch: FigureBlock | None = None
    without_launches: FigureBlock | None = None


class OperatorBlock(StrictModel):
    """Figures of one operator."""

    described_by: ClassVar = OperatorFigures

    calls: Annotated[WholeNumber, Field(ge=0, le=MAX_COUNT)] = 0
    launches: NonNegativeFloat = 0.0
    before_launch: FigureBlock | None = None
    after_launch: FigureBlock | None = None
    between_launches: FigureBlock | None = None
    without_launches: FigureBlock | None = None

    @model_validator(mode="after")
    def _check(self) -> OperatorBlock:
        if (self.calls > 0) != (self.launches > 0) or 0 < self.launches < 1:
            raise PydanticCustomError(
                "launches",
                "expected `launches` of at least 1 for an operator with `calls`, and 0 without",
            )
        return self


class HostProfileDocument(Document):
    """Host overheads measured from traces."""

    called: ClassVar = "a host profile"
    described_by: ClassVar = HostProfile

    name: Name
    source: SourceBlock
    shared: SharedBlock
    launches: dict[Name, FigureBlock] = Field(default_factory=dict)
    operators: dict[Name, OperatorBlock] = Field(default_factory=dict)


def load_host_profile(path: str | Path) -> HostProfile:
    """Reads a host profile.

    Raises:
        ConfigError: The file is missing or invalid; every problem is listed with its location.
    """
    return host_profile_from_text(read_source(path).text, str(path))


def host_profile_from_text(text: str, file: str) -> HostProfile:
    """Returns the profile of a file's text; see :func:`load_host_profile`.

    Args:
        text: The text.
        file: The file, for messages.
    """
    document = parse_document(text, HostProfileDocument, file=file)
    source = document.source
    shared = {f.name: _figure(getattr(document.shared, f.name)) for f in fields(SharedFigures)}
    return HostProfile(
        document.name,
        ProfileSource(tuple(source.files), tuple(source.devices), source.as_of),
        SharedFigures(**shared),
        tuple(
            OperatorFigures(
                name,
                block.calls,
                block.launches,
                _figure(block.before_launch),
                _figure(block.after_launch),
                _figure(block.between_launches),
                _figure(block.without_launches),
            )
            for name, block in sorted(document.operators.items())
        ),
        tuple(
            LaunchFigures(function, Figure(block.mean, block.spread, block.count))
            for function, block in sorted(document.launches.items())
        ),
    )


def write_host_profile(path: Path, profile: HostProfile) -> None:
    """Writes a host profile atomically.

    Raises:
        StudyError: The folder cannot be written.
    """
    write_atomically(path, host_profile_text(profile))


def host_profile_text(profile: HostProfile) -> str:
    """Returns the YAML of a host profile; times have six significant digits."""
    document: dict[str, object] = {
        "schema_version": SCHEMA_VERSION,
        "name": profile.name,
        "source": {
            "files": list(profile.source.files),
            "devices": list(profile.source.devices),
            "as_of": profile.source.as_of,
        },
        "shared": _blocks(profile.shared),
        "launches": {known.function: _block(known.duration) for known in profile.launches},
        "operators": {
            known.name: {
                **({"calls": known.calls} if known.calls else {}),
                **({"launches": float(f"{known.launches:.6g}")} if known.calls else {}),
                **_blocks(known),
            }
            for known in profile.operators
        },
    }
    return _dump(document)


def platform_host_block(profile: HostProfile) -> str:
    """Returns the `host:` block of a platform's YAML.

    A comment names missing figures, most often the launch of a graph.
    """
    figures = {name: getattr(profile.shared, name) for name in HOST_FIGURES}
    devices = ", ".join(profile.source.devices) or "unknown devices"
    block: dict[str, object] = {
        name: _microseconds(figure.mean_s) for name, figure in figures.items() if figure
    }
    block["origin"] = "measured"
    block["source"] = f"host overheads of traces on {devices}: {profile.name}"[:200]
    block["as_of"] = profile.source.as_of
    missing = ", ".join(name for name, figure in figures.items() if figure is None)
    note = f"# not in these traces, to be added: {missing}\n" if missing else ""
    return note + _dump({"host": block})


def _dump(document: dict[str, object]) -> str:
    import yaml

    class Dumper(yaml.SafeDumper):
        """Writes the figures of one overhead on one line."""

    def mapping(dumper: yaml.SafeDumper, data: dict[str, object]) -> yaml.MappingNode:
        flow = set(data) == {"mean", "spread", "count"}
        return dumper.represent_mapping("tag:yaml.org,2002:map", data.items(), flow_style=flow)

    Dumper.add_representer(dict, mapping)
    text: str = yaml.dump(document, Dumper=Dumper, sort_keys=False, allow_unicode=True, width=4096)
    return text


def _figure(block: FigureBlock | None) -> Figure | None:
    return None if block is None else Figure(block.mean, block.spread, block.count)


def _blocks(figures: Any) -> dict[str, object]:
    found = ((field.name, getattr(figures, field.name)) for field in fields(figures))
    return {name: _block(value) for name, value in found if isinstance(value, Figure)}


def _block(figure: Figure) -> dict[str, object]:
    return {
        "mean": _microseconds(figure.mean_s),
        "spread": float(f"{figure.spread:.4g}"),
        "count": figure.count,
    }


def _microseconds(seconds: float) -> str:
    return f"{1e6 * seconds:.6g} us"
