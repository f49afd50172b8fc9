"""Workloads: what is trained, and the operators that one rank executes for it."""

from __future__ import annotations

from dse.workloads._compose import ModelRecipe, compose_model
from dse.workloads._dense import (
    DenseOperators,
    ParameterGroup,
    activation_bytes,
    dense_operators,
    dense_parameter_count,
    interaction_width,
)
from dse.workloads._dlrm import (
    DataType,
    DlrmModel,
    EmbeddingTable,
    Interaction,
    InteractionKind,
    Optimizer,
    PoolingDistribution,
)
from dse.workloads._indices import (
    IndexDistribution,
    PopularityBuckets,
    ReuseHistogram,
    Uniform,
    Zipf,
)
from dse.workloads._load import find_model, list_models, load_dlrm, load_model
from dse.workloads._operators import Operator, OperatorKind
from dse.workloads._schema import ModelDocument
from dse.workloads._statistics import (
    META_2021,
    META_2022,
    STATISTICS,
    TableStatistics,
    generate_tables,
)
from dse.workloads._table_list import TABLE_COLUMNS, TableEntry, TableList, read_table_list
from dse.workloads._transformer import AttentionKind, TransformerFamily, TransformerModel
from dse.workloads._transformer_schema import ModelFile, TransformerDocument

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
    "IndexDistribution",
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
    "PopularityBuckets",
    "ReuseHistogram",
    "TableEntry",
    "TableList",
    "TableStatistics",
    "TransformerDocument",
    "TransformerFamily",
    "TransformerModel",
    "Uniform",
    "Zipf",
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
