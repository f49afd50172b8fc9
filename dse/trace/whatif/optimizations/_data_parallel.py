"""Data-parallel training of a step that was captured on one rank."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Annotated, ClassVar, Literal

from pydantic import Field

from dse.config import Bytes
from dse.errors import ConfigError
from dse.trace import CollectiveInfo, TaskRole
from dse.trace.whatif.core import (
    Factor,
    Gradient,
    Optimization,
    after_backward,
    gradients_of,
    training_passes,
)
from dse.trace.whatif.retime import collective_model_s

if TYPE_CHECKING:
    from collections.abc import Sequence

    from dse.trace.whatif.core import StepEditor

_MEBI = 2**20
#: More devices than any system trains one model on; collective models were never checked there.
_MOST_RANKS = 65536
_STREAM = "data-parallel all-reduces"


class DataParallel(Optimization):
    """Data parallelism over N ranks: gradients are all-reduced in buckets during backward.

    Attributes:
        ranks: Number of ranks, at most 65536.
        bucket: A bucket is reduced once it holds at least this much.
        first_bucket: The same of the first bucket of each backward pass.
        gradients: Size of all gradients, spread evenly, where the traces have no shapes.
        overlap_slowdown: All-reduces that overlap computation take this much longer.
    """

    main_option: ClassVar[str] = "ranks"

    optimization: Literal["data_parallel"] = "data_parallel"
    ranks: Annotated[int, Field(ge=2, le=_MOST_RANKS)]
    bucket: Annotated[Bytes, Field(gt=0)] = 25 * _MEBI
    first_bucket: Annotated[Bytes, Field(gt=0)] = _MEBI
    gradients: Annotated[Bytes, Field(gt=0)] | None = None
    overlap_slowdown: Annotated[Factor, Field(ge=1)] = 1.0

    def apply(self, editor: StepEditor) -> None:
        """Inserts the all-reduces of every backward pass."""
        if editor.machine.world_size > 1 or len(editor.ranks) > 1:
            raise ConfigError(
                f"the step was captured on {editor.machine.world_size} ranks already; "
                "data_parallel starts from a step of a single rank"
            )
        (rank,) = editor.ranks
        passes = [one for one in training_passes(editor, rank) if one.backward]
        if not passes:
            raise ConfigError("the captured step has no backward pass, so there is no gradient")
        cluster = editor.machine.cluster("data_parallel", self.ranks)
        gradients = gradients_of(editor, passes, self.gradients)
        for one_pass, of_pass in zip(passes, gradients, strict=True):
            waiting = after_backward(editor, one_pass)
            buckets = self._buckets(of_pass)
            for number, bucket in enumerate(buckets):
                size_bytes = round(sum(gradient.size_bytes for gradient in bucket))
                info = CollectiveInfo("all_reduce", size_bytes, "fp32", group_size=self.ranks)
                # Nothing is left to overlap with once the last gradient is ready.
                slower = self.overlap_slowdown if number < len(buckets) - 1 else 1.0
                editor.insert(
                    f"all-reduce of bucket {number}",
                    TaskRole.COLLECTIVE,
                    (rank, _STREAM),
                    slower * collective_model_s(cluster, info),
                    after=dict.fromkeys(task for gradient in bucket for task in gradient.ready),
                    before=waiting,
                    like=bucket[-1].ready[-1],
                    collective=info,
                )
        editor.work_factor *= self.ranks
        editor.machine = replace(editor.machine, world_size=self.ranks)

    def _buckets(self, gradients: Sequence[Gradient]) -> list[list[Gradient]]:
        """Fills buckets in the order in which gradients get ready, as PyTorch's DDP does."""
        buckets: list[list[Gradient]] = [[]]
        for gradient in gradients:
            limit = self.bucket if len(buckets) > 1 else min(self.first_bucket, self.bucket)
            buckets[-1].append(gradient)
            if sum(one.size_bytes for one in buckets[-1]) >= limit:
                buckets.append([])
        return [bucket for bucket in buckets if bucket]
