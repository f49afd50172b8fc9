"""Transfers of a step: sums of tensor parallelism, outputs of stages, gradients."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dse.machine.collectives import CollectiveOp
from dse.workload.transformer._cost import Cost, exposed, total_cost
from dse.workload.transformer._groups import Groups, estimate
from dse.workload.transformer._types import DataSharding

if TYPE_CHECKING:
    from dse.machine.collectives import Group
    from dse.workload.transformer._job import TransformerJob


class Transfers:
    """Transfers of one rank, with the time of their whole groups.

    Args:
        problem: What is trained, where and how.
        tokens: Tokens of one micro-batch on a rank.
    """

    def __init__(self, problem: TransformerJob, tokens: int) -> None:
        self._model = problem.model
        self._cluster = problem.cluster
        self._parallelism = problem.parallelism
        self._software = problem.software
        self._tokens = tokens
        self._value = problem.precision.value_bytes
        self._gradient = problem.gradient_bytes
        self._groups = Groups.of(problem.cluster, problem.parallelism)

    def _transfer(self, op: CollectiveOp, size_bytes: float, group: Group) -> Cost:
        seconds = float(estimate(self._cluster, op, size_bytes, group).time_s)
        return Cost(inside_s=seconds) if group.domains == 1 else Cost(network_s=seconds)

    @property
    def _activation_bytes(self) -> float:
        return float(self._value * self._tokens * self._model.hidden)

    # --- the model ------------------------------------------------------------------------------

    def _block_sum(self) -> Cost:
        """One sum of a block's output over tensor-parallel ranks."""
        group, size = self._groups.tensor, self._activation_bytes
        if not self._parallelism.sequence_parallel:
            return self._transfer(CollectiveOp.ALL_REDUCE, size, group)
        return total_cost(
            self._transfer(CollectiveOp.REDUCE_SCATTER, size, group),
            self._transfer(CollectiveOp.ALL_GATHER, size, group),
        )

    def tensor_forward(self, products_s: float) -> Cost:
        """Returns what both blocks' sums add to a layer's forward pass.

        Args:
            products_s: Time of the layer's products, which the transfers may overlap.
        """
        return self._by_parts(total_cost(*[self._block_sum()] * 2), products_s)

    def tensor_recomputed(self, products_s: float) -> Cost:
        """Returns what they add to a repeated forward pass; nothing needs the last one's result.

        Args:
            products_s: Time of the layer's products in a forward pass.
        """
        repeated = 1 if self._software.stops_recomputing_early else 2
        sums = total_cost(*[self._block_sum()] * repeated)
        return self._by_parts(sums, products_s * repeated / 2)

    def _by_parts(self, transfer: Cost, products_s: float) -> Cost:
        """Returns what a transfer adds to products that work on its parts one after the other.

        Each of the `t` ranks' parts is multiplied while the next one is on its way (Wang et al.,
        ASPLOS 2023, doi 10.1145/3567955.3567959; userbuffers of Transformer Engine). The first
        part of a gather, or the last of a scatter, has nothing to overlap.
        """
        parallelism = self._parallelism
        if not (self._software.overlap_tensor_products and parallelism.sequence_parallel):
            return transfer
        alone = 1.0 / parallelism.tensor
        hidden = exposed(transfer.scaled(transfers=1.0 - alone), (1.0 - alone) * products_s)
        return total_cost(transfer.scaled(transfers=alone), hidden)

    def tensor_backward(self, weight_gradients_s: float) -> Cost:
        """Returns what both blocks' sums of input gradients add to a layer's backward pass.

        With sequence parallelism the sum scatters its result, and two more transfers come: the
        gradient of each block's output is gathered, which only products on its parts can hide,
        and its input once more for the gradient of its first matrix (Korthikanti et al., § 4.2.2).

        Args:
            weight_gradients_s: Time of the products that make gradients of weights, which overlap
                with what can be hidden.
        """
        visible, hideable = Cost(), total_cost(*[self._block_sum()] * 2)
        if self._parallelism.sequence_parallel:
            group, size = self._groups.tensor, self._activation_bytes
            gathers = total_cost(*[self._transfer(CollectiveOp.ALL_GATHER, size, group)] * 2)
            # The other half of the products takes these gradients in.
            visible = self._by_parts(gathers, weight_gradients_s)
        if self._software.overlap_tensor:
            hideable = exposed(hideable, weight_gradients_s)
        return total_cost(visible, hideable)

    def context(self, rounds: int, attention_s: float) -> Cost:
        """Returns what the context ring adds to attention: keys and values go around meanwhile.

        Args:
            rounds: How often they go around.
            attention_s: Time of the attention that overlaps with them.
        """
        ranks = self._parallelism.context
        if ranks == 1:
            return Cost()
        columns = self._model.key_value_width(self._parallelism.tensor)
        size = rounds * self._value * columns * self._tokens * ranks
        moved = self._transfer(CollectiveOp.ALL_GATHER, size, self._groups.context)
        return exposed(moved, attention_s)

    def stage_output(self) -> Cost:
        """Returns a stage's output on its way to the next.

        Each tensor-parallel rank sends its share; without sequence parallelism the shares are put
        together again behind the network (Narayanan et al., § 4.1).
        """
        if self._parallelism.pipeline == 1:
            return Cost()
        size = self._activation_bytes
        sent = self._transfer(
            CollectiveOp.SEND_RECV, size / self._parallelism.tensor, self._groups.stages
        )
        if self._parallelism.sequence_parallel:
            return sent
        return total_cost(sent, self._transfer(CollectiveOp.ALL_GATHER, size, self._groups.tensor))

    def experts(self, rows: float) -> Cost:
        """Returns rows on their way to the ranks of their experts and back.

        The same in both directions of a layer: results come back forward, gradients backward.

        Args:
            rows: Tokens of a micro-batch that a rank sends, each as often as it visits an expert.
        """
        size = self._value * rows * self._model.hidden / self._parallelism.sequence_share
        exchange = self._transfer(CollectiveOp.ALL_TO_ALL, size, self._groups.experts)
        return total_cost(exchange, exchange)

    # --- replicas -------------------------------------------------------------------------------

    def gathered(self, parameters: float, experts: float = 0.0, *, tensors: int = 1) -> Cost:
        """Returns parameters, and those of experts, gathered from the shards of all replicas."""
        return total_cost(
            *(
                self._in_parts(CollectiveOp.ALL_GATHER, self._value * count, group, tensors)
                for count, group in self._by_group(parameters, experts)
            )
        )

    def reduced(self, parameters: float, experts: float = 0.0, *, tensors: int = 1) -> Cost:
        """Returns gradients summed over replicas, scattered where anything is sharded."""
        scattered = self._parallelism.data_sharding is not DataSharding.NONE
        op = CollectiveOp.REDUCE_SCATTER if scattered else CollectiveOp.ALL_REDUCE
        return total_cost(
            *(
                self._in_parts(op, self._gradient * count, group, tensors)
                for count, group in self._by_group(parameters, experts)
            )
        )

    def _in_parts(self, op: CollectiveOp, size_bytes: float, group: Group, tensors: int) -> Cost:
        """Returns a transfer in as many messages as there are tensors, if they are sent apart."""
        count = tensors if self._software.tensors_apart else 1
        return self._transfer(op, size_bytes / count, group).scaled(transfers=count)

    def _by_group(self, parameters: float, experts: float) -> list[tuple[float, Group]]:
        """Returns parameters with the ranks that have the same ones."""
        groups = self._groups
        shared = [(parameters, groups.replicas)]
        return [*shared, (experts, groups.expert_replicas)] if experts else shared

    def ends_reduced(self) -> Cost:
        """Returns the shared embedding's gradient summed over first and last stage."""
        parameters = self._model.vocab * self._model.hidden / self._parallelism.tensor
        return self._transfer(
            CollectiveOp.ALL_REDUCE, self._gradient * parameters, self._groups.stages
        )
