"""Workloads that train a model of this package."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dse.workload._workload import Workload

if TYPE_CHECKING:
    from dse.machine import Precision
    from dse.model import DlrmModel, TransformerModel


class ModelWorkload(Workload):
    """A workload that trains a model of this package, which has a recipe of its own.

    Attributes:
        model: What is trained.
    """

    if TYPE_CHECKING:

        @property
        def model(self) -> DlrmModel | TransformerModel:
            """What is trained."""

    @property
    def name(self) -> str:
        """Name of the model."""
        return self.model.name

    @property
    def description(self) -> str:
        """The model's own line for listings."""
        return self.model.description

    @property
    def precision(self) -> Precision:
        """Arithmetic of the model's own recipe."""
        return self.model.precision

    @property
    def global_batch_size(self) -> int:
        """Samples of one iteration in the model's own recipe."""
        return self.model.global_batch_size
