"""Captured steps as a workload."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
import json
from typing import TYPE_CHECKING, ClassVar

from dse.workload._metrics import ITERATION_TIME, THROUGHPUT, Metric, metrics_with
from dse.workload._parameters import SAME_PLATFORM, named
from dse.workload._workload import Workload
from dse.workload.recorded._changes import (
    change_title,
    machine_changes,
    optimizations,
    read_changes_of,
    with_captured_platform,
)
from dse.workload.recorded._job import RecordedJob
from dse.workload.recorded._parameters import RecordedParameters

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from dse.machine import LinkSpec, NetworkSpec
    from dse.machine.platforms import Platform
    from dse.trace.whatif import CapturedStep, Change
    from dse.workload._configuration import Configuration
    from dse.workload._parameters import ParametersBlock, ParameterValue


#: Captured jobs may be of any size. One captured step says neither how steps vary nor what memory
#: holds, and its changes decide how many samples it has.
_METRICS = metrics_with(
    replace(THROUGHPUT, unit="samples/s", scale=1.0, digits=0),
    replace(ITERATION_TIME, title="Step"),
    Metric(
        "speedup",
        "Speed-up",
        column="Speed-up",
        maximize=True,
        unit="×",
        time_exponent=-1,
    ),
    unknown=(
        "global_batch_size",
        "iteration_time_p5_s",
        "iteration_time_p95_s",
        "peak_memory_bytes",
        "memory_headroom_fraction",
        "fit_probability",
    ),
)


@dataclass(frozen=True)
class RecordedWorkload(Workload):
    """A step captured in traces, which optimizations and other machines change.

    Attributes:
        file_name: Name of the file or folder of the traces.
        captured: The step, prepared for changes.
        samples_per_step: Its samples over all ranks; None if they are not known.
        files: The changes of every file that parameters name.
        derived_platforms: Mappings of the platforms that are derived from others, by their names.
    """

    kind: ClassVar[str] = "trace"
    title: ClassVar[str] = "trace"
    parameters: ClassVar[type[ParametersBlock]] = RecordedParameters
    metrics: ClassVar[tuple[Metric, ...]] = _METRICS
    brings_machine: ClassVar[bool] = True
    summarized: ClassVar[frozenset[str]] = frozenset(RecordedParameters.model_fields)

    file_name: str
    captured: CapturedStep
    samples_per_step: int | None
    files: Mapping[str, tuple[Change, ...]]
    derived_platforms: Mapping[str, Mapping[str, object]] = field(default_factory=dict)

    @property
    def name(self) -> str:
        """Name of the file or folder of the traces."""
        return self.file_name

    @classmethod
    def summary(cls, configuration: Configuration) -> str:
        """Names the changes."""
        return change_title(dict(configuration.parameters))

    @classmethod
    def details(cls, configuration: Configuration) -> tuple[tuple[str, str], ...]:
        """Returns the changes and the machine."""
        platform = configuration.platform
        machine = "as captured" if platform in ("", SAME_PLATFORM) else platform
        return (
            ("Changes", change_title(dict(configuration.parameters))),
            ("Machine", f"{configuration.world_size} × {machine}"),
        )

    def job(
        self,
        platform: Platform | None,
        parameters: Mapping[str, ParameterValue],
        *,
        links: Sequence[LinkSpec] = (),
        networks: Sequence[NetworkSpec] = (),
    ) -> RecordedJob:
        """Returns the step under changes; it is changed when it is first simulated."""
        del links, networks
        machine = self.captured.machine
        parameters = with_captured_platform(parameters, platform, machine.platform)
        moves = machine_changes(
            parameters, machine.world_size, machine.device_name, self.derived_platforms
        )
        changes = read_changes_of(moves, optimizations(parameters), self.files)
        world_size = int(parameters.get("world_size", machine.world_size))
        other = str(parameters.get("platform", SAME_PLATFORM)) != SAME_PLATFORM
        target = platform if other else machine.platform
        if target is not None and moves:
            # Names that do not exist are errors before anything is simulated.
            target.cluster(
                world_size,
                link=named(parameters, "link"),
                network=named(parameters, "network"),
            )
        key = (json.dumps(moves, sort_keys=True), optimizations(parameters))
        return RecordedJob(
            self.captured, tuple(changes), self.samples_per_step, target, world_size, key
        )
