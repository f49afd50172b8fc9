"""Deep gradient compression: ranks exchange the largest values of each gradient only."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Annotated, ClassVar, Literal

from pydantic import Field

from dse.config import Fraction, Seconds
from dse.trace import TaskRole
from dse.trace.whatif.core import Optimization
from dse.trace.whatif.retime import (
    all_reduces,
    collective_model_s,
    remove_all_reduces,
    traffic,
    with_message,
)

if TYPE_CHECKING:
    from dse.trace.whatif.core import StepEditor

_INDEX_BYTES = 4
_STREAM = "gradient compression"
#: Times that a gradient is read or written: momentum and residual are read and written, the
#: gradient is read; the threshold is found on a sample; chosen values are masked out of both.
_PASSES = 8
#: Bytes per received value: it is read with its index and added to one in memory.
_ADDED_BYTES = 16


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

    def apply(self, editor: StepEditor) -> None:
        """Replaces each all-reduce by compression, all-gather and decompression."""
        cluster = editor.machine.cluster("dgc")
        platform = editor.machine.known_platform("dgc")
        reduces = all_reduces(editor, cluster)
        followers = editor.followers()
        for reduce in reduces:
            size_bytes = reduce.info.message_bytes
            value_bytes = 2 if reduce.info.dtype in ("fp16", "bf16") else 4
            values = math.ceil(self.ratio * size_bytes / value_bytes)
            sent = values * (value_bytes + _INDEX_BYTES) * reduce.group_size
            info = with_message(reduce.info, sent, operation="all_gather")
            pack_s, unpack_s = self.compress, self.decompress
            if pack_s is None:
                pack_s = traffic(_PASSES * size_bytes).time_s(platform)
            if unpack_s is None:
                unpack_s = traffic(_ADDED_BYTES * values * reduce.group_size).time_s(platform)
            packed = [
                editor.insert(
                    "compress",
                    TaskRole.KERNEL,
                    (editor.rank_of(task), _STREAM),
                    pack_s,
                    after=editor.waits_of(task),
                    like=task,
                )
                for task in reduce.tasks
            ]
            gathers = reduce.insert(
                editor,
                "{}, compressed",
                info,
                collective_model_s(cluster, info) / reduce.model_s,
                after=[(task,) for task in packed],
            )
            for task, gather in zip(reduce.tasks, gathers, strict=True):
                editor.insert(
                    "decompress",
                    TaskRole.KERNEL,
                    (editor.rank_of(task), f"{_STREAM}, arrivals"),
                    unpack_s,
                    after=(gather,),
                    before=followers.get(task, ()),
                    like=task,
                )
        remove_all_reduces(editor, reduces)
        editor.notes.append(
            "dgc: compression overlaps other kernels and does not slow them down; its effect on "
            "convergence is not modelled"
        )
