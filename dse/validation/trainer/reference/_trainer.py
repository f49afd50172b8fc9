"""What the reference trainer runs, and which program predicts it."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, ClassVar

from dse._torch import load_torch
from dse.sharding import check_plan
from dse.validation._protocol import AloneTrainer, UnsupportedCandidateError
from dse.validation.dlrm import Candidate, untrained_lookups, untrained_parts
from dse.validation.trainer.reference._alone import Inbox, SilentRank, received_inputs
from dse.validation.trainer.reference._rank import ReferenceRank
from dse.workload import LaunchMode, find_program
from dse.workload.dlrm import (
    DLRM_PROGRAMS,
    DlrmWorkload,
    TrainPipeline,
    WireFormat,
    WireFormats,
)

if TYPE_CHECKING:
    from dse.launch import RankContext
    from dse.validation._types import TrainerOptions


class ReferenceTrainer(AloneTrainer[Candidate]):
    """Trains recommendation models under any sharding plan with torch alone."""

    name: ClassVar[str] = "reference"
    title: ClassVar[str] = "the reference trainer"
    kind: ClassVar[str] = DlrmWorkload.kind
    program: ClassVar[str] = "dse_trainer"
    keeps: ClassVar[str] = "prefetching, overlap, buckets and wire precision"
    collects: ClassVar[bool] = True

    def adopt(self, candidate: Candidate) -> Candidate:
        """Returns the candidate as this program, of whose pipelines one looks ahead, one not."""
        own = candidate.problem.software
        ahead = own.pipeline.distributes_ahead
        narrow = own.wire.forward.value_bytes < 4
        software = replace(
            find_program(DLRM_PROGRAMS, self.program).software,
            overlap_dense_all_reduce=own.overlap_dense_all_reduce,
            pipeline=TrainPipeline.SPARSE_DIST if ahead else TrainPipeline.BASE,
            wire=WireFormats.of(WireFormat.FP16 if narrow else WireFormat.FP32),
            dense_bucket_bytes=own.dense_bucket_bytes,
        )
        return replace(candidate, problem=replace(candidate.problem, software=software))

    def checked(self, candidate: Candidate, device: str) -> Candidate:
        """Returns the candidate with the plan's tables in the model's order.

        Raises:
            UnsupportedCandidateError: The trainer does not support the launch mode, compute kernel
                or data type, or has no network for a part of the model.
            PlanError: The plan does not match the model and ranks.
        """
        where, model = f"candidate `{candidate.name}`", candidate.model
        if parts := untrained_parts(model):
            raise UnsupportedCandidateError(
                f"{where}: real runs train MLPs and an interaction, not the {', '.join(parts)} of "
                f"{model.name}; leave them out of a copy of the model to compare its plans"
            )
        rule = model.sparse_optimizer
        if rule.of_tables_only:
            raise UnsupportedCandidateError(
                f"{where}: real runs have no `{rule.value}`; use `sgd`, `rowwise_adagrad`, "
                f"`adagrad` or `adam` in a copy of {model.name} to compare its plans"
            )
        if candidate.problem.software.launch is not LaunchMode.EAGER:
            raise UnsupportedCandidateError(
                f"{where}: real runs launch eagerly; choose `launch: eager`"
            )
        plan = check_plan(candidate.plan, model.tables, candidate.world_size, candidate.node_size)
        for placement, table in zip(plan.tables, model.tables, strict=True):
            if placement.compute_kernel.on_host:
                raise UnsupportedCandidateError(
                    f"{where}, table `{table.name}`: real runs keep tables in device memory, not "
                    f"by `{placement.compute_kernel.value}`; plan without UVM"
                )
            if placement.hot_rows:
                raise UnsupportedCandidateError(
                    f"{where}, table `{table.name}`: real runs keep no hot rows on every rank; "
                    "plan without them"
                )
            if special := untrained_lookups(table):
                raise UnsupportedCandidateError(
                    f"{where}, table `{table.name}`: real runs have no {special}; leave it out of "
                    "a copy of the model to compare its plans"
                )
            if table.data_type.value_bytes < 2:
                raise UnsupportedCandidateError(
                    f"{where}, table `{table.name}`: {table.data_type.value} rows cannot be "
                    "trained; use fp16"
                )
        return replace(candidate, plan=plan)

    def rank(
        self, candidate: Candidate, options: TrainerOptions, context: RankContext
    ) -> ReferenceRank:
        """Builds one rank."""
        return ReferenceRank(load_torch(), candidate, options, context)

    def received(self, candidate: Candidate, options: TrainerOptions) -> Inbox:
        """Returns lengths and indices that each rank receives in each batch."""
        return received_inputs(load_torch(), candidate, options)

    def rank_alone(
        self, candidate: Candidate, options: TrainerOptions, context: RankContext, received: Inbox
    ) -> SilentRank:
        """Builds one rank whose collectives take no time."""
        return SilentRank(load_torch(), candidate, options, context, received)
