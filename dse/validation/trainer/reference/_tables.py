"""Shards of embedding tables: initial weights, lookups and updates of used rows.

A lookup is ``torch.nn.functional.embedding_bag`` in sum mode. An update computes the gradient of
each lookup, merges those of equal rows (a sort and a sum) and updates each row once, as measured
by ``dse calibrate``. The rules are those of fused updates (FBGEMM):

* row-wise Adagrad keeps the mean squared gradient over the shard's columns, so the state, and the
  trajectory, of a column-wise table depends on its shards;
* Adam updates the moments of used rows only.

Replicated tables are updated densely, so Adam's moments of all rows decay.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from dse.model import Optimizer

if TYPE_CHECKING:
    from dse.validation._types import TrainerOptions
    from dse.validation.trainer.reference._inputs import Bags
    from dse.validation.trainer.reference._layout import Shard

_EPSILON = 1e-8
_BETA_1, _BETA_2 = 0.9, 0.999


def lookup(torch: Any, weights: Any, bags: Bags) -> Any:
    """Returns the sums of the rows of each bag; shape `(bags, columns)`."""
    return torch.nn.functional.embedding_bag(bags.indices, weights, bags.offsets, mode="sum")


def _gradient_rows(torch: Any, bags: Bags, gradient: Any) -> Any:
    """Returns the gradient of every lookup; shape `(lookups, columns)`."""
    bag = torch.repeat_interleave(
        torch.arange(bags.lengths.shape[0], device=gradient.device),
        bags.lengths,
        output_size=bags.indices.shape[0],
    )
    return gradient.index_select(0, bag)


class SparseTable:
    """A shard whose used rows are updated.

    Args:
        torch: The torch module.
        shard: The shard.
        weights: Its initial weights.
        optimizer: Update rule.
        options: Learning rate.
    """

    def __init__(
        self,
        torch: Any,
        shard: Shard,
        weights: Any,
        optimizer: Optimizer,
        options: TrainerOptions,
    ) -> None:
        self.shard = shard
        self.weights = weights
        self._torch = torch
        self._optimizer = optimizer
        self._rate = options.sparse_learning_rate
        self._steps = 0
        # Gradients and state of narrow rows are wide, as in fused updates.
        wide = torch.float64 if weights.dtype is torch.float64 else torch.float32
        self._wide = wide
        rows, columns = weights.shape
        shapes: dict[Optimizer, tuple[tuple[int, ...], ...]] = {
            Optimizer.SGD: (),
            Optimizer.ROWWISE_ADAGRAD: ((rows,),),
            Optimizer.ADAGRAD: ((rows, columns),),
            Optimizer.ADAM: ((rows, columns), (rows, columns)),
        }
        self._state = [
            torch.zeros(shape, dtype=wide, device=weights.device) for shape in shapes[optimizer]
        ]

    def lookup(self, bags: Bags) -> Any:
        """Returns the sums of the rows of each bag; shape `(bags, columns)`."""
        return lookup(self._torch, self.weights, bags)

    def update(self, bags: Bags, gradient: Any) -> None:
        """Updates the rows that the bags used.

        Args:
            bags: Lookups of the forward pass.
            gradient: Of each bag's sum; shape `(bags, columns)`.
        """
        torch = self._torch
        self._steps += 1
        if not bags.indices.shape[0]:
            return
        every = _gradient_rows(torch, bags, gradient.to(self._wide))
        merged = torch.sparse_coo_tensor(
            bags.indices[None], every, self.weights.shape, check_invariants=False
        ).coalesce()
        rows, values = merged.indices()[0], merged.values()
        if self._optimizer is Optimizer.SGD:
            self._add(rows, values, -self._rate)
        elif self._optimizer is Optimizer.ROWWISE_ADAGRAD:
            (mean,) = self._state
            mean.index_add_(0, rows, values.square().mean(dim=1))
            scale = mean.index_select(0, rows).sqrt_().add_(_EPSILON)
            self._add(rows, values.div_(scale[:, None]), -self._rate)
        elif self._optimizer is Optimizer.ADAGRAD:
            (total,) = self._state
            total.index_add_(0, rows, values.square())
            scale = total.index_select(0, rows).sqrt_().add_(_EPSILON)
            self._add(rows, values.div_(scale), -self._rate)
        else:
            first, second = self._state
            one = first.index_select(0, rows).lerp_(values, 1 - _BETA_1)
            two = second.index_select(0, rows).lerp_(values.square(), 1 - _BETA_2)
            first.index_copy_(0, rows, one)
            second.index_copy_(0, rows, two)
            self._add(rows, *adam_step(one, two, self._steps, self._rate))

    def _add(self, rows: Any, values: Any, factor: float) -> None:
        self.weights.index_add_(0, rows, values.to(self.weights.dtype), alpha=factor)


def adam_step(first: Any, second: Any, steps: int, rate: float) -> tuple[Any, float]:
    """Returns Adam's direction and step factor, with bias-corrected moments."""
    scale = (second / (1 - _BETA_2**steps)).sqrt_().add_(_EPSILON)
    return first / scale, -rate / (1 - _BETA_1**steps)


class ReplicatedTables:
    """Replicated tables, with one dense gradient for all of them.

    Args:
        torch: The torch module.
        shards: The replicas of this rank.
        weights: Their initial weights, in the same order.
        optimizer: Update rule.
        options: Learning rate.
    """

    def __init__(
        self,
        torch: Any,
        shards: tuple[Shard, ...],
        weights: list[Any],
        optimizer: Optimizer,
        options: TrainerOptions,
    ) -> None:
        self.shards, self.weights = shards, weights
        self._torch = torch
        self._optimizer = optimizer
        self._rate = options.sparse_learning_rate
        self._steps = 0
        wide = torch.float64 if options.double else torch.float32
        count = sum(one.numel() for one in weights)
        self.gradient = torch.zeros(count, dtype=wide, device=weights[0].device)
        self._gradients = self._views(self.gradient)
        states = optimizer.state_values_per_parameter
        self._state = [self._views(torch.zeros_like(self.gradient)) for _ in range(states)]

    def _views(self, flat: Any) -> list[Any]:
        parts = flat.split([one.numel() for one in self.weights])
        return [part.view(one.shape) for part, one in zip(parts, self.weights, strict=True)]

    def lookup(self, bags: list[Bags]) -> list[Any]:
        """Returns the sums of each table's bags."""
        return [
            lookup(self._torch, weights, own)
            for weights, own in zip(self.weights, bags, strict=True)
        ]

    def accumulate(self, bags: list[Bags], gradients: list[Any]) -> None:
        """Computes the dense gradient of all tables.

        Args:
            bags: Lookups of each table.
            gradients: Of each table's sums.
        """
        self.gradient.zero_()
        for target, own, gradient in zip(self._gradients, bags, gradients, strict=True):
            every = _gradient_rows(self._torch, own, gradient.to(target.dtype))
            target.index_add_(0, own.indices, every)

    def update(self) -> None:
        """Updates all rows with the dense gradient."""
        self._steps += 1
        for number, (weights, gradient) in enumerate(
            zip(self.weights, self._gradients, strict=True)
        ):
            state = [views[number] for views in self._state]
            if self._optimizer is Optimizer.SGD:
                weights.add_(gradient, alpha=-self._rate)
            elif self._optimizer is Optimizer.ADAM:
                first, second = state
                first.lerp_(gradient, 1 - _BETA_1)
                second.lerp_(gradient.square(), 1 - _BETA_2)
                step, factor = adam_step(first, second, self._steps, self._rate)
                weights.add_(step, alpha=factor)
            else:
                squares = gradient.square()
                if self._optimizer is Optimizer.ROWWISE_ADAGRAD:
                    squares = squares.mean(dim=1, keepdim=True)
                (total,) = state
                total.add_(squares)
                weights.addcdiv_(gradient, total.sqrt().add_(_EPSILON), value=-self._rate)
