"""Workload blocks of a search space: a model, or a captured job."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from pydantic import Field

from dse.config import MAX_COUNT, Count, Examples, StrictModel, WholeNumber, from_folder, known_to
from dse.machine.platforms import list_platforms
from dse.model import find_model, list_models
from dse.workload import SAMPLE_FIGURES, Metric, Name


@dataclass(frozen=True, slots=True)
class ModelReference:
    """A model that is trained.

    Attributes:
        model: Its name or path.
        kind: Kind of workload that the parameters are for.
    """

    model: str
    kind: str = "dlrm"

    @property
    def name(self) -> str:
        """Name or path of the model."""
        return self.model


@dataclass(frozen=True, slots=True)
class TraceReference:
    """A captured job.

    Attributes:
        trace: File or folder of its Kineto traces, as it was written.
        folder: Folder that the path is relative to; empty for the current one.
        platform: What it was captured on, by name or file; empty to find it by the device's name.
        step: Number of a profiler step or name of an annotation; the last step if None.
        samples_per_step: Samples of the captured step over all ranks; None if not known.
    """

    trace: str
    folder: str = ""
    platform: str = ""
    step: int | str | None = None
    samples_per_step: int | None = None

    @property
    def kind(self) -> str:
        """A trace."""
        return "trace"

    @property
    def name(self) -> str:
        """Name of the file or folder."""
        return Path(self.trace).name or self.trace

    @property
    def path(self) -> Path:
        """Where the traces are."""
        return Path(self.folder) / self.trace


class ModelWorkloadBlock(StrictModel):
    """A model that is trained; the parameters say which kind of model.

    Attributes:
        model: Name of the model, or its file from the folder of this one.
    """

    model: Annotated[Name, Examples(list_models), known_to(find_model)]

    def missing_for(self, metric: Metric) -> str:
        """Returns the field without which a metric is not known; a model has them all."""
        del metric
        return ""

    def to_reference(self, folder: str, kind: str) -> ModelReference:
        """Returns the plain value; a path is relative to the folder of the space's file."""
        return ModelReference(from_folder(self.model, folder), kind)


class TraceWorkloadBlock(StrictModel):
    """A captured job: its Kineto traces, and what they do not say.

    Attributes:
        trace: File or folder of the traces, from the folder of this file.
        platform: What it was captured on, by name or file from the folder of this one; found by
            the device's name by default.
        step: Number of a profiler step or name of an annotation; the last step by default.
        samples_per_step: Samples of the captured step over all ranks.
    """

    trace: Name
    platform: Annotated[str, Examples(list_platforms)] = ""
    step: Annotated[WholeNumber, Field(ge=0, le=MAX_COUNT)] | Name | None = None
    samples_per_step: Count | None = None

    def missing_for(self, metric: Metric) -> str:
        """Returns the field without which a metric is not known; empty if it is."""
        needs = self.samples_per_step is None and metric.needs(*SAMPLE_FIGURES)
        return "samples_per_step" if needs else ""

    def to_reference(self, folder: str, kind: str) -> TraceReference:
        """Returns the plain value; paths are relative to the folder of the space's file."""
        del kind
        platform = from_folder(self.platform, folder)
        return TraceReference(self.trace, folder, platform, self.step, self.samples_per_step)
