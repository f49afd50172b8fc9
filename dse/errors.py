"""The exceptions that `dse` raises on purpose.

Everything derives from :class:`DseError`, so a caller can catch the family and the command line
can turn any of them into one clear line. A message states the value, the limit and the next step.
"""

from __future__ import annotations

from dataclasses import dataclass

__all__ = [
    "CalibrationError",
    "ConfigError",
    "Diagnostic",
    "DseError",
    "InfeasibleError",
    "OptionalDependencyError",
    "PlanError",
    "SimulationError",
    "StudyError",
    "UnknownNameError",
    "WorkerError",
]


#: Problems and signs of one that a message shows; files of strangers may have any number.
_MOST_SHOWN = 100
_MOST_SIGNS = 1000


class DseError(Exception):
    """Root of all errors that `dse` raises on purpose."""


@dataclass(frozen=True, slots=True)
class Diagnostic:
    """One problem at one place of an input file, in the manner of a compiler.

    Attributes:
        file: Path as the user gave it.
        line: 1-based line, or ``None`` when the whole file is meant.
        column: 1-based column, or ``None`` when the whole line or file is meant.
        field: Dotted path of the field, for example ``tables[3].rows``; empty for the document.
        message: What was found, what was expected, and where it helps how to mend it.
    """

    file: str
    line: int | None
    column: int | None
    field: str
    message: str

    def __str__(self) -> str:
        place = ":".join(str(part) for part in (self.file, self.line, self.column) if part)
        parts = (
            (place, _cut(self.field), _cut(self.message))
            if self.field
            else (
                place,
                _cut(self.message),
            )
        )
        return ": ".join(parts)


def _cut(text: str) -> str:
    return text if len(text) <= _MOST_SIGNS else f"{text[:_MOST_SIGNS]}…"


class ConfigError(DseError):
    """One or more problems in a file or an argument that a person wrote.

    Attributes:
        diagnostics: Every problem found, in file order; empty when the problem has no place.
    """

    def __init__(self, message: str = "", diagnostics: tuple[Diagnostic, ...] = ()) -> None:
        self.diagnostics = diagnostics
        lines = [message] if message else []
        lines += [str(diagnostic) for diagnostic in diagnostics[:_MOST_SHOWN]]
        if len(diagnostics) > _MOST_SHOWN:
            lines.append(f"and {len(diagnostics) - _MOST_SHOWN} more problems")
        super().__init__("\n".join(lines))


class UnknownNameError(ConfigError):
    """A model, platform, search space or network that does not exist by that name."""


class CalibrationError(DseError):
    """Measurements or a calibration that cannot be used."""


class PlanError(DseError):
    """A sharding plan that does not describe the model or the cluster it is used with."""


class InfeasibleError(DseError):
    """A request that no configuration can satisfy, with the reason in words."""


class SimulationError(DseError):
    """An execution graph that cannot run, for example because its dependencies form a cycle."""


class StudyError(DseError):
    """A study directory that cannot be read, resumed or written."""


class WorkerError(DseError):
    """An evaluator process that died or raised."""


class OptionalDependencyError(DseError):
    """A feature whose optional package is not installed; the message names the extra."""
