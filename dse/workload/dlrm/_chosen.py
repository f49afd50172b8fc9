"""What parameters choose: groups of ranks, software, storage of tables, and demands on them.

Choices that make no difference leave no trace, so jobs that differ in nothing else are equal.
"""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from dse.errors import ConfigError
from dse.machine import rank_group
from dse.model import DataType, Optimizer
from dse.sharding import DEFAULT_CACHE_LOAD_FACTOR, ComputeKernel, ShardingType, TableConstraints
from dse.workload._launch import LaunchMode
from dse.workload.dlrm._parameters import (
    FORMER_PIPELINE,
    NO_CONSTRAINTS,
    TYPE_SEPARATOR,
    pipeline_name,
)
from dse.workload.dlrm._problem import WeightSync
from dse.workload.dlrm.program._pipelines import TrainPipeline
from dse.workload.dlrm.program._programs import DLRM_PROGRAMS
from dse.workload.dlrm.program._wire import WireFormats

if TYPE_CHECKING:
    from collections.abc import Mapping

    from dse.machine import Cluster, Precision
    from dse.model import DlrmModel
    from dse.workload._parameters import ParameterValue
    from dse.workload.dlrm.program._programs import DlrmProgram
    from dse.workload.dlrm.program._software import DlrmRuntime


#: Parameters that change what a program does.
_OF_PROGRAM = (
    "overlap_dense_all_reduce",
    "hot_rows",
    FORMER_PIPELINE,
    "train_pipeline",
    "launch",
    "communication_precision",
)

#: Fewest ranks of a sharding group: with one there is nothing to shard.
_LEAST_GROUP = 2


def global_batch_size(parameters: Mapping[str, ParameterValue]) -> int:
    """Returns the samples of one iteration over all ranks."""
    if "global_batch_size" in parameters:
        return int(parameters["global_batch_size"])
    return int(parameters["local_batch_size"]) * int(parameters["world_size"])


def sharding_group(
    cluster: Cluster, parameters: Mapping[str, ParameterValue], program: DlrmProgram
) -> Cluster:
    """Returns the ranks that tables are sharded over: all, or one of several equal groups.

    Args:
        cluster: All ranks.
        parameters: Value of every parameter.
        program: The training program.

    Raises:
        ConfigError: The program has no such groups, or the ranks do not divide into them.
    """
    replicas = int(parameters.get("replicas", 1))
    if replicas == 1:
        return cluster
    ranks = cluster.world_size // replicas
    if not program.replicates:
        known = ", ".join(one.name for one in DLRM_PROGRAMS.values() if one.replicates)
        raise ConfigError(
            f"replicas {replicas}: program {program.name} shards every table over all ranks; "
            f"choose from {known}"
        )
    if cluster.world_size % replicas or ranks < _LEAST_GROUP:
        raise ConfigError(
            f"replicas {replicas}: {cluster.world_size} ranks do not divide into as many groups "
            f"of at least {_LEAST_GROUP} ranks; choose a divisor of {cluster.world_size} up to "
            f"{cluster.world_size // _LEAST_GROUP}"
        )
    # Inside one domain it makes no difference where the ranks of a group are.
    strided = cluster.domain_count == 1 or parameters.get("replica_placement") != "contiguous"
    return rank_group(cluster, ranks, replicas if strided else 1)


def weight_sync(parameters: Mapping[str, ParameterValue]) -> WeightSync:
    """Returns how groups of ranks keep their tables equal."""
    return WeightSync(
        int(parameters.get("sync_interval", 1)), bool(parameters.get("sync_optimizer_state", True))
    )


def chosen_software(
    name: str,
    precision: Precision,
    parameters: Mapping[str, ParameterValue],
    cluster: Cluster,
) -> DlrmRuntime:
    """Returns a training program with what parameters say about it in place of what it does.

    Args:
        name: Name of the program.
        precision: Precision of the dense part.
        parameters: Value of every parameter.
        cluster: Where it runs.

    Raises:
        ConfigError: The program cannot do that.
    """
    return _chosen_software(
        name,
        precision,
        tuple((each, parameters[each]) for each in _OF_PROGRAM if each in parameters),
        on_cpu=cluster.device.kind == "cpu",
        one_node=cluster.node_count == 1,
        slow_link=not cluster.link.kind.joins_all,
        alone=cluster.world_size == 1,
    )


@lru_cache(maxsize=1024)
def _chosen_software(
    name: str,
    precision: Precision,
    chosen: tuple[tuple[str, ParameterValue], ...],
    *,
    on_cpu: bool,
    one_node: bool,
    slow_link: bool,
    alone: bool,
) -> DlrmRuntime:
    """Does the same; studies look at thousands of jobs that share a few programs.

    Args:
        name: Name of the program.
        precision: Precision of the dense part.
        chosen: Names and values of the parameters that change a program.
        on_cpu: Whether it runs on CPUs.
        one_node: Whether all ranks are of one node.
        slow_link: Whether ranks of a node have no fast link to all others.
        alone: Whether there is a single rank, which sends nothing.
    """
    program, parameters = DLRM_PROGRAMS[name], dict(chosen)
    software = program.software_for(
        precision, on_cpu=on_cpu, one_node=one_node, slow_link=slow_link
    )
    changes: dict[str, Any] = {
        name: bool(parameters[name])
        for name in ("overlap_dense_all_reduce", "hot_rows")
        if name in parameters
    }
    if FORMER_PIPELINE in parameters:
        # In studies of earlier versions.
        changes["pipeline"] = TrainPipeline(pipeline_name(bool(parameters[FORMER_PIPELINE])))
    if "train_pipeline" in parameters:
        changes["pipeline"] = _chosen_pipeline(program, str(parameters["train_pipeline"]))
    if "launch" in parameters:
        changes["launch"] = LaunchMode(str(parameters["launch"]))
    if "communication_precision" in parameters:
        text = str(parameters["communication_precision"])
        wire = _chosen_wire(program, software.wire, text)
        changes["wire"] = software.wire if alone else wire
    changed = replace(software, **changes)
    if changed.launch is LaunchMode.CUDA_GRAPHS and not changed.capturable:
        able = ", ".join(name for name, one in DLRM_PROGRAMS.items() if one.software.capturable)
        raise ConfigError(
            f"launch cuda_graphs: an iteration of program {program.name} cannot be captured: the "
            "host reads from the devices how many indices each rank gets; use launch eager, or a "
            f"program that can be captured: {able}"
        )
    return changed


def _chosen_wire(program: DlrmProgram, own: WireFormats, text: str) -> WireFormats:
    """Returns the formats that are asked for, if the program can use them.

    Args:
        program: The program.
        own: What it uses by itself.
        text: What is asked for.

    Raises:
        ConfigError: It has no such formats.
    """
    if program.chooses_wire:
        return WireFormats.parse(text, codec=program.software.wire.codec)
    if WireFormats.parse(text, codec=own.codec) != own:
        able = ", ".join(name for name, one in DLRM_PROGRAMS.items() if one.chooses_wire)
        raise ConfigError(
            f"communication precision {text}: {program.name} has no conversion on the wire and "
            f"sends {own.text}; use that, or one of the programs {able}"
        )
    return own


def _chosen_pipeline(program: DlrmProgram, name: str) -> TrainPipeline:
    """Returns the pipeline that is asked for, if the program has it.

    Raises:
        ConfigError: It has not.
    """
    pipeline = TrainPipeline(name)
    if program.looks_ahead or pipeline in (TrainPipeline.BASE, TrainPipeline.SPARSE_DIST):
        return pipeline
    able = ", ".join(one.name for one in DLRM_PROGRAMS.values() if one.looks_ahead)
    raise ConfigError(
        f"train pipeline {name}: {program.name} has no such pipeline; use base or sparse_dist, or "
        f"one of the programs {able}"
    )


def sharding_types(parameters: Mapping[str, ParameterValue]) -> frozenset[ShardingType]:
    """Returns the sharding types that are allowed; all where none are named."""
    if "sharding_types" not in parameters:
        return frozenset(ShardingType)
    names = str(parameters["sharding_types"]).split(TYPE_SEPARATOR)
    try:
        return frozenset(ShardingType(name) for name in names)
    except ValueError as error:
        raise ConfigError(f"unknown sharding type: {error}") from error


def possible_types(
    allowed: frozenset[ShardingType], software: DlrmRuntime
) -> frozenset[ShardingType]:
    """Returns those of the allowed sharding types that a program has.

    Raises:
        ConfigError: It has none of them.
    """
    if software.copies_rows or ShardingType.DATA_PARALLEL not in allowed:
        return allowed
    possible = allowed - {ShardingType.DATA_PARALLEL}
    if not possible:
        raise ConfigError(
            "sharding type data_parallel: the program keeps no table on every rank of one node; "
            "allow another type, such as table_wise"
        )
    return possible


def stored_model(model: DlrmModel, data_type: str, optimizer: str) -> DlrmModel:
    """Returns a model with another type of all rows, or another update rule of the tables.

    Args:
        model: The model.
        data_type: Name of a type; that of each table if empty.
        optimizer: Name of an update rule; the model's if empty.
    """
    # A model is large: even to look it up takes longer than most of what makes a job.
    return _stored_model(model, data_type, optimizer) if data_type or optimizer else model


@lru_cache(maxsize=64)
def _stored_model(model: DlrmModel, data_type: str, optimizer: str) -> DlrmModel:
    """Does the same where something is asked for."""
    if optimizer:
        model = replace(model, sparse_optimizer=Optimizer(optimizer))
    if data_type:
        kind = DataType(data_type)
        tables = tuple(replace(table, data_type=kind) for table in model.tables)
        model = replace(model, tables=tables)
    return model


def chosen_constraints(
    parameters: Mapping[str, ParameterValue],
    known: Mapping[str, tuple[TableConstraints, ...]],
) -> tuple[TableConstraints, ...]:
    """Returns what parameters demand of tables; nothing that makes no difference.

    Args:
        parameters: Value of every parameter.
        known: Constraints that they may name.

    Raises:
        ConfigError: They name constraints that do not exist.
    """
    found: list[TableConstraints] = []
    name = str(parameters.get("table_constraints", NO_CONSTRAINTS))
    if name != NO_CONSTRAINTS:
        if name not in known:
            raise ConfigError(
                f"no constraints on tables are called `{name}`; a search space defines them under "
                "`table_constraints`"
            )
        found += known[name]
    names = str(parameters.get("compute_kernels", ComputeKernel.FUSED.value))
    kernels = {ComputeKernel(kernel) for kernel in names.split(TYPE_SEPARATOR)}
    if ComputeKernel.FUSED in kernels:
        # Copies on every rank have the dense kernel.
        kernels.add(ComputeKernel.DENSE)
    if kernels != {ComputeKernel.FUSED, ComputeKernel.DENSE}:
        demanded = TableConstraints(allowed_kernels=frozenset(kernels), origin="compute_kernels")
        found.append(demanded)
    caching = ComputeKernel.FUSED_UVM_CACHING
    share = float(parameters.get("cache_load_factor", DEFAULT_CACHE_LOAD_FACTOR))
    if share != DEFAULT_CACHE_LOAD_FACTOR and any(
        caching in (rule.allowed_kernels or ()) for rule in found
    ):
        found.append(TableConstraints(cache_load_factor=share, origin="cache_load_factor"))
    return tuple(found)
