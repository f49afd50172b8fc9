"""Another device: kernels, copies and collectives re-timed from one platform to another."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Annotated, ClassVar, Literal

from pydantic import Field

from dse.errors import ConfigError
from dse.machine.platforms import load_platform
from dse.trace import COMPUTING, Role
from dse.trace.whatif._retime_collectives import retime_collectives
from dse.trace.whatif._retime_kernels import kernel_times, retime_kernels, share_of_time
from dse.trace.whatif._select import Selector
from dse.trace.whatif._steps import Factor, Optimization

if TYPE_CHECKING:
    from dse.trace.whatif._job import Job

_HOST = (Role.HOST_WORK, Role.HOST_GAP, Role.CALL, Role.AFTER_WAIT)


class OtherDevice(Optimization):
    """Another device, its host link and its network; the host's own time stays.

    Attributes:
        platform: Name or file of the platform to run on; of CPUs for a step captured on CPUs.
        host: Time of the host, times this.
        link: Interconnect of that platform, inside a node.
        network: Network of that platform, between nodes.
    """

    main_option: ClassVar[str] = "platform"

    platform: Annotated[str, Field(min_length=1)]
    host: Factor = 1.0
    link: str = ""
    network: str = ""

    def apply(self, job: Job) -> None:
        """Re-times all work of devices."""
        target = load_platform(self.platform)
        machine = job.machine
        source = machine.known_platform(self.optimization)
        _check_kinds(machine.kind, target.name, target.device.kind)
        after = replace(machine.on(target), link=self.link, network=self.network)

        computing = job.select(Selector(role=COMPUTING))
        collectives = job.select(Selector(role=(Role.COLLECTIVE,)))
        if not computing and not collectives:
            raise ConfigError("the captured step has no work of a device, so no device changes it")
        if computing:
            old, new = (kernel_times(job, computing, one) for one in (source, target))
            unknown = [task for task in computing if task not in old.seconds]
            share = share_of_time(job, unknown, computing)
            retime_kernels(job, computing, old, new)
            if unknown:
                job.notes.append(
                    f"{len(unknown)} of {len(computing)} kernels, {100 * share:.0f} % of their "
                    f"time, have no shapes: they go with the peak rates of {source.name} and "
                    f"{target.name}, products with arithmetic, others with memory"
                )
        if collectives:
            retime_collectives(
                job,
                collectives,
                machine.cluster(self.optimization),
                after.cluster(self.optimization),
            )
        if self.host != 1.0:
            host = job.select(Selector(role=_HOST))
            if host:
                job.scale(host, self.host)
        else:
            job.notes.append("the host is as captured; `host=0.8x` makes its work shorter")
        if (target.name, self.host) == (source.name, 1.0):
            job.notes.append(f"{target.name} is what the step was captured on already")
        job.machine = after


class Gpu(OtherDevice):
    """Another GPU, re-timed by kernel models: `gpu=h100_sxm`; `host=0.8x` for a faster host."""

    optimization: Literal["gpu"] = "gpu"


class Device(OtherDevice):
    """Another device of the same kind, also a CPU: `device=my_cpu.yaml`; otherwise as gpu."""

    optimization: Literal["device"] = "device"


def _check_kinds(kind: str, name: str, wanted: str) -> None:
    if kind == wanted:
        return
    raise ConfigError(
        f"the step was captured on a {kind.upper()} and {name} has a {wanted.upper()}; launches "
        f"and waits differ between the two, so only another {kind.upper()} can be asked about"
    )
