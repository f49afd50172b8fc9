"""Models: what is trained, and the operators that one rank executes for it.

:mod:`~dse.model.dlrm` holds recommendation models, :mod:`~dse.model.transformer` transformers;
files of both are loaded here.
"""

from __future__ import annotations

from dse.model._common import Operator, OperatorKind, Optimizer
from dse.model._load import ModelFile, find_model, list_models, load_dlrm, load_model
from dse.model.dlrm import (
    META_2021,
    META_2022,
    STATISTICS,
    TABLE_COLUMNS,
    DataType,
    DenseOperators,
    DlrmModel,
    EmbeddingTable,
    Experts,
    Interaction,
    InteractionKind,
    ModelDocument,
    ModelRecipe,
    ParameterGroup,
    PoolingDistribution,
    TableEntry,
    TableList,
    TableStatistics,
    Task,
    Tower,
    activation_bytes,
    compose_model,
    dense_operators,
    dense_parameter_count,
    generate_tables,
    interaction_inputs,
    interaction_width,
    read_table_list,
)
from dse.model.transformer import (
    AttentionKind,
    TransformerDocument,
    TransformerFamily,
    TransformerModel,
)

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
    "Experts",
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
    "Task",
    "Tower",
    "TransformerDocument",
    "TransformerFamily",
    "TransformerModel",
    "activation_bytes",
    "compose_model",
    "dense_operators",
    "dense_parameter_count",
    "find_model",
    "generate_tables",
    "interaction_inputs",
    "interaction_width",
    "list_models",
    "load_dlrm",
    "load_model",
    "read_table_list",
]
