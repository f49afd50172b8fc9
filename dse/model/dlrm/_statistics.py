"""Synthetic embedding tables drawn from published statistics of production models.

The public DLRM embedding data sets of 2021 and 2022 (facebookresearch/dlrm_datasets, MIT) come
with locality statistics over 856 tables at a batch of 65,536 and over 788 tables at a batch of
131,072: total lookups, total distinct rows, and histograms of reuse. They do not give the rows or
pooling factors of single tables. Those are drawn here from log-normal distributions and scaled so
that the totals are the published ones; dimensions follow the range that the literature uses (4 to
256). All tables of a set share its histogram.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
import math
from statistics import NormalDist
from typing import TYPE_CHECKING

import numpy as np

from dse.indices import ReuseHistogram
from dse.model.dlrm._model import DataType, EmbeddingTable, PoolingDistribution

if TYPE_CHECKING:
    from numpy.typing import NDArray

_DIMS = (4, 8, 16, 32, 64, 128, 256)
_DIM_WEIGHTS = (0.02, 0.05, 0.13, 0.25, 0.30, 0.20, 0.05)

#: Standard deviations of the logarithm of pooling factor and rows.
_POOLING_SPREAD = 1.4
_ROWS_SPREAD = 1.8
_MEDIAN_ROWS = 150_000.0
_MAX_ROWS = 50_000_000

#: A table has at least this many rows for each distinct row of the reference batch.
_ROWS_PER_SEEN_ROW = 4.0


@dataclass(frozen=True, slots=True)
class TableStatistics:
    """Published totals of one data set.

    Attributes:
        name: Name in model files.
        source: Citation.
        tables: Tables in the data set.
        batch_size: Samples of the batch that was analysed.
        lookups: Lookups of that batch over all tables.
        unique_rows: Distinct rows of that batch over all tables.
        row_share: Share of distinct rows by reuse; bins (0, 1], (1, 2], (2, 4] … (2^14, 2^15],
            more.
        lookup_share: Share of lookups by the reuse of their row, the same bins.
    """

    name: str
    source: str
    tables: int
    batch_size: int
    lookups: float
    unique_rows: float
    row_share: tuple[float, ...]
    lookup_share: tuple[float, ...]

    @property
    def mean_pooling_factor(self) -> float:
        """Lookups a sample and table."""
        return self.lookups / self.batch_size / self.tables

    @property
    def mean_reuse(self) -> float:
        """Lookups per distinct row."""
        return self.lookups / self.unique_rows


META_2021 = TableStatistics(
    name="meta2021",
    source="facebookresearch/dlrm_datasets, locality statistics of fbgemm_t856_bs65536",
    tables=856,
    batch_size=65536,
    lookups=887_017_990,
    unique_rows=128_435_723,
    row_share=(
        0.473, 0.152, 0.139, 0.112, 0.072, 0.032, 0.011, 0.005, 0.002, 0.001, 0.0, 0.0, 0.0, 0.0,
        0.0, 0.0, 0.0,
    ),
    lookup_share=(
        0.069, 0.044, 0.068, 0.101, 0.121, 0.104, 0.073, 0.058, 0.052, 0.050, 0.049, 0.048, 0.048,
        0.043, 0.031, 0.023, 0.019,
    ),
)  # fmt: skip

#: Means over the 16 batches that were analysed; they differ by less than 0.04 %.
META_2022 = TableStatistics(
    name="meta2022",
    source="facebookresearch/dlrm_datasets, locality statistics of fbgemm_t788_bs131072",
    tables=788,
    batch_size=131_072,
    lookups=1_405_446_071,
    unique_rows=110_259_895,
    row_share=(
        0.342, 0.144, 0.149, 0.138, 0.112, 0.068, 0.029, 0.010, 0.004, 0.002, 0.001, 0.001, 0.0,
        0.0, 0.0, 0.0, 0.0,
    ),
    lookup_share=(
        0.027, 0.023, 0.040, 0.068, 0.105, 0.120, 0.099, 0.070, 0.059, 0.054, 0.040, 0.072, 0.064,
        0.047, 0.021, 0.017, 0.075,
    ),
)  # fmt: skip

STATISTICS = {statistics.name: statistics for statistics in (META_2021, META_2022)}


@cache
def generate_tables(
    statistics: TableStatistics, count: int, seed: int, data_type: DataType = DataType.FP16
) -> tuple[EmbeddingTable, ...]:
    """Draws tables whose totals per table are the published ones.

    Only uniform random numbers are taken from NumPy and turned into the wanted distributions here,
    so a seed gives the same tables with every version of NumPy.

    Args:
        statistics: Published totals.
        count: Number of tables.
        seed: Seed.
        data_type: Storage type of the rows.
    """
    uniform = np.random.Generator(np.random.PCG64(seed)).random((3, count))
    uniform = np.clip(uniform, 1e-12, 1 - 1e-12)
    # Quantiles of the draw rather than the draw itself would lose the independence of the three;
    # dividing by the mean keeps it and makes the total exact.
    pooling = np.exp(_POOLING_SPREAD * _normal_quantile(uniform[0]))
    pooling = np.maximum(pooling * statistics.mean_pooling_factor / pooling.mean(), 0.05)
    rows = _MEDIAN_ROWS * np.exp(_ROWS_SPREAD * _normal_quantile(uniform[1]))
    seen = statistics.batch_size * pooling / statistics.mean_reuse
    rows = np.clip(
        rows, _ROWS_PER_SEEN_ROW * seen, max(_MAX_ROWS, _ROWS_PER_SEEN_ROW * seen.max())
    )
    dims = np.array(_DIMS)[np.searchsorted(np.cumsum(_DIM_WEIGHTS)[:-1], uniform[2])]
    row_share, lookup_share = _popular_bins(statistics)
    digits = len(str(count - 1))
    return tuple(
        EmbeddingTable(
            name=f"t_{index:0{digits}d}",
            rows=math.ceil(rows[index]),
            dim=int(dims[index]),
            pooling_factors=(round(float(pooling[index]), 3),),
            pooling_distribution=PoolingDistribution.LOGNORMAL,
            indices=ReuseHistogram(
                row_share,
                lookup_share,
                mean_reuse=round(statistics.mean_reuse, 4),
                touched_share=float(f"{seen[index] / math.ceil(rows[index]):.6g}"),
            ),
            data_type=data_type,
        )
        for index in range(count)
    )


def _popular_bins(statistics: TableStatistics) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Replaces row shares that were published as 0.000 by what their lookups imply.

    A bin of reuse (2^k, 2^(k+1)] with a share s of the lookups holds s · mean reuse / 1.5·2^k of
    the rows; the published three digits round that to nothing.
    """
    implied = []
    for index, (row_share, lookup_share) in enumerate(
        zip(statistics.row_share, statistics.lookup_share, strict=True)
    ):
        reuse = 1.0 if index == 0 else 0.75 * 2.0**index
        implied.append(
            row_share if row_share >= 0.002 else lookup_share * statistics.mean_reuse / reuse
        )
    total = sum(implied)
    return tuple(round(share / total, 9) for share in implied), statistics.lookup_share


def _normal_quantile(probability: NDArray[np.float64]) -> NDArray[np.float64]:
    normal = NormalDist()
    return np.array([normal.inv_cdf(value) for value in probability.tolist()])
