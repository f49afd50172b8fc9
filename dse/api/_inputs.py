"""Names, paths and objects: what the functions accept for each input."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping
    from os import PathLike

    from dse.machine.platforms import Platform
    from dse.model import DlrmModel, TransformerModel
    from dse.search.space import SearchSpace
    from dse.sharding import ShardingPlan
    from dse.workload import Workload

    AnySpace = str | PathLike[str] | Mapping[str, object] | SearchSpace
    AnyWorkload = str | PathLike[str] | DlrmModel | TransformerModel | Workload
    AnyPlatform = str | PathLike[str] | Mapping[str, object] | Platform
    AnyPlan = str | PathLike[str] | ShardingPlan
