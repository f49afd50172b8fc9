"""Findings: the lines of a checkup."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class Status(StrEnum):
    """Severity of a finding.

    `missing` is optional and not installed; `broken` is something that every command needs.
    """

    OK = "ok"
    WARNING = "warning"
    MISSING = "missing"
    BROKEN = "broken"


class Topic(StrEnum):
    """Section of the checkup, in the order in which they are printed."""

    MACHINE = "machine"
    PACKAGES = "packages"
    PLATFORMS = "platforms"


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that was checked.

    Attributes:
        topic: Section.
        subject: Name of the thing.
        status: Severity.
        text: What was found.
        next_step: How to fix it; empty if there is nothing to do.
    """

    topic: Topic
    subject: str
    status: Status
    text: str
    next_step: str = ""


def finding(
    topic: Topic, subject: str, text: str, next_step: str = "", bad: Status = Status.WARNING
) -> Finding:
    """Returns a finding: fine if there is nothing to do, else as bad as given."""
    return Finding(topic, subject, bad if next_step else Status.OK, text, next_step)
