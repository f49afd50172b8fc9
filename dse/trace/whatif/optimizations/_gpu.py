"""Another device: kernels, copies and collectives re-timed from one platform to another."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, ClassVar, Literal

from dse.errors import ConfigError
from dse.machine.platforms import PlatformChoice, load_platform
from dse.trace import COMPUTING, TaskRole
from dse.trace.whatif.core import HOST_ROLES, Factor, Optimization, Selector
from dse.trace.whatif.retime import (
    kernel_times,
    retime_collectives,
    retime_kernels,
    share_of_time,
)

if TYPE_CHECKING:
    from dse.trace.whatif.core import StepEditor


class OtherDevice(Optimization):
    """Another device, its host link and its network; the host's own time stays.

    Attributes:
        platform: Name or file of the platform to run on, or a mapping that derives one from
            another; of CPUs for a step captured on CPUs.
        host: Time of the host, times this.
        link: Interconnect of that platform, inside a node.
        network: Network of that platform, between nodes.
    """

    main_option: ClassVar[str] = "platform"

    platform: PlatformChoice
    host: Factor = 1.0
    link: str = ""
    network: str = ""

    def apply(self, editor: StepEditor) -> None:
        """Re-times all work of devices."""
        named, machine = self.platform, editor.machine
        target = load_platform(named if isinstance(named, str) else named.mapping)
        source = machine.known_platform(self.optimization)
        if machine.kind != target.device.kind:
            kind = machine.kind.upper()
            raise ConfigError(
                f"the step was captured on a {kind} and {target.name} has a "
                f"{target.device.kind.upper()}; launches and waits differ between the two, so "
                f"only another {kind} can be modelled"
            )
        after = replace(machine.on(target), link=self.link, network=self.network)
        computing = editor.select(Selector(role=COMPUTING))
        collectives = editor.select(Selector(role=(TaskRole.COLLECTIVE,)))
        if not computing and not collectives:
            raise ConfigError("the captured step has no work of a device, so no device changes it")
        if computing:
            old, new = (kernel_times(editor, computing, one) for one in (source, target))
            unknown = [task for task in computing if task not in old.seconds]
            share = share_of_time(editor, unknown, computing)
            retime_kernels(editor, computing, old, new)
            if unknown:
                editor.notes.append(
                    f"{len(unknown)} of {len(computing)} kernels, {100 * share:.0f} % of their "
                    f"time, have no shapes: they go with the peak rates of {source.name} and "
                    f"{target.name}, products with arithmetic, others with memory"
                )
        if collectives:
            clusters = (one.cluster(self.optimization) for one in (machine, after))
            retime_collectives(editor, collectives, *clusters)
        host = editor.select(Selector(role=HOST_ROLES))
        if self.host == 1.0:
            editor.notes.append("the host is as captured; `host=0.8x` makes its work shorter")
            if target.name == source.name:
                editor.notes.append(f"{target.name} is what the step was captured on already")
        elif host:
            editor.scale(host, self.host)
        editor.machine = after


class Gpu(OtherDevice):
    """Another GPU, re-timed by kernel models: `gpu=h100_sxm`; `host=0.8x` for a faster host."""

    optimization: Literal["gpu"] = "gpu"


class Device(OtherDevice):
    """Another device of the same kind, also a CPU: `device=my_cpu.yaml`; otherwise as gpu."""

    optimization: Literal["device"] = "device"
