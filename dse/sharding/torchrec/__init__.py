"""TorchRec's sharding plans: JSON and live objects, in and out."""

from __future__ import annotations

from dse.sharding.torchrec._conventions import OPTIMIZER_TYPES
from dse.sharding.torchrec._document import (
    DmpCollection,
    LoadFactor,
    Ranks,
    TorchRecPlan,
    WorldSize,
    is_torchrec,
    parse_torchrec,
    render_torchrec,
)
from dse.sharding.torchrec._export import TORCHREC_MODULE, export_plan
from dse.sharding.torchrec._import import import_plan
from dse.sharding.torchrec._objects import from_torchrec, to_torchrec

__all__ = [
    "OPTIMIZER_TYPES",
    "TORCHREC_MODULE",
    "DmpCollection",
    "LoadFactor",
    "Ranks",
    "TorchRecPlan",
    "WorldSize",
    "export_plan",
    "from_torchrec",
    "import_plan",
    "is_torchrec",
    "parse_torchrec",
    "render_torchrec",
    "to_torchrec",
]
