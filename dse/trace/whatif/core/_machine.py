"""The machine of a captured step, from its traces and the built-in platforms."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal

from dse.errors import ConfigError
from dse.machine.platforms import (
    list_platforms,
    load_platform,
    may_be_same_device,
    nearest_platform,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from dse.machine import Cluster
    from dse.machine.platforms import Platform
    from dse.trace import RankTrace


@dataclass(frozen=True, slots=True)
class CapturedMachine:
    """Devices and links of a training job.

    Attributes:
        device_name: Name of the devices as the traces have it; empty for CPUs.
        world_size: Number of ranks of the job, traced or not.
        platform: Its platform; None if unknown.
        link: Interconnect inside a node; empty for the platform's default.
        network: Network between nodes; empty for the platform's default.
        kind: Whether GPUs worked or the CPU itself, by what the traces hold.
        notes: Doubts about the machine.
    """

    device_name: str
    world_size: int
    platform: Platform | None = None
    link: str = ""
    network: str = ""
    kind: Literal["cpu", "gpu"] = "gpu"
    notes: tuple[str, ...] = ()

    def known_platform(self, why: str) -> Platform:
        """Returns the platform.

        Args:
            why: What needs it, for the message.

        Raises:
            ConfigError: It is not known.
        """
        if self.platform is None:
            device = self.device_name
            unknown = f"no built-in platform has {device}" if device else "a CPU does not tell"
            platforms = map(load_platform, list_platforms())
            names = [one.name for one in platforms if one.device.kind == self.kind]
            raise ConfigError(
                f"{why} needs to know what the trace was captured on; {unknown}: name it with "
                f"--platform, or as `platform` of the workload ({', '.join(names)}, or a file)"
            )
        return self.platform

    def cluster(self, why: str, world_size: int | None = None) -> Cluster:
        """Returns a cluster of one device for each rank.

        Raises:
            ConfigError: The platform is not known, or the ranks leave a node half empty.
        """
        platform = self.known_platform(why)
        return platform.cluster(
            world_size or self.world_size, link=self.link, network=self.network
        )

    def on(self, platform: Platform) -> CapturedMachine:
        """Returns the same job on another platform's devices, links and networks."""
        return replace(
            self, platform=platform, device_name=platform.device.name, link="", network=""
        )


def captured_machine(traces: Sequence[RankTrace], platform: str = "") -> CapturedMachine:
    """Returns the machine that traces were captured on.

    Args:
        traces: One trace a rank.
        platform: Name or file of the platform; found by the device's name if empty.

    Raises:
        ConfigError: No trace is given, the platform's file cannot be read, or its device is of
            another kind than what worked in the traces.
        UnknownNameError: No platform has this name.
    """
    if not traces:
        raise ConfigError("no traces; give at least one")
    names = [name for trace in traces for name in trace.device_names]
    kind: Literal["cpu", "gpu"] = "gpu" if any(trace.has_kernels for trace in traces) else "cpu"
    device = names[0] if names and kind == "gpu" else ""
    world_size = max([len(traces), *(trace.world_size for trace in traces)])
    if not platform:
        found = nearest_platform(device, world_size)
        return CapturedMachine(device, world_size, found, kind=kind)
    chosen = load_platform(platform)
    if chosen.device.kind != kind:
        held = "work of a GPU" if kind == "gpu" else "no work of a GPU, so the CPU was the device"
        raise ConfigError(
            f"platform {chosen.name} has a {chosen.device.kind.upper()} "
            f"({chosen.device.name}), but the traces hold {held}; name the platform that they "
            f"were captured on, one with a {kind.upper()}"
        )
    notes: tuple[str, ...] = ()
    if device and not may_be_same_device(device, chosen.device.name):
        notes = (
            f"the traces are of {device}, platform {chosen.name} has {chosen.device.name}: what "
            "its models say of the captured step is of another device",
        )
    return CapturedMachine(device, world_size, chosen, kind=kind, notes=notes)
