"""How many mutated files each reader gets.

A few hundred by default, 10,000 over all readers with `-m slow`, more with
`DSE_FUZZ_FILES=100000`.
"""

from __future__ import annotations

import pytest

from tests.fuzzing import (
    FILES,
    QUICK_FILES,
)

#: Percentage of the files that each reader gets.
SHARES = {
    "model": 8,
    "platform": 8,
    "calibrations": 6,
    "space": 10,
    "plan": 10,
    "constraints": 5,
    "profile": 5,
    "steps": 6,
    "tables": 8,
    "list": 2,
    "versus": 2,
    "parquet": 2,
    "log": 4,
    "records": 3,
    "kineto": 9,
    "archives": 2,
    "execution": 6,
    "study": 3,
    "validation": 1,
}


@pytest.fixture(
    params=[
        pytest.param("quick", marks=pytest.mark.part_of_slow),
        pytest.param("all", marks=pytest.mark.slow),
    ]
)
def count(request):
    """Returns how many mutated files a reader gets."""
    if request.param == "all":
        return lambda reader: FILES * SHARES[reader] // 100
    return lambda reader: max(QUICK_FILES * SHARES[reader] // 100, 20)
