"""One rank of the reference trainer.

An iteration issues the same operations as the predicted one (:func:`build_layout`), in the same
order: lookups of each exchange group followed by their collective, overlapped with the bottom MLP;
interaction and top MLP; backward, where gradients of pooled vectors are sent back as soon as the
interaction has computed them; table updates, overlapped with the all-reduces of dense gradients;
the dense optimizer. Unless the pipeline is `base`, the input collectives of later batches overlap
it.

Dense gradients are reduced by `DistributedDataParallel` in buckets of `dense_bucket_bytes`.
Without `overlap_dense_all_reduce` the same buckets are reduced when the backward pass is over.
fp16 runs without loss scaling, which changes values and not time.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from dse.machine import Precision
from dse.validation._protocol import WeightPiece
from dse.validation.dlrm import (
    fill_initial_weights,
    local_batch,
    make_network,
    make_optimizer,
    stored_type,
)
from dse.validation.trainer.reference._exchange import make_exchange
from dse.validation.trainer.reference._inputs import InputDistribution, to_device
from dse.validation.trainer.reference._layout import PlanLayout
from dse.validation.trainer.reference._tables import ReplicatedTables, SparseTable
from dse.workload.dlrm import ExchangeGroup

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from dse.launch import RankContext
    from dse.validation._types import TrainerOptions
    from dse.validation.dlrm import Candidate
    from dse.validation.trainer.reference._inputs import Bags, DeviceBatch, Feeding


class ReferenceRank:
    """One rank of one candidate.

    All ranks must create it, and call :meth:`step`, together.

    Args:
        torch: The torch module.
        candidate: Checked candidate.
        options: Seed, learning rates, batches.
        context: This rank and its device.
    """

    def __init__(
        self, torch: Any, candidate: Candidate, options: TrainerOptions, context: RankContext
    ) -> None:
        self._torch, self._context = torch, context
        self._software = candidate.problem.software
        self._tables = candidate.model.tables
        self._layout = PlanLayout(candidate)
        self._compute = torch.float64 if options.double else torch.float32
        self._autocast = _autocast_type(torch, candidate, options)
        self._sparse, self._replicated = self._make_tables(candidate, options)
        self._exchanges = {
            group: make_exchange(
                torch, self._layout, context.rank, group, self._wire(options), self._compute
            )
            for group in self._layout.groups
        }
        self._order = self._order_of_parts()
        self._make_network(candidate, options)
        self._batches = self._make_batches(candidate, options)
        self._inputs = InputDistribution(torch, self._layout, context.rank)
        self._feedings: list[Feeding] = []
        self._number = 0
        self._returning: dict[ExchangeGroup, Callable[[], Any]] = {}
        self._bags: dict[ExchangeGroup, list[Bags]] = {}

    # --- set-up ---------------------------------------------------------------------------------

    def _make_tables(
        self, candidate: Candidate, options: TrainerOptions
    ) -> tuple[dict[ExchangeGroup, list[SparseTable]], ReplicatedTables | None]:
        torch, model = self._torch, candidate.model
        weights = {}
        for shard in self._layout.shards[self._context.rank]:
            table, piece = model.tables[shard.table], shard.piece
            weights[shard] = torch.empty(
                (piece.rows, piece.columns),
                dtype=stored_type(torch, table, double=options.double),
                device=self._context.device,
            )
            offset = piece.row_offset, piece.column_offset
            fill_initial_weights(torch, table, shard.table, options.seed, weights[shard], offset)
        optimizer = model.sparse_optimizer
        sparse: dict[ExchangeGroup, list[SparseTable]] = {}
        for shard in self._layout.fed(self._context.rank):
            own_table = SparseTable(torch, shard, weights[shard], optimizer, options)
            sparse.setdefault(shard.group, []).append(own_table)
        copies = self._layout.of(self._context.rank, ExchangeGroup.REPLICATED)
        if not copies:
            return sparse, None
        own = [weights[shard] for shard in copies]
        return sparse, ReplicatedTables(torch, copies, own, optimizer, options)

    def _wire(self, options: TrainerOptions) -> Any:
        narrow = self._software.wire.forward.value_bytes == 2 and not options.double
        return self._torch.float16 if narrow else self._compute

    def _order_of_parts(self) -> list[int]:
        """Returns the order of the parts of all leaves by table, feature and column."""
        places = [place for exchange in self._exchanges.values() for place, _ in exchange.places()]
        return sorted(range(len(places)), key=lambda part: places[part])

    def _make_network(self, candidate: Candidate, options: TrainerOptions) -> None:
        torch, context = self._torch, self._context
        if context.device != "cpu":
            tf32 = candidate.problem.precision is Precision.TF32
            torch.set_float32_matmul_precision("high" if tf32 else "highest")
        network = make_network(torch, candidate.model, options.seed, self._compute, context.device)
        self._parameters = dict(network.named_parameters())
        self._optimizer = make_optimizer(
            torch, candidate.model, network, options.dense_learning_rate
        )
        self._overlaps = context.world_size > 1 and self._software.overlap_dense_all_reduce
        if self._overlaps:
            network = torch.nn.parallel.DistributedDataParallel(
                network,
                device_ids=None if context.device == "cpu" else [context.device],
                bucket_cap_mb=self._software.dense_bucket_bytes / 2**20,
                gradient_as_bucket_view=True,
            )
        self._network = network

    def _make_batches(self, candidate: Candidate, options: TrainerOptions) -> list[DeviceBatch]:
        samples = candidate.local_batch_size
        first = self._context.rank * samples
        return [
            to_device(
                self._torch,
                local_batch(candidate.model, options.seed, number, first, samples),
                self._compute,
                self._context.device,
            )
            for number in range(options.batches)
        ]

    # --- one iteration --------------------------------------------------------------------------

    def step(self) -> Any:
        """Trains one batch; returns the mean loss of this rank's samples, before the update."""
        torch = self._torch
        feeding = self._next()
        outputs = self._send_outputs(feeding)
        device = "cpu" if self._context.device == "cpu" else "cuda"
        with torch.autocast(device, self._autocast, enabled=self._autocast is not None):
            logits = self._network(feeding.batch.dense, lambda: self._leaves(outputs))
        loss = torch.nn.functional.binary_cross_entropy_with_logits(
            logits.to(self._compute), feeding.batch.labels[:, None].expand_as(logits)
        )
        loss.backward()
        if not self._overlaps:
            finish = list(self._reduce_dense())
            self._update_tables()
            for one in finish:
                one()
        self._optimizer.step()
        self._optimizer.zero_grad(set_to_none=True)
        return loss.detach()

    def _next(self) -> Feeding:
        """Returns the next batch, whose indices are being sent, and prefetches later ones."""
        inputs, ahead = self._inputs, self._feedings
        if not self._software.pipeline.distributes_ahead:
            return inputs.send_indices(inputs.send_lengths(self._batch()))
        if not ahead:
            ahead.append(inputs.send_indices(inputs.send_lengths(self._batch())))
            ahead.append(inputs.send_lengths(self._batch()))
        feeding = ahead.pop(0)
        self._bags_of(feeding)
        inputs.send_indices(ahead[0])
        ahead.append(inputs.send_lengths(self._batch()))
        return feeding

    def _batch(self) -> DeviceBatch:
        batch = self._batches[self._number % len(self._batches)]
        self._number += 1
        return batch

    def _bags_of(self, feeding: Feeding) -> None:
        """Waits for the lookups of a batch."""
        inputs, rank = self._inputs, self._context.rank
        self._bags = {group: [] for group in self._layout.groups}
        fed = self._layout.fed(rank)
        for shard, bags in zip(fed, inputs.finish(feeding), strict=True):
            self._bags[shard.group].append(bags)
        if self._replicated is not None:
            self._bags[ExchangeGroup.REPLICATED] = [
                inputs.local(feeding.batch, shard.table) for shard in self._replicated.shards
            ]

    def _send_outputs(self, feeding: Feeding) -> list[Callable[[], Any]]:
        if not self._software.pipeline.distributes_ahead:
            self._bags_of(feeding)
        pending = []
        with self._torch.no_grad():
            for group, exchange in self._exchanges.items():
                pending.append(exchange.send(self._lookup(group)))
        return pending

    def _lookup(self, group: ExchangeGroup) -> Any:
        """Returns the pooled vectors of a group; shape `(samples, columns)`."""
        torch = self._torch
        if group is ExchangeGroup.REPLICATED:
            assert self._replicated is not None
            shards = self._replicated.shards
            pooled = self._replicated.lookup(self._bags[group])
            samples = self._layout.local_batch_size
        else:
            tables = self._sparse.get(group, [])
            shards = tuple(table.shard for table in tables)
            pooled = [
                table.lookup(bags) for table, bags in zip(tables, self._bags[group], strict=True)
            ]
            samples = self._layout.local_batch_size * self._layout.world_size
        # Bags are ordered by feature, then by sample.
        columns = [
            part.to(self._compute)
            for shard, sums in zip(shards, pooled, strict=True)
            for part in sums.view(shard.features, samples, -1).unbind()
        ]
        if not columns:
            return torch.empty((samples, 0), dtype=self._compute, device=self._context.device)
        return columns[0] if len(columns) == 1 else torch.cat(columns, dim=1)

    def _leaves(self, outputs: list[Callable[[], Any]]) -> list[Any]:
        """Waits for the pooled vectors; returns them by table, feature and column."""
        parts: list[Any] = []
        self._returning.clear()
        for (group, exchange), finish in zip(self._exchanges.items(), outputs, strict=True):
            leaf = finish().requires_grad_()
            leaf.register_post_accumulate_grad_hook(self._hook(group))
            parts += exchange.parts(leaf)
        return [parts[part] for part in self._order]

    def _hook(self, group: ExchangeGroup) -> Callable[[Any], None]:
        def send_back(leaf: Any) -> None:
            # Losses are means over a rank's samples, the batch has those of all ranks.
            gradient = leaf.grad.div_(self._context.world_size)
            self._returning[group] = self._exchanges[group].send_back(gradient)
            if self._overlaps and len(self._returning) == len(self._exchanges):
                # Runs after the last gradient, before waiting for dense gradients.
                engine = self._torch.autograd.Variable._execution_engine
                engine.queue_callback(self._update_tables)

        return send_back

    def _update_tables(self) -> None:
        with self._torch.no_grad():
            for group in self._exchanges:
                gradient = self._returning[group]()
                if group is ExchangeGroup.REPLICATED:
                    self._update_copies(gradient)
                    continue
                tables = self._sparse.get(group, [])
                own = gradient.split([table.shard.width for table in tables], dim=1)
                for table, bags, part in zip(tables, self._bags[group], own, strict=True):
                    table.update(bags, _by_feature(part, table.shard.features))

    def _update_copies(self, gradient: Any) -> None:
        copies = self._replicated
        assert copies is not None
        own = gradient.split([shard.width for shard in copies.shards], dim=1)
        copies.accumulate(
            self._bags[ExchangeGroup.REPLICATED],
            [
                _by_feature(part, shard.features)
                for part, shard in zip(own, copies.shards, strict=True)
            ],
        )
        if self._context.world_size > 1:
            self._torch.distributed.all_reduce(copies.gradient)
        copies.update()

    def _reduce_dense(self) -> Iterator[Callable[[], None]]:
        """Starts the all-reduces of dense gradients in buckets; yields a waiting function each."""
        if self._context.world_size == 1:
            return
        bucket: list[Any] = []
        size_bytes = 0
        for parameter in reversed(self._parameters.values()):
            bucket.append(parameter.grad)
            size_bytes += parameter.grad.numel() * parameter.grad.element_size()
            if size_bytes >= self._software.dense_bucket_bytes:
                yield self._reduce(bucket)
                bucket, size_bytes = [], 0
        if bucket:
            yield self._reduce(bucket)

    def _reduce(self, gradients: list[Any]) -> Callable[[], None]:
        flat = self._torch.cat([one.reshape(-1) for one in gradients])
        work = self._torch.distributed.all_reduce(flat, async_op=True)

        def finish() -> None:
            work.wait()
            flat.div_(self._context.world_size)
            parts = flat.split([one.numel() for one in gradients])
            for one, part in zip(gradients, parts, strict=True):
                one.copy_(part.view(one.shape))

        return finish

    # --- results --------------------------------------------------------------------------------

    def weights(self) -> list[WeightPiece]:
        """Returns the shards of tables, by their names; on rank 0 the dense parameters too."""
        found = [
            (table.shard, table.weights) for tables in self._sparse.values() for table in tables
        ]
        if self._replicated is not None:
            found += zip(self._replicated.shards, self._replicated.weights, strict=True)
        pieces = []
        for shard, weights in found:
            table = self._tables[shard.table]
            offset = shard.piece.row_offset, shard.piece.column_offset
            pieces.append(
                WeightPiece(table.name, (table.rows, table.dim), offset, self._array(weights))
            )
        if not self._context.rank:
            for name, parameter in self._parameters.items():
                values = self._array(parameter)
                pieces.append(WeightPiece(name, values.shape, (0,) * values.ndim, values))
        return pieces

    def _array(self, tensor: Any) -> Any:
        return tensor.detach().to("cpu", self._torch.float64).numpy()

    def close(self) -> None:
        """Waits for inputs that were sent ahead."""
        for feeding in self._feedings:
            if feeding.work is not None:
                feeding.work.wait()
        self._feedings.clear()


def _by_feature(gradient: Any, features: int) -> Any:
    """Reorders gradients `(samples, features · columns)` by bag."""
    if features == 1:
        return gradient
    samples = gradient.shape[0]
    return gradient.view(samples, features, -1).transpose(0, 1).reshape(features * samples, -1)


def _autocast_type(torch: Any, candidate: Candidate, options: TrainerOptions) -> Any:
    if options.double:
        return None
    kinds = {Precision.FP16: torch.float16, Precision.BF16: torch.bfloat16}
    return kinds.get(candidate.problem.precision)
