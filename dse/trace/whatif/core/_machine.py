"""The machine of a captured step, from its traces and the built-in platforms."""

from __future__ import annotations

from dataclasses import dataclass, replace
import re
from typing import TYPE_CHECKING, Literal

from dse.errors import ConfigError
from dse.machine.platforms import list_platforms, load_platform

if TYPE_CHECKING:
    from collections.abc import Sequence

    from dse.machine import Cluster
    from dse.machine.platforms import Platform
    from dse.trace import RankTrace

#: Parts of device names that do not distinguish devices.
_NOISE = frozenset({"nvidia", "tesla", "amd", "gpu", "geforce", "graphics", "gb", "hbm3", "hbm2"})
_WORD = re.compile(r"[a-z]+\d+[a-z]*|[a-z]+|\d+")


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
            raise ConfigError(
                f"{why} needs to know what the trace was captured on; {unknown}: name it "
                f"with --platform ({', '.join(list_platforms())}, or a file)"
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
        return CapturedMachine(
            device, world_size, platform_with_device(device, world_size), kind=kind
        )
    chosen = load_platform(platform)
    if chosen.device.kind != kind:
        held = "work of a GPU" if kind == "gpu" else "no work of a GPU, so the CPU was the device"
        raise ConfigError(
            f"platform {chosen.name} has a {chosen.device.kind.upper()} "
            f"({chosen.device.name}), but the traces hold {held}; name the platform that they "
            f"were captured on, one with a {kind.upper()}"
        )
    notes: tuple[str, ...] = ()
    if device and not _alike(device, chosen.device.name):
        notes = (
            f"the traces are of {device}, platform {chosen.name} has {chosen.device.name}: what "
            "its models say of the captured step is of another device",
        )
    return CapturedMachine(device, world_size, chosen, kind=kind, notes=notes)


def _alike(device: str, other: str) -> bool:
    """Returns whether two names may be of one device: same model, same size of memory if known."""
    mine, theirs = _words(device), _words(other)
    models = {word for word in mine if re.fullmatch(r"[a-z]+\d+[a-z]*", word)}
    model = _model(theirs)
    sizes = [{word for word in words if word.isdecimal()} for words in (mine, theirs)]
    if not (model and model in models):
        return mine == theirs
    return not all(sizes) or bool(sizes[0] & sizes[1])


def platform_with_device(device: str, world_size: int) -> Platform | None:
    """Returns the built-in platform whose device matches a name best; None if no model matches.

    The model (`v100`) has to agree; names of PCIe cards say so. Of several platforms the one with
    the fewest other parts in its name, then the smallest node that holds the ranks, then the first
    by name is taken.
    """
    words = _words(device)
    models = {word for word in words if re.fullmatch(r"[a-z]+\d+[a-z]*", word)}
    found = []
    for name in list_platforms():
        platform = load_platform(name)
        other = _words(platform.device.name)
        if not device or not _model(other) or _model(other) not in models:
            continue
        fits = platform.devices_per_domain(world_size) >= world_size
        key = (
            ("pcie" in words) != ("pcie" in other),
            -len(words & other),
            len(other - words),
            not fits,
            platform.devices_per_node,
            name,
        )
        found.append((key, platform))
    return min(found, key=lambda pair: pair[0])[1] if found else None


def _words(name: str) -> frozenset[str]:
    # `32GB` and `32 GB` are one word in one name and two in another.
    plain = re.sub(r"(\d+)\s*gi?b\b", r" \1 ", name.lower())
    return frozenset(_WORD.findall(plain)) - _NOISE


def _model(words: frozenset[str]) -> str:
    return next(
        (
            word
            for word in sorted(words)
            if re.fullmatch(r"[a-z]+\d+[a-z]*", word) and not word.startswith(("sxm", "pcie"))
        ),
        "",
    )
