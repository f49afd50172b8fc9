"""One rank of TorchRec, made from the script that `dse export --format torchrec` writes.

Model, sharder, optimizers and pipeline are those of the script; batches and initial weights of
tables are those of the other trainers, so that every plan trains the same.
"""

from __future__ import annotations

from itertools import cycle
import logging
from typing import TYPE_CHECKING, Any
import warnings

import numpy as np

from dse._torch import load_torch
from dse.errors import PlanError
from dse.sharding import TORCHREC_MODULE, to_torchrec
from dse.validation._protocol import WeightPiece
from dse.validation.dlrm import fill_initial_weights, local_batch
from dse.workload.dlrm.deploy import load_train_script, torchrec_job

if TYPE_CHECKING:
    from collections.abc import Iterator

    from dse.launch import RankContext
    from dse.validation._types import TrainerOptions
    from dse.validation.dlrm import Candidate


class TorchRecRank:
    """One rank of one candidate.

    Args:
        candidate: Checked candidate.
        options: Seed, learning rates, batches; everything is computed in single precision.
        context: This rank and its device.

    Raises:
        PlanError: The running module is not sharded as planned.
    """

    def __init__(
        self, candidate: Candidate, options: TrainerOptions, context: RankContext
    ) -> None:
        self._torch = torch = load_torch()
        self._rank = context.rank
        self._tables = candidate.model.tables
        self._device = torch.device(context.device)
        problem = candidate.problem
        cluster = problem.cluster
        self._job = torchrec_job(candidate.job(), TORCHREC_MODULE) | {
            "sparse_learning_rate": options.sparse_learning_rate,
            "dense_learning_rate": options.dense_learning_rate,
        }
        formats = {
            op: {"forward_precision": forward, "backward_precision": backward}
            for op, (forward, backward) in problem.software.wire.qcomms().items()
        }
        plan = to_torchrec(
            candidate.plan,
            candidate.model,
            devices_per_node=cluster.devices_per_node,
            device_kind=self._device.type,
            devices_per_domain=cluster.devices_per_domain,
        )
        # TorchRec warns of its own deprecated calls, and of what every plan leaves to it.
        warnings.simplefilter("ignore")
        for library in ("torchrec", "torch.fx"):
            logging.getLogger(library).setLevel(logging.ERROR)
        with torch.random.fork_rng(devices=[]):
            self._script = load_train_script()
            torch.manual_seed(options.seed)
            model = self._script.Model(self._job)
            self._sharded, self._pipeline = self._script.assemble(
                model, self._job, plan, formats, self._device
            )
            if wrong := self._script.misplaced(self._sharded, self._job, plan):
                raise PlanError(
                    f"candidate `{candidate.name}`: TorchRec has not sharded {', '.join(wrong)} "
                    "as planned"
                )
            self._fill_tables(options.seed)
        self._batches = self._endless(candidate, options)

    def _shards(self) -> Iterator[tuple[int, Any, tuple[int, int]]]:
        """Yields table, weights and first row and column of each shard of this rank."""
        weights = self._script.weights(self._sharded, self._job)
        for number, table in enumerate(self._tables):
            weight = weights[table.name]
            if not hasattr(weight, "local_shards"):
                yield number, weight.detach(), (0, 0)
                continue
            for shard in weight.local_shards():
                row, column = shard.metadata.shard_offsets
                yield number, shard.tensor.detach(), (row, column)

    def _fill_tables(self, seed: int) -> None:
        for number, weights, offset in self._shards():
            fill_initial_weights(self._torch, self._tables[number], number, seed, weights, offset)

    def _endless(self, candidate: Candidate, options: TrainerOptions) -> Iterator[Any]:
        torch, script = self._torch, self._script
        samples = candidate.local_batch_size
        keys = [
            f"{table.name}_{number}"
            for table in self._tables
            for number in range(table.feature_count)
        ]
        made = []
        for number in range(options.batches):
            batch = local_batch(
                candidate.model, options.seed, number, self._rank * samples, samples
            )
            values = torch.from_numpy(np.concatenate(batch.indices))
            lengths = torch.from_numpy(np.concatenate(batch.lengths))
            jagged = script.KeyedJaggedTensor(keys, values, lengths=lengths)
            dense, labels = (torch.from_numpy(own).float() for own in (batch.dense, batch.labels))
            made.append(script.Batch(dense, jagged, labels))
        return cycle(made)

    def step(self) -> Any:
        """Trains one batch; returns the mean loss of this rank's samples, before the update."""
        with self._script.arithmetic(self._job, self._device):
            loss, _, _ = self._pipeline.progress(self._batches)
        return loss

    def weights(self) -> list[WeightPiece]:
        """Returns the shards of tables, by their names; on rank 0 what all ranks hold too."""
        pieces = []
        replicated = {
            number
            for number, table in enumerate(self._script.weights(self._sharded, self._job).values())
            if not hasattr(table, "local_shards")
        }
        for number, weights, offset in self._shards():
            if number not in replicated or not self._rank:
                table = self._tables[number]
                values = self._array(weights)
                pieces.append(WeightPiece(table.name, (table.rows, table.dim), offset, values))
        if not self._rank:
            for name, parameter in self._sharded.named_parameters():
                if TORCHREC_MODULE not in name:
                    values = self._array(parameter)
                    place = (0,) * values.ndim
                    pieces.append(WeightPiece(name, values.shape, place, values))
        return pieces

    def _array(self, tensor: Any) -> Any:
        return tensor.detach().to("cpu", self._torch.float64).numpy()

    def close(self) -> None:
        """Frees the module, once all ranks have received what its pipeline sent ahead."""
        self._torch.distributed.barrier()
        del self._pipeline, self._sharded
