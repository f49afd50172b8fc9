"""Benchmarks of FBGEMM's lookups and updates on a CPU, as TorchRec calls them.

A call is that of several tables of equal size, because TorchRec's groups of tables are one call:
what a call takes whatever its tables are is host time and belongs to the program.
"""

from __future__ import annotations

from itertools import cycle
from typing import TYPE_CHECKING, Any

import numpy as np

from dse._torch import load_torch
from dse.calibration.microbench.operators._embedding import LEARNING_RATE
from dse.indices import Uniform, Zipf

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from dse.calibration.microbench.operators._values import Operands

#: Tables of a call, where the sizes do not say.
_TABLES = 4

#: Index sets that take turns; caches are emptied between calls.
_SETS = 4


def fbgemm_forward(sizes: Mapping[str, float], operands: Operands) -> Callable[[], Any]:
    """Sum-pooled lookup of tables by `SplitTableBatchedEmbeddingBagsCodegen`."""
    tables, sets, offsets = _operands(sizes, operands.rng)
    rotation = cycle(sets)

    def call() -> Any:
        with load_torch().no_grad():
            return tables(next(rotation), offsets)

    return call


def fbgemm_backward(sizes: Mapping[str, float], operands: Operands) -> Callable[[], Any]:
    """Gradient of the tables and SGD on the rows they touch, fused as in training."""
    tables, sets, offsets = _operands(sizes, operands.rng)
    outputs = cycle([tables(indices, offsets) for indices in sets])
    first = next(outputs)
    gradient = load_torch().ones_like(first)

    def call() -> Any:
        # Updates the tables in place; the graph remembers the indices.
        next(outputs).backward(gradient, retain_graph=True)

    return call


def _operands(sizes: Mapping[str, float], rng: np.random.Generator) -> tuple[Any, list[Any], Any]:
    """Returns the tables, the indices of each set, and the offsets of all bags.

    Raises:
        RuntimeError: FBGEMM is installed but does not load.
    """
    try:
        from fbgemm_gpu.split_embedding_configs import EmbOptimType, SparseType
        from fbgemm_gpu.split_table_batched_embeddings_ops_training import (
            ComputeDevice,
            EmbeddingLocation,
            SplitTableBatchedEmbeddingBagsCodegen,
        )
    except (ImportError, OSError) as error:
        raise RuntimeError(
            f"fbgemm_gpu is installed but does not load: {error}; install the one for this torch"
        ) from error
    torch = load_torch()
    rows, dim = int(sizes["rows"]), int(sizes["dim"])
    batch, pooling = int(sizes["batch"]), int(sizes["pooling"])
    count, alpha = int(sizes.get("tables", _TABLES)), float(sizes["alpha"])
    tables = SplitTableBatchedEmbeddingBagsCodegen(
        [(rows, dim, EmbeddingLocation.HOST, ComputeDevice.CPU)] * count,
        optimizer=EmbOptimType.EXACT_SGD,
        learning_rate=LEARNING_RATE,
        weights_precision=SparseType.FP32,
    )
    for weights in tables.split_embedding_weights():
        weights.fill_(0.5)
    distribution = Zipf(alpha) if alpha > 0 else Uniform()
    lookups = batch * pooling
    sets = [
        torch.from_numpy(
            np.concatenate([distribution.sample(rng, rows, lookups) for _ in range(count)])
        )
        for _ in range(_SETS)
    ]
    return tables, sets, torch.arange(0, count * lookups + 1, pooling)
