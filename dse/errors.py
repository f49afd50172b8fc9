"""Exceptions of `dse`.

All derive from :class:`DseError`, so callers can catch the whole family and the command line can
turn any of them into one line. A message states the value, the limit and the next step.
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


#: Most problems, and characters of each, that a message shows.
_MAX_PROBLEMS = 100
_MAX_CHARACTERS = 1000


class DseError(Exception):
    """Root of all errors that `dse` raises deliberately.

    Attributes:
        key: Field, option or variable at fault; empty if there is none.
        value: Offending value, if the error is about one.
        limit: Limit that the value exceeds, if there is one.
        hint: Next step, as in the message; empty if there is none.
    """

    def __init__(
        self,
        message: str = "",
        *,
        key: str = "",
        value: object = None,
        limit: float | None = None,
        hint: str = "",
    ) -> None:
        self.key = key
        self.value = value
        self.limit = limit
        self.hint = hint
        super().__init__(message)


@dataclass(frozen=True, slots=True)
class Diagnostic:
    """One problem in an input file, formatted like a compiler's message.

    Attributes:
        file: Path as the user gave it.
        line: 1-based line; None for the whole file.
        column: 1-based column; None for the whole line or file.
        field: Dotted path of the field, for example ``tables[3].rows``; empty for the document.
        message: What was found, what was expected, and how to fix it.
    """

    file: str
    line: int | None
    column: int | None
    field: str
    message: str

    def __str__(self) -> str:
        place = ":".join(str(part) for part in (self.file, self.line, self.column) if part)
        parts = (place, _truncated(self.field), _truncated(self.message))
        return ": ".join(part for part in parts if part)


def _truncated(text: str) -> str:
    return text if len(text) <= _MAX_CHARACTERS else f"{text[:_MAX_CHARACTERS]}…"


class ConfigError(DseError):
    """One or more problems in a file or an argument written by the user.

    Attributes:
        diagnostics: All problems, in file order; empty if the problem has no place.
    """

    def __init__(
        self,
        message: str = "",
        diagnostics: tuple[Diagnostic, ...] = (),
        *,
        key: str = "",
        value: object = None,
        limit: float | None = None,
        hint: str = "",
    ) -> None:
        self.diagnostics = diagnostics
        lines = [message] if message else []
        lines += [str(diagnostic) for diagnostic in diagnostics[:_MAX_PROBLEMS]]
        if len(diagnostics) > _MAX_PROBLEMS:
            lines.append(f"and {len(diagnostics) - _MAX_PROBLEMS} more problems")
        super().__init__("\n".join(lines), key=key, value=value, limit=limit, hint=hint)


class UnknownNameError(ConfigError):
    """No model, platform, search space or network has this name."""


class CalibrationError(DseError):
    """Measurements or a calibration that cannot be used."""


class PlanError(DseError):
    """A sharding plan that does not describe the model or the cluster it is used with."""


class InfeasibleError(DseError):
    """A request that no configuration can satisfy."""


class SimulationError(DseError):
    """An execution graph that cannot run, for example because its dependencies form a cycle."""


class StudyError(DseError):
    """A study directory that cannot be read, resumed or written."""


class WorkerError(DseError):
    """A worker or rank process that died or raised.

    Attributes:
        rank: Rank that failed; None if unknown or not a rank.
    """

    def __init__(
        self, message: str = "", *, rank: int | None = None, limit: float | None = None
    ) -> None:
        self.rank = rank
        super().__init__(message, limit=limit)


class OptionalDependencyError(DseError):
    """An optional package is not installed; the message names the extra."""
