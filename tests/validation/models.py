"""A small model, candidates of it, and what training it must give, computed another way."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from dse.indices import Uniform, Zipf
from dse.machine import Precision
from dse.model import (
    DataType,
    DlrmModel,
    EmbeddingTable,
    Interaction,
    InteractionKind,
    Optimizer,
    PoolingDistribution,
)
from dse.sharding import ShardingPlan, ShardingType, TablePlan, column_widths
from dse.validation import Candidate, TrainerOptions, TrainingResult, local_batch
from dse.validation.dlrm import fill_initial_weights, make_network
from dse.workload.dlrm import DlrmProblem, DlrmRuntime
from tests.conftest import make_cluster

BATCH = 24
#: Large rates, so that wrong updates of rows show in the losses and the weights.
OPTIONS = TrainerOptions(
    seed=3, sparse_learning_rate=0.5, dense_learning_rate=0.1, batches=3, double=True
)
DOT = Interaction(InteractionKind.DOT)


def table(name, rows, pooling, distribution=PoolingDistribution.FIXED, indices=None):
    indices = indices or Uniform()
    return EmbeddingTable(name, rows, 8, pooling, distribution, indices, DataType.FP32)


TABLES = (
    table("a", 50, (2.0,)),
    # Two features share it, popular rows repeat, bags may be empty, blocks are uneven.
    table("b", 37, (3.0, 1.5), PoolingDistribution.POISSON, Zipf(1.1)),
    table("c", 21, (1.0,), PoolingDistribution.LOGNORMAL),
    table("d", 9, (4.0,)),
)


def model(sparse=Optimizer.SGD, dense=Optimizer.SGD, interaction=DOT, **changes):
    made = DlrmModel(
        name="small",
        description="",
        source="made for tests",
        dense_features=5,
        bottom_mlp=(12, 8),
        interaction=interaction,
        top_mlp=(16, 1),
        tables=TABLES,
        precision=Precision.FP32,
        dense_optimizer=dense,
        sparse_optimizer=sparse,
        global_batch_size=BATCH,
    )
    return replace(made, **changes)


def candidate(name, what, world_size, placements, *, nodes_of=None, batch=BATCH, **software):
    """Placements: (sharding type, ranks) of each table in turn."""
    tables = tuple(
        TablePlan(one.name, kind, ranks)
        for one, (kind, ranks) in zip(what.tables, placements, strict=True)
    )
    cluster = make_cluster(world_size, nodes_of or world_size)
    problem = DlrmProblem(what, cluster, batch, what.precision, DlrmRuntime(**software))
    return Candidate(name, problem, ShardingPlan(world_size, tables))


def trained_by_hand(one: Candidate, steps: int) -> TrainingResult:
    """The unsharded model by dense autograd and update rules written out."""
    import torch

    what, plan = one.model, one.plan
    weights = []
    for number, own in enumerate(what.tables):
        weights.append(torch.empty((own.rows, own.dim), dtype=torch.float64))
        fill_initial_weights(torch, own, number, OPTIONS.seed, weights[-1])
    network = make_network(torch, what, OPTIONS.seed, torch.float64, "cpu")
    dense = list(network.parameters())
    kind = {"sgd": torch.optim.SGD, "adagrad": torch.optim.Adagrad, "adam": torch.optim.Adam}
    optimizer = kind[what.dense_optimizer.value](dense, lr=OPTIONS.dense_learning_rate)
    rules = [
        RowRule(what.sparse_optimizer, own.shape, placement)
        for own, placement in zip(weights, plan.tables, strict=True)
    ]
    losses = []
    for step in range(steps):
        number = step % OPTIONS.batches
        batch = local_batch(what, OPTIONS.seed, number, 0, one.problem.global_batch_size)
        values = torch.from_numpy(batch.dense)
        pooled, used = [], []
        for own, lengths, rows in zip(weights, batch.lengths, batch.indices, strict=True):
            own.requires_grad_()
            own.grad = None
            # One line a bag, one column a row: a product with the table is the pooled sum.
            counts = np.zeros((len(lengths), len(own)))
            np.add.at(counts, (np.repeat(np.arange(len(lengths)), lengths), rows), 1.0)
            sums = torch.from_numpy(counts) @ own
            pooled += sums.split(len(values))
            used.append(counts.any(axis=0))
        logits = _forward(torch, what, dense, values, pooled)
        labels = torch.from_numpy(batch.labels)
        loss = (torch.nn.functional.softplus(logits) - labels * logits).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        for own, rule, touched in zip(weights, rules, used, strict=True):
            own.data += torch.from_numpy(rule.step(own.grad.numpy(), touched))
        losses.append(float(loss.detach()))
    return TrainingResult(
        tuple(losses),
        {table.name: own.detach().numpy() for table, own in zip(what.tables, weights, strict=True)}
        | {name: own.detach().numpy() for name, own in network.named_parameters()},
    )


def _forward(torch, what, dense, values, pooled):
    """The dense part, from its parameters in their order."""
    left = iter(dense)

    def layers(hidden, count, last_is_linear):
        for layer in range(count):
            hidden = hidden @ next(left).T + next(left)
            if not (last_is_linear and layer == count - 1):
                hidden = hidden.clamp(min=0)
        return hidden

    hidden = layers(values, len(what.bottom_mlp), last_is_linear=False)
    kind = what.interaction.kind
    if kind is InteractionKind.DOT:
        vectors = [hidden, *pooled]
        pairs = [
            (vectors[i] * vectors[j]).sum(dim=1) for i in range(len(vectors)) for j in range(i)
        ]
        met = torch.cat([hidden, torch.stack(pairs, dim=1)], dim=1)
    elif kind is InteractionKind.CONCAT:
        columns = torch.cat(pooled, dim=1)
        stride = what.interaction.stride
        parts = [
            columns[:, at : at + stride].mean(dim=1) for at in range(0, columns.shape[1], stride)
        ]
        met = torch.cat([torch.stack(parts, dim=1), hidden], dim=1)
    else:
        count = what.interaction.layers
        down = [next(left) for _ in range(count)]
        start = met = torch.cat([*pooled, hidden], dim=1)
        for v in down:
            met = start * (met @ v.T @ next(left).T + next(left)) + met
    return layers(met, len(what.top_mlp), last_is_linear=True)[:, 0]


class RowRule:
    """An update rule of one table, with its state."""

    def __init__(self, optimizer, shape, placement):
        self.optimizer, self.steps = optimizer, 0
        self.first, self.second = np.zeros(shape), np.zeros(shape)
        kind = placement.sharding_type
        self.copies = kind is ShardingType.DATA_PARALLEL
        pieces = {
            ShardingType.COLUMN_WISE: len(placement.ranks),
            ShardingType.TABLE_COLUMN_WISE: len(placement.ranks),
            ShardingType.GRID_SHARD: len(placement.ranks) // 2,  # nodes of two ranks
        }.get(kind, 1)
        widths = column_widths(shape[1], pieces)
        starts = np.cumsum([0, *widths[:-1]])
        self.columns = [
            slice(start, start + width) for start, width in zip(starts, widths, strict=True)
        ]

    def step(self, gradient, used):
        """Returns what is added to the weights."""
        self.steps += 1
        rate = OPTIONS.sparse_learning_rate
        if self.optimizer is Optimizer.SGD:
            return -rate * gradient
        if self.optimizer is Optimizer.ADAM:
            # Copies are updated densely: all moments decay, and rows move on by what is left.
            rows = np.ones_like(used) if self.copies else used
            self.first[rows] += 0.1 * (gradient - self.first)[rows]
            self.second[rows] += 0.001 * (gradient**2 - self.second)[rows]
            first = self.first / (1 - 0.9**self.steps)
            second = self.second / (1 - 0.999**self.steps)
            return np.where(rows[:, None], -rate * first / (np.sqrt(second) + 1e-8), 0.0)
        squares = gradient**2
        if self.optimizer is Optimizer.ROWWISE_ADAGRAD:
            for columns in self.columns:
                squares[:, columns] = squares[:, columns].mean(axis=1, keepdims=True)
        self.first += squares
        return -rate * gradient / (np.sqrt(self.first) + 1e-8)
