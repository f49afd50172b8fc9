"""The readers on tables that others published; skipped where these are not at hand."""

from __future__ import annotations

from collections import Counter

import pytest

from benchmarks.folders import DATA
from dse.calibration.measurements import ColumnOptions, read_collective, read_gemm

pytestmark = pytest.mark.skipif(
    not (DATA / "gemm").is_dir() or not (DATA / "nccl").is_dir(),
    reason=f"no published measurements in {DATA}; name their folder in DSE_MEASUREMENTS",
)


@pytest.mark.parametrize(
    ("name", "counts", "seconds"),
    [
        ("a100_sxm", {"bf16": 35742}, 0.056320e-3),
        ("h100_sxm", {"bf16": 35742, "fp8": 35742, "fp8_block": 29519}, 63.745294e-3),
        ("h200_sxm", {"bf16": 35742, "fp8": 35742, "fp8_block": 29526}, 0.007408e-3),
    ],
)
def test_gemm_tables(name, counts, seconds):
    path = DATA / "gemm" / f"{name}.parquet"
    samples = read_gemm(path)
    assert Counter(samples.precision.tolist()) == counts
    assert samples.time_s[0] == pytest.approx(seconds, rel=1e-4)
    assert samples.source_rows[0] == 1
    chosen = read_gemm(path, ColumnOptions(filters={"gemm_dtype": "bfloat16"}))
    assert len(chosen) == counts["bf16"]
    assert chosen.notes[0] == (
        f"filter gemm_dtype=bfloat16: 35742 of {sum(counts.values())} rows kept"
    )


@pytest.mark.parametrize(
    ("name", "seconds"),
    [("a100_sxm_8", 8.98e-6), ("h100_sxm_8", 5.31e-6), ("h200_sxm_8", 5.36e-6)],
)
def test_collective_tables(name, seconds):
    samples = read_collective(DATA / "nccl" / f"{name}.parquet")
    assert Counter(samples.op.tolist()) == dict.fromkeys(
        ("all_gather", "all_reduce", "reduce_scatter", "all_to_all"), 126
    )
    assert Counter(samples.ranks.tolist()) == {2: 168, 4: 168, 8: 168}
    assert Counter(samples.dtype.tolist()) == {"fp16": 252, "int8": 252}
    # 256 elements of two bytes.
    assert samples.size_bytes[0] == 512
    assert samples.time_s[0] == pytest.approx(seconds)
    assert samples.size_bytes.max() == 2**29
