"""Tables that the tests of TorchRec plans share: six, one of them looked up by two features."""

from __future__ import annotations

from dse.indices import Uniform
from dse.model import DataType, EmbeddingTable, PoolingDistribution

MODULE = "sparse.bags"
DIM = 24
ROWS = {"t0": 50, "t1": 7, "t2": 33, "t3": 41, "t4": 64, "t5": 5}
FEATURES = {name: ("shared_a", "shared_b") if name == "t3" else (f"f_{name}",) for name in ROWS}
TABLES = tuple(
    EmbeddingTable(
        name=name,
        rows=rows,
        dim=DIM,
        pooling_factors=(1.5,) * len(FEATURES[name]),
        pooling_distribution=PoolingDistribution.FIXED,
        indices=Uniform(),
        data_type=DataType.FP32,
    )
    for name, rows in ROWS.items()
)
