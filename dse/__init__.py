"""Design-space exploration and autotuning for multi-GPU training.

``dse`` answers, before anybody rents a cluster: which sharding plan, which batch size, on which
machines, and at what price? The functions here are the whole library in a few names; everything
heavy is imported when it is first used.

Example:
    >>> import dse
    >>> study = dse.run("dlrm_sharding", trials=20, out=Path("results/try"))  # doctest: +SKIP
    >>> print(study.result.conclusion)  # doctest: +SKIP
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from dse.machine.platforms import load_platform
    from dse.model import load_model
    from dse.search import run
    from dse.search.space import load_space
    from dse.trace.capture import capture
    from dse.workload.dlrm import predict
    from dse.workload.dlrm.solver import shard

__version__ = "0.1.0"

__all__ = [
    "__version__",
    "capture",
    "load_model",
    "load_platform",
    "load_space",
    "predict",
    "run",
    "shard",
]

_HOMES = {
    "capture": "dse.trace.capture",
    "load_model": "dse.model",
    "load_platform": "dse.machine.platforms",
    "load_space": "dse.search.space",
    "predict": "dse.workload.dlrm",
    "run": "dse.search",
    "shard": "dse.workload.dlrm.solver",
}


def __getattr__(name: str) -> object:
    """Imports a public function when it is first used."""
    if name in _HOMES:
        return getattr(import_module(_HOMES[name]), name)
    raise AttributeError(f"module `dse` has no attribute `{name}`")


def __dir__() -> list[str]:
    return sorted(__all__)
