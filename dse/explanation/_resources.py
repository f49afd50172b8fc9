"""Resources that each task keeps busy, and its duration when one of them is faster."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING

import numpy as np

from dse.errors import SimulationError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from numpy.typing import NDArray


class Resource(StrEnum):
    """What can bind a task.

    Latencies are what remains of a kernel or a collective that has hardly anything to do. `OTHER`
    is time of tasks whose model does not say what takes it.
    """

    MEMORY = "memory_bandwidth"
    CACHE = "cache_bandwidth"
    ARITHMETIC = "arithmetic"
    KERNEL_LATENCY = "kernel_latency"
    LINK = "link_bandwidth"
    NETWORK = "network_bandwidth"
    COLLECTIVE_LATENCY = "collective_latency"
    HOST_LINK = "host_link_bandwidth"
    HOST = "host"
    LOADER = "loader"
    OTHER = "other"


#: Row of each resource in the arrays below.
ROW = {resource: row for row, resource in enumerate(Resource)}

_NAMES = {
    Resource.MEMORY: "memory bandwidth",
    Resource.CACHE: "L2 bandwidth",
    Resource.ARITHMETIC: "FLOP rate",
    Resource.KERNEL_LATENCY: "kernel latency",
    Resource.LINK: "link bandwidth",
    Resource.NETWORK: "network bandwidth",
    Resource.COLLECTIVE_LATENCY: "collective latency",
    Resource.HOST_LINK: "host link",
    Resource.HOST: "host",
    Resource.LOADER: "data loader",
    Resource.OTHER: "unattributed",
}

#: Rounding that is allowed between a duration and the sum of its parts, as a fraction.
_ROUNDING = 1e-6


@dataclass(frozen=True, slots=True, eq=False)
class TaskResources:
    """For how long each task keeps each resource busy.

    A task takes as long as the busiest of what works at the same time, and what comes one after
    the other on top (a roofline with more than two sides):

        duration = max over resources of overlapped + sum over resources of sequential

    Attributes:
        overlapped_s: Seconds of resources at the same time; shape `(resources, tasks)`.
        sequential_s: Seconds of resources one after the other; shape `(resources, tasks)`.
        names: How a person calls each resource on this machine; one for each `Resource`.
    """

    overlapped_s: NDArray[np.float64]
    sequential_s: NDArray[np.float64]
    names: tuple[str, ...]

    @staticmethod
    def of(
        duration_s: NDArray[np.float64],
        overlapped_s: NDArray[np.float64],
        sequential_s: NDArray[np.float64],
        names: Mapping[Resource, str] | None = None,
    ) -> TaskResources:
        """Returns resources that explain durations; what they leave unexplained is `OTHER`.

        Args:
            duration_s: Durations of the tasks; shape `(tasks,)`.
            overlapped_s: As in the class.
            sequential_s: As in the class.
            names: Names where they differ from the general ones.

        Raises:
            SimulationError: Shapes do not fit, or the parts of a task exceed its duration.
        """
        shape = (len(Resource), len(duration_s))
        if overlapped_s.shape != shape or sequential_s.shape != shape:
            raise SimulationError(
                f"resources of shape {overlapped_s.shape} and {sequential_s.shape}; expected "
                f"{shape}, one row for each resource and one column for each task"
            )
        rest_s = duration_s - overlapped_s.max(axis=0) - sequential_s.sum(axis=0)
        over = rest_s < -_ROUNDING * duration_s
        if over.any():
            task = int(np.argmax(over))
            raise SimulationError(
                f"task {task}: parts of {duration_s[task] - rest_s[task]} s exceed its duration "
                f"of {duration_s[task]} s"
            )
        complete = sequential_s.copy()
        complete[ROW[Resource.OTHER]] += np.where(rest_s > _ROUNDING * duration_s, rest_s, 0.0)
        called = {**_NAMES, **(names or {})}
        return TaskResources(
            overlapped_s, complete, tuple(called[resource] for resource in Resource)
        )

    def parts_s(self) -> NDArray[np.float64]:
        """Returns durations by resource; of what overlaps, only the busiest has a part.

        Returns:
            Seconds; columns add up to the durations; shape `(resources, tasks)`.
        """
        parts = self.sequential_s.copy()
        tasks = np.arange(parts.shape[1])
        if len(tasks):
            busiest = self.overlapped_s.argmax(axis=0)
            parts[busiest, tasks] += self.overlapped_s[busiest, tasks]
        return parts

    def bound_by(self) -> tuple[Resource, ...]:
        """Returns the resource with the largest part of each task."""
        every = tuple(Resource)
        return tuple(every[row] for row in self.parts_s().argmax(axis=0).tolist())

    def faster(
        self, duration_s: NDArray[np.float64], resource: Resource, factor: float
    ) -> NDArray[np.float64]:
        """Returns the durations of all tasks with one resource `factor` times as fast.

        Args:
            duration_s: Durations as they are; those of tasks that do not use the resource stay the
                same to the last bit; shape `(tasks,)`.
            resource: What becomes faster.
            factor: How much.
        """
        row = ROW[resource]
        overlapped = self.overlapped_s.copy()
        overlapped[row] /= factor
        change = self.sequential_s[row] * (1.0 / factor - 1.0)
        if overlapped.shape[1]:
            change = change + (overlapped.max(axis=0) - self.overlapped_s.max(axis=0))
        return np.asarray(np.maximum(0.0, duration_s + change))
