"""A planner with the interface of TorchRec's `EmbeddingShardingPlanner`."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

from dse.api import Job
from dse.errors import ConfigError, DseError, OptionalDependencyError
from dse.machine.platforms import load_platform, platform_of_device
from dse.model.torchrec import read_torchrec
from dse.sharding import format_size, to_torchrec
from dse.torchrec._understood import (
    NotModelledError,
    ranks_of,
    sharder_rule,
    table_constraints,
    with_pooling,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from dse.machine.platforms import Platform
    from dse.torchrec._understood import Ranks
    from dse.workload import ParameterValue

_LOGGER = logging.getLogger("dse.torchrec")

#: Samples of a rank where the script does not say, as TorchRec's own planner takes it.
_BATCH_SIZE = 512


class Planner:
    """Plans embedding sharding with the performance model and solver of this package.

    Takes the place of `torchrec.distributed.planner.EmbeddingShardingPlanner` in a script: the
    same arguments, the same methods, the same plan object. The log says what is predicted, how
    much better any plan could be, and what the fullest rank holds. If something is requested that
    is not modelled (virtual tables, several batch sizes, devices of different sizes), a warning
    names it and TorchRec's planner makes the plan.

    Args:
        topology: TorchRec's `Topology`; ranks of the process group or of torchrun if None, with
            the memory of the platform.
        batch_size: Samples of one rank.
        constraints: TorchRec's `ParameterConstraints` by table.
        platform: Name, file or object of the machine; by default the built-in one of this GPU.
        program: Training program that is predicted.
        batches: Sample batches, from which pooling factors and the popularity of rows are
            measured; pooling factors are those of the constraints without them.
        time_limit_s: Stop looking for better plans after this many seconds.
        parameters: Further parameters of the job, such as `train_pipeline` or
            `communication_precision`.

    Raises:
        ConfigError: The batch size is negative.

    Example:
        >>> planner = dse.torchrec.Planner(  # doctest: +SKIP
        ...     topology, batch_size=4096, platform="h100_sxm"
        ... )
        >>> plan = planner.collective_plan(module, sharders, pg)  # doctest: +SKIP
    """

    def __init__(
        self,
        topology: Any = None,
        batch_size: int | None = None,
        constraints: Mapping[str, Any] | None = None,
        *,
        platform: str | Platform = "",
        program: str = "torchrec",
        batches: Iterable[Any] = (),
        time_limit_s: float | None = None,
        **parameters: ParameterValue,
    ) -> None:
        self._topology = topology
        self._batch_size = batch_size or _BATCH_SIZE
        if not self._batch_size >= 1:
            raise ConfigError(f"batch_size {batch_size}; expected at least one sample of a rank")
        self._constraints = dict(constraints or {})
        self._platform = platform
        self._program = program
        self._batches = batches
        self._time_limit_s = time_limit_s
        self._parameters: dict[str, Any] = dict(parameters)

    def plan(self, module: Any, sharders: Sequence[Any]) -> Any:
        """Returns a plan of a module, as `torchrec.distributed.types.ShardingPlan`.

        Args:
            module: The module that is to be sharded.
            sharders: What shards it.

        Raises:
            OptionalDependencyError: TorchRec is not installed.
            InfeasibleError: No plan fits; says what is missing and what would help.
        """
        _require_torchrec()
        try:
            return self._own_plan(module, sharders)
        except NotModelledError as reason:
            _LOGGER.warning("%s is not modelled: TorchRec's own planner makes the plan", reason)
            return self._torchrec_plan(module, sharders)

    def collective_plan(
        self, module: Any, sharders: Sequence[Any] | None = None, pg: Any = None
    ) -> Any:
        """Returns the plan that rank 0 makes, on every rank.

        Args:
            module: The module that is to be sharded.
            sharders: What shards it; TorchRec's defaults if None.
            pg: Process group; all ranks if None.

        Raises:
            OptionalDependencyError: TorchRec is not installed.
        """
        _require_torchrec()
        from torch import distributed
        from torchrec.distributed.collective_utils import invoke_on_rank_and_broadcast_result
        from torchrec.distributed.sharding_plan import get_default_sharders

        group = pg if pg is not None else distributed.group.WORLD
        chosen = get_default_sharders() if sharders is None else sharders
        return invoke_on_rank_and_broadcast_result(group, 0, self.plan, module, chosen)

    def _own_plan(self, module: Any, sharders: Sequence[Any]) -> Any:
        ranks = ranks_of(self._topology)
        batch_size = ranks.world_size * self._batch_size
        try:
            live = read_torchrec(
                module,
                self._batches,
                global_batch_size=batch_size,
                sparse_optimizer=sharder_rule(sharders),
            )
        except DseError as error:
            raise NotModelledError(str(error)) from error
        measured = {one.table for one in live.lookups}
        unmeasured = {
            table: one for table, one in self._constraints.items() if table not in measured
        }
        model = with_pooling(live.model, unmeasured)
        platform = ranks.on(self._machine(ranks))
        job = Job(
            model,
            platform,
            world_size=ranks.world_size,
            global_batch_size=batch_size,
            program=self._program,
            **self._parameters,
        )
        found = job.shard(
            constraints=table_constraints(self._constraints, sharders, ranks.device_kind),
            time_limit_s=self._time_limit_s,
        )
        bound = (
            ""
            if found.gap is None
            else f", at most {100 * found.gap:.1f} % slower than any plan could be"
        )
        _LOGGER.info(
            "%d tables on %d × %s under %s: %.3f ms predicted%s; the fullest rank holds %s of %s; "
            "planned in %.1f s",
            len(model.tables),
            ranks.world_size,
            platform.name,
            self._program,
            1e3 * found.iteration_time_s,
            bound,
            format_size(found.peak_memory_bytes),
            format_size(platform.device.memory_bytes),
            found.planning_time_s + found.bound_time_s,
        )
        for note in live.notes:
            _LOGGER.info("%s", note)
        return to_torchrec(
            found.plan,
            model,
            devices_per_node=ranks.devices_per_node,
            device_kind=ranks.device_kind,
            module_path=live.paths,
        )

    def _machine(self, ranks: Ranks) -> Platform:
        if self._platform:
            return load_platform(self._platform)
        if ranks.device_kind == "cpu":
            return load_platform("cpu")
        import torch

        if not torch.cuda.is_available():
            raise ConfigError(
                "there is no GPU here to identify the platform by; pass its name as `platform`"
            )
        return platform_of_device(torch.cuda.get_device_name(), ranks.world_size)

    def _torchrec_plan(self, module: Any, sharders: Sequence[Any]) -> Any:
        from torchrec.distributed.planner import EmbeddingShardingPlanner

        own = EmbeddingShardingPlanner(
            topology=self._topology,
            batch_size=self._batch_size,
            constraints=self._constraints or None,
        )
        return own.plan(module, list(sharders))


def _require_torchrec() -> None:
    try:
        import torchrec  # noqa: F401
    except (ImportError, OSError) as error:
        raise OptionalDependencyError(
            f"this needs TorchRec, which cannot be imported here ({error}); docs/torchrec.md says "
            "how to install it"
        ) from error
