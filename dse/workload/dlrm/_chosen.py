"""What parameters choose: formats on the wire, storage of tables, and demands on them.

Choices that make no difference leave no trace, so jobs that differ in nothing else are equal.
"""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache
from typing import TYPE_CHECKING

from dse.errors import ConfigError
from dse.model import DataType, Optimizer
from dse.sharding import DEFAULT_CACHE_LOAD_FACTOR, ComputeKernel, TableConstraints
from dse.workload.dlrm._parameters import NO_CONSTRAINTS, TYPE_SEPARATOR
from dse.workload.dlrm.program._programs import DLRM_PROGRAMS
from dse.workload.dlrm.program._wire import WireFormats

if TYPE_CHECKING:
    from collections.abc import Mapping

    from dse.model import DlrmModel
    from dse.workload._parameters import ParameterValue
    from dse.workload.dlrm.program._programs import DlrmProgram


def chosen_wire(program: DlrmProgram, own: WireFormats, text: str) -> WireFormats:
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
