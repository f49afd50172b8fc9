"""Workloads: what is trained, and the operators that one rank executes for it."""

from __future__ import annotations

from dse.workloads._dense import DenseOperators
from dse.workloads._dense import ParameterGroup
from dse.workloads._dense import activation_bytes
from dse.workloads._dense import dense_operators
from dse.workloads._dense import dense_parameter_count
from dse.workloads._dense import interaction_width
from dse.workloads._dlrm import DataType
from dse.workloads._dlrm import DlrmModel
from dse.workloads._dlrm import EmbeddingTable
from dse.workloads._dlrm import Interaction
from dse.workloads._dlrm import InteractionKind
from dse.workloads._dlrm import Optimizer
from dse.workloads._dlrm import PoolingDistribution
from dse.workloads._indices import IndexDistribution
from dse.workloads._indices import PopularityBuckets
from dse.workloads._indices import ReuseHistogram
from dse.workloads._indices import Uniform
from dse.workloads._indices import Zipf
from dse.workloads._load import find_model
from dse.workloads._load import list_models
from dse.workloads._load import load_model
from dse.workloads._operators import Operator
from dse.workloads._operators import OperatorKind
from dse.workloads._schema import ModelDocument
from dse.workloads._statistics import META_2021
from dse.workloads._statistics import STATISTICS
from dse.workloads._statistics import TableStatistics
from dse.workloads._statistics import generate_tables

__all__ = [
    "META_2021",
    "STATISTICS",
    "DataType",
    "DenseOperators",
    "DlrmModel",
    "EmbeddingTable",
    "IndexDistribution",
    "Interaction",
    "InteractionKind",
    "ModelDocument",
    "Operator",
    "OperatorKind",
    "Optimizer",
    "ParameterGroup",
    "PoolingDistribution",
    "PopularityBuckets",
    "ReuseHistogram",
    "TableStatistics",
    "Uniform",
    "Zipf",
    "activation_bytes",
    "dense_operators",
    "dense_parameter_count",
    "find_model",
    "generate_tables",
    "interaction_width",
    "list_models",
    "load_model",
]
