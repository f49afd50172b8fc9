"""Rates at which machines of MLPerf submissions read samples, by the logs of their own runs.

Submissions name their drives without a rate. Two parts of a run tell one. Up to the first
evaluation of the one-hot model, iterations read their samples and the test set besides, which
stays on the devices from then on. Evaluations of DLRM-DCNv2 read the test set each time. Where a
machine has something else to wait for meanwhile, its storage is faster than that, which hardly
ever matters: the former reads 1.4 times the bytes of as many later iterations, and the latter take
a third to two thirds of the time of training on the same samples.

`measurements/mlperf_reading.csv` has what was read and how long it took. Samples of the raw files
are values of four bytes: a label, 13 dense features, and 26 or 214 keys. The test set has
89,137,319 samples. Submissions whose devices keep a part of it only are left out.
"""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path

from tables import read_table

_READING = Path(__file__).parent / "measurements/mlperf_reading.csv"


def read_rate_bytes_per_s(case: str) -> float | None:
    """Returns the rate at which the machine of a case reads samples; None if it is not known.

    Args:
        case: Name of the case: `MLPerf`, round, submitter and system.
    """
    return _rates().get(case)


@lru_cache(maxsize=1)
def _rates() -> dict[str, float]:
    rows = read_table(_READING)
    cases = "MLPerf " + rows["round"] + " " + rows["submitter"] + " " + rows["system"]
    return dict(zip(cases, (1e9 * rows["read_gb"] / rows["seconds"]).tolist(), strict=True))
