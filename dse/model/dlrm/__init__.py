"""Recommendation models (DLRM): tables, dense part, files, and lists of tables."""

from __future__ import annotations

from dse.model.dlrm._architecture import Experts, SequenceLayers, Task, Tower
from dse.model.dlrm._blocks import ParameterGroup
from dse.model.dlrm._compose import ModelRecipe, compose_model
from dse.model.dlrm._dense import (
    DenseOperators,
    activation_bytes,
    dense_operators,
    dense_parameter_count,
    model_flops,
)
from dse.model.dlrm._interactions import interaction_inputs, interaction_width
from dse.model.dlrm._lengths import busiest_share, length_moment
from dse.model.dlrm._model import (
    LENGTH_SPREAD,
    DataType,
    DlrmModel,
    EmbeddingTable,
    IndexType,
    Interaction,
    InteractionKind,
    PoolingDistribution,
)
from dse.model.dlrm._schema import ModelDocument
from dse.model.dlrm._sequence import sequence_positions
from dse.model.dlrm._statistics import (
    META_2021,
    META_2022,
    STATISTICS,
    TableStatistics,
    generate_tables,
)
from dse.model.dlrm._table_list import TableEntry, TableList, read_table_list
from dse.model.dlrm._traced import Amount, TracedDense, TracedOperator

__all__ = [
    "LENGTH_SPREAD",
    "META_2021",
    "META_2022",
    "STATISTICS",
    "Amount",
    "DataType",
    "DenseOperators",
    "DlrmModel",
    "EmbeddingTable",
    "Experts",
    "IndexType",
    "Interaction",
    "InteractionKind",
    "ModelDocument",
    "ModelRecipe",
    "ParameterGroup",
    "PoolingDistribution",
    "SequenceLayers",
    "TableEntry",
    "TableList",
    "TableStatistics",
    "Task",
    "Tower",
    "TracedDense",
    "TracedOperator",
    "activation_bytes",
    "busiest_share",
    "compose_model",
    "dense_operators",
    "dense_parameter_count",
    "generate_tables",
    "interaction_inputs",
    "interaction_width",
    "length_moment",
    "model_flops",
    "read_table_list",
    "sequence_positions",
]
