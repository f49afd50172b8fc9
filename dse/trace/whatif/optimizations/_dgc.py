"""Deep gradient compression: ranks exchange the largest values of each gradient only."""

from __future__ import annotations

from dataclasses import replace
import math
from typing import TYPE_CHECKING, Annotated, ClassVar, Literal

from pydantic import Field

from dse.config import Fraction, Seconds
from dse.trace import Role
from dse.trace.whatif._gradient_reduces import all_reduces, meet_by_stage, take_out
from dse.trace.whatif._retime_collectives import collective_model_s
from dse.trace.whatif._steps import Optimization

if TYPE_CHECKING:
    from dse.trace.whatif._gradient_reduces import AllReduce
    from dse.trace.whatif._job import Job

_INDEX_BYTES = 4
_LANE = "gradient compression"
#: Times that a gradient is read or written: momentum and residual are read and written, the
#: gradient is read; the threshold is found on a sample; chosen values are masked out of both.
_PASSES = 8
#: A value that arrives is read with its index and added to one in memory.
_ADDED = 4


class DeepGradientCompression(Optimization):
    """Gradient compression: all-reduces become all-gathers of the largest values and indices.

    Attributes:
        ratio: Share of the values that are sent.
        compress: Time to choose the values of one all-reduce; by the device's memory if left out.
        decompress: Time to add what all ranks sent; by the device's memory if left out.
    """

    main_option: ClassVar[str] = "ratio"

    optimization: Literal["dgc"] = "dgc"
    ratio: Annotated[Fraction, Field(gt=0)] = 0.01
    compress: Annotated[Seconds, Field(ge=0)] | None = None
    decompress: Annotated[Seconds, Field(ge=0)] | None = None

    def apply(self, job: Job) -> None:
        """Replaces each all-reduce by compression, all-gather and decompression."""
        cluster = job.machine.cluster("dgc")
        reduces = all_reduces(job, cluster)
        followers = job.followers()
        for one in reduces:
            value_bytes = 2 if one.info.dtype in ("fp16", "bf16") else 4
            values = math.ceil(self.ratio * one.info.message_bytes / value_bytes)
            sent = values * (value_bytes + _INDEX_BYTES) * one.group_size
            info = replace(
                one.info,
                operation="all_gather",
                message_bytes=sent,
                input_elements=-1,
                output_elements=-1,
            )
            share = collective_model_s(cluster, info) / one.model_s
            pack_s, unpack_s = self._kernels_s(job, one, values)
            met: dict[int, list[int]] = {}
            for task, transfer_s, wait_s in zip(
                one.members, one.transfer_s, one.wait_s, strict=True
            ):
                rank = job.rank_of(task)
                side = (rank, _LANE)
                packed = job.insert(
                    "compress", Role.KERNEL, side, pack_s, after=job.waits_of(task), like=task
                )
                gather = job.insert(
                    f"{job.name_of(task)}, compressed",
                    Role.COLLECTIVE,
                    (rank, job.lane_of(task)),
                    share * transfer_s + wait_s,
                    after=(packed,),
                    behind=task,
                    collective=info,
                )
                job.insert(
                    "decompress",
                    Role.KERNEL,
                    (rank, f"{_LANE}, arrivals"),
                    unpack_s,
                    after=(gather,),
                    before=followers.get(task, ()),
                    like=task,
                )
                met.setdefault(0, []).append(gather)
            meet_by_stage(job, met)
        take_out(job, reduces)
        job.notes.append(
            "dgc: compression runs beside other kernels and does not slow them down; how training "
            "converges is not modelled"
        )

    def _kernels_s(self, job: Job, one: AllReduce, values: int) -> tuple[float, float]:
        platform = job.machine.known_platform("dgc")
        added = _ADDED * 4 * values * one.group_size
        pack_s = platform.kernel_time(
            "elementwise", traffic_bytes=_PASSES * one.info.message_bytes
        )
        unpack_s = platform.kernel_time("elementwise", traffic_bytes=added)
        return (
            float(pack_s) if self.compress is None else self.compress,
            float(unpack_s) if self.decompress is None else self.decompress,
        )
