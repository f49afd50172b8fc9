"""Workloads: what is trained, and the operators that one rank executes for it."""

from __future__ import annotations

from dse.model._compose import ModelRecipe, compose_model
from dse.model._dense import (
    DenseOperators,
    ParameterGroup,
    activation_bytes,
    dense_operators,
    dense_parameter_count,
    interaction_width,
)
from dse.model._dlrm import (
    DataType,
    DlrmModel,
    EmbeddingTable,
    Interaction,
    InteractionKind,
    Optimizer,
    PoolingDistribution,
)
from dse.model._load import find_model, list_models, load_dlrm, load_model
from dse.model._operators import Operator, OperatorKind
from dse.model._schema import ModelDocument
from dse.model._statistics import (
    META_2021,
    META_2022,
    STATISTICS,
    TableStatistics,
    generate_tables,
)
from dse.model._table_list import TABLE_COLUMNS, TableEntry, TableList, read_table_list
from dse.model._transformer import AttentionKind, TransformerFamily, TransformerModel
from dse.model._transformer_schema import ModelFile, TransformerDocument

__all__ = [
    "META_2021",
    "META_2022",
    "STATISTICS",
    "TABLE_COLUMNS",
    "AttentionKind",
    "DataType",
    "DenseOperators",
    "DlrmModel",
    "EmbeddingTable",
    "Interaction",
    "InteractionKind",
    "ModelDocument",
    "ModelFile",
    "ModelRecipe",
    "Operator",
    "OperatorKind",
    "Optimizer",
    "ParameterGroup",
    "PoolingDistribution",
    "TableEntry",
    "TableList",
    "TableStatistics",
    "TransformerDocument",
    "TransformerFamily",
    "TransformerModel",
    "activation_bytes",
    "compose_model",
    "dense_operators",
    "dense_parameter_count",
    "find_model",
    "generate_tables",
    "interaction_width",
    "list_models",
    "load_dlrm",
    "load_model",
    "read_table_list",
]
