"""Provenance of a platform's figures."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class PlatformFact:
    """One figure and where it comes from.

    Attributes:
        quantity: What it is, for example `device.memory.bandwidth`.
        value: For reading, with its unit.
        origin: `datasheet`, `measured`, `fitted`, `transferred`, `assumed` or `list price`.
        source: Citation.
        as_of: Date, or empty.
    """

    quantity: str
    value: str
    origin: str
    source: str
    as_of: str


@dataclass(frozen=True, slots=True)
class CalibrationSource:
    """A file of fitted models, or a host profile, that a platform uses.

    Attributes:
        name: As the platform names it.
        path: Where it was read; for built-in ones relative to the package's data.
        sha256: Digest of its bytes.
        text: Its text when it is not built in: what a study has to keep to stand alone.
    """

    name: str
    path: str
    sha256: str
    text: str = field(repr=False)
