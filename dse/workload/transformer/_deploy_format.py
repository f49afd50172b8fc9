"""Configuration formats of training frameworks; what one cannot express is refused by name."""

from __future__ import annotations

from dataclasses import MISSING, dataclass, fields, is_dataclass
from enum import Enum
from typing import TYPE_CHECKING

from dse.errors import ConfigError
from dse.workload._launch import LaunchMode
from dse.workload.transformer._types import Capture

if TYPE_CHECKING:
    from collections.abc import Callable

    from _typeshed import DataclassInstance

    from dse.workload.transformer._job import TransformerJob


@dataclass(frozen=True, slots=True)
class DeployFormat:
    """The format in which a training framework takes a configuration.

    Attributes:
        name: As `dse export --format` has it.
        framework: Name of the framework in messages.
        text: Writes a job in this format; raises :class:`ConfigError` for values that the
            framework does not have.
        parallelism: Fields of :class:`Parallelism` that the format can express.
        model: Optional fields of models, and of their experts, that it can express.
        captures: Whether it can have passes of layers captured as CUDA graphs.
    """

    name: str
    framework: str
    text: Callable[[TransformerJob], str]
    parallelism: frozenset[str]
    model: frozenset[str] = frozenset()
    captures: bool = False

    def write(self, job: TransformerJob) -> str:
        """Returns a job in this format.

        Raises:
            ConfigError: The format cannot express a part of the model or of the parallelism, or
                captured graphs.
        """
        if job.captured is Capture.LAYERS and not self.captures:
            raise self.refusal(f"launch {job.software.launch}", f"use {LaunchMode.EAGER}")
        self._refuse(job.parallelism, self.parallelism)
        self._refuse(job.model, self.model)
        if job.model.experts is not None:
            self._refuse(job.model.experts, self.model)
        return self.text(job)

    def refusal(self, what: str, instead: str) -> ConfigError:
        """Returns the error for something that the framework does not have.

        Args:
            what: The thing, such as ``pipeline 4``.
            instead: What to do.
        """
        return ConfigError(f"--format {self.name}: {self.framework} has no {what}; {instead}")

    def _refuse(self, part: DataclassInstance, known: frozenset[str]) -> None:
        for field in fields(part):
            value = getattr(part, field.name)
            if field.default is MISSING or value == field.default or field.name in known:
                continue
            raise self.refusal(
                f"setting for {field.name}{_shown(value)}", "use --format json or yaml"
            )


def _shown(value: object) -> str:
    """A value after its name, as options write it; nothing for a part of a model."""
    if is_dataclass(value):
        return ""
    if isinstance(value, tuple):
        return f" {'+'.join(map(str, value))}"
    return f" {value.value if isinstance(value, Enum) else value}"
