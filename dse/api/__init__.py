"""Jobs and studies by name: what `import dse` offers.

Names, paths and objects are accepted everywhere. Everything heavy is imported when it is first
used.
"""

from __future__ import annotations

from dse.api._collective import TABLE_SIZES_BYTES, collective, collective_table
from dse.api._job import Job, predict, rank, shard
from dse.api._model import model_from_torchrec
from dse.api._recommend import recommend
from dse.api._study import Study, compare, create_study, load_study, run, validate

__all__ = [
    "TABLE_SIZES_BYTES",
    "Job",
    "Study",
    "collective",
    "collective_table",
    "compare",
    "create_study",
    "load_study",
    "model_from_torchrec",
    "predict",
    "rank",
    "recommend",
    "run",
    "shard",
    "validate",
]
