"""Design-space exploration and autotuning for multi-GPU training.

``dse`` answers, before anybody rents a cluster: which sharding plan, which batch size, on which
machines, and at what price? The names here are the whole library in a few words; everything heavy
is imported when it is first used.

Example:
    >>> import dse
    >>> job = dse.Job("dlrm_dcnv2", "h100_sxm", world_size=8, global_batch_size=55296)
    >>> job.predict().feasible  # doctest: +SKIP
    True
    >>> study = dse.create_study("dlrm_sharding", seed=0)  # doctest: +SKIP
    >>> study.optimize(60).best_trials  # doctest: +SKIP
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from dse.api import (
        Job,
        Study,
        collective,
        collective_table,
        compare,
        create_study,
        load_study,
        model_from_torchrec,
        predict,
        rank,
        recommend,
        run,
        shard,
        validate,
    )
    from dse.errors import DseError
    from dse.machine.platforms import load_platform
    from dse.model import load_model
    from dse.search.space import load_space
    from dse.trace.capture import capture

__version__ = "0.1.0"

__all__ = [
    "DseError",
    "Job",
    "Study",
    "__version__",
    "capture",
    "collective",
    "collective_table",
    "compare",
    "create_study",
    "load_model",
    "load_platform",
    "load_space",
    "load_study",
    "model_from_torchrec",
    "predict",
    "rank",
    "recommend",
    "run",
    "shard",
    "validate",
]

_HOMES = {
    "DseError": "dse.errors",
    "capture": "dse.trace.capture",
    "load_model": "dse.model",
    "load_platform": "dse.machine.platforms",
    "load_space": "dse.search.space",
}


def __getattr__(name: str) -> object:
    """Imports a public name when it is first used."""
    if name in __all__:
        return getattr(import_module(_HOMES.get(name, "dse.api")), name)
    raise AttributeError(f"module `dse` has no attribute `{name}`")


def __dir__() -> list[str]:
    return sorted(__all__)
