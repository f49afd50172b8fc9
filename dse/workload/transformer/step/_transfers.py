"""Transfers of a step: sums of tensor parallelism, outputs of stages, gradients."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dse.machine.collectives import CollectiveOp, Group, collective_time_s
from dse.machine.kernels import exchange_estimate
from dse.workload.transformer._types import ContextExchange, DataSharding, ExpertDispatch
from dse.workload.transformer.kernels._routing import busiest_load, places_of_token
from dse.workload.transformer.step._cost import Cost, exposed, total_cost
from dse.workload.transformer.step._groups import Groups
from dse.workload.transformer.step._structure import Role

if TYPE_CHECKING:
    from dse.model import MixtureOfExperts
    from dse.workload.transformer._job import TransformerJob


class Transfers:
    """Transfers of one rank, with the time of their whole groups.

    Args:
        problem: What is trained, where and how.
    """

    def __init__(self, problem: TransformerJob) -> None:
        self._problem = problem
        self._model = problem.model
        self._cluster = problem.cluster
        self._parallelism = problem.parallelism
        self._software = problem.software
        self._tokens = problem.micro_batch_tokens
        self._value = problem.precision.value_bytes
        self._gradient = problem.gradient_bytes
        self._groups = Groups.of(problem.cluster, problem.parallelism)
        self._known: dict[tuple[CollectiveOp, float, Group], Cost] = {}

    def _transfer(self, op: CollectiveOp, size_bytes: float, group: Group) -> Cost:
        if size_bytes <= 0 or group.size < 2:
            return Cost()
        key = (op, size_bytes, group)
        if key not in self._known:
            seconds = float(collective_time_s(self._cluster, op, size_bytes, group))
            inside = group.domains == 1
            self._known[key] = Cost(inside_s=seconds) if inside else Cost(network_s=seconds)
        return self._known[key]

    @property
    def _activation_bytes(self) -> float:
        return float(self._value * self._tokens * self._model.hidden)

    @property
    def _input_bytes(self) -> tuple[float, ...]:
        """What the first matrices take in of each block that tensor parallelism splits.

        That is the feed-forward block beside attention; experts exchange rows instead.
        """
        attention = float(self._value * self._tokens * self._model.attention_input_width)
        return (attention, self._activation_bytes) if self._model.ffn_hidden else (attention,)

    # --- the model ------------------------------------------------------------------------------

    def _sum(self, summed_bytes: float, gathered_bytes: float) -> Cost:
        """One sum over tensor-parallel ranks; sequence parallelism scatters it and gathers."""
        group = self._groups.tensor
        if not self._parallelism.sequence_parallel:
            return self._transfer(CollectiveOp.ALL_REDUCE, summed_bytes, group)
        return total_cost(
            self._transfer(CollectiveOp.REDUCE_SCATTER, summed_bytes, group),
            self._transfer(CollectiveOp.ALL_GATHER, gathered_bytes, group),
        )

    def _forward_sums(self) -> list[Cost]:
        """The sum of each block's output, with the gather of its input."""
        return [self._sum(self._activation_bytes, size) for size in self._input_bytes]

    def tensor_forward(self, products_s: float) -> Cost:
        """Returns what the blocks' sums add to a layer's forward pass.

        Args:
            products_s: Time of the layer's products, which the transfers may overlap.
        """
        return self._by_parts(total_cost(*self._forward_sums()), products_s)

    def tensor_recomputed(self, products_s: float) -> Cost:
        """Returns what they add to a repeated forward pass; nothing needs the last one's result.

        Args:
            products_s: Time of the layer's products in a forward pass.
        """
        sums = self._forward_sums()
        repeated = 1 if self._software.stops_recomputing_early else len(sums)
        return self._by_parts(total_cost(*sums[:repeated]), products_s * repeated / len(sums))

    def _by_parts(self, transfer: Cost, products_s: float) -> Cost:
        """Returns what a transfer adds to products that work on its parts one after the other.

        Each of the `t` ranks' parts is multiplied while the next one is on its way (Wang et al.,
        ASPLOS 2023, doi 10.1145/3567955.3567959; userbuffers of Transformer Engine). The first
        part of a gather, or the last of a scatter, has nothing to overlap.
        """
        parallelism = self._parallelism
        if not (self._problem.overlaps_tensor_products and self._problem.own_engines):
            return transfer
        alone = 1.0 / parallelism.tensor
        hidden = exposed(transfer.scaled(transfers=1.0 - alone), (1.0 - alone) * products_s)
        return total_cost(transfer.scaled(transfers=alone), hidden)

    def tensor_backward(self, weight_gradients_s: float) -> Cost:
        """Returns what the blocks' sums of input gradients add to a layer's backward pass.

        With sequence parallelism the sum scatters its result, and two more transfers come: the
        gradient of each block's output is gathered, which only products on its parts can hide,
        and its input once more for the gradient of its first matrix (Korthikanti et al., § 4.2.2).

        Args:
            weight_gradients_s: Time of the products that make gradients of weights, which overlap
                with what can be hidden.
        """
        inputs = self._input_bytes
        visible, hideable = Cost(), total_cost(*(self._sum(size, size) for size in inputs))
        if self._parallelism.sequence_parallel:
            group, size = self._groups.tensor, self._activation_bytes
            gather = self._transfer(CollectiveOp.ALL_GATHER, size, group)
            gathers = total_cost(*[gather] * len(inputs))
            # The other half of the products takes these gradients in.
            visible = self._by_parts(gathers, weight_gradients_s)
        if self._software.overlap_tensor and self._problem.own_engines:
            hideable = exposed(hideable, weight_gradients_s)
        return total_cost(visible, hideable)

    def tensor_input_gradients(self, products_s: float) -> Cost:
        """Returns what the blocks' sums add to a pass that makes gradients of inputs alone.

        Args:
            products_s: Time of the products that make them.
        """
        outputs = self._activation_bytes
        sums = total_cost(*(self._sum(size, outputs) for size in self._input_bytes))
        return self._by_parts(sums, products_s)

    def tensor_weight_gradients(self, products_s: float) -> Cost:
        """Returns what the gather of the blocks' inputs adds to their weights' gradients.

        Args:
            products_s: Time of the products that make them, which overlap with what can be hidden.
        """
        if not self._parallelism.sequence_parallel:
            return Cost()
        op, group = CollectiveOp.ALL_GATHER, self._groups.tensor
        gathers = total_cost(*(self._transfer(op, size, group) for size in self._input_bytes))
        overlaps = self._software.overlap_tensor and self._problem.own_engines
        return exposed(gathers, products_s) if overlaps else gathers

    def end_sums(self, role: Role) -> tuple[Cost, ...]:
        """Returns the collectives of tensor parallelism before or after the layers.

        Outputs of the embedding are summed, and the gradients of what the head takes in; the loss
        has the largest logit of each token, the sum of all and the one that is right.

        Args:
            role: A pass through embedding or head.
        """
        parallelism, group = self._parallelism, self._groups.tensor
        if parallelism.tensor == 1:
            return ()
        size, split = self._activation_bytes, parallelism.sequence_parallel
        gather = self._transfer(CollectiveOp.ALL_GATHER, size, group)
        scattered = CollectiveOp.REDUCE_SCATTER if split else CollectiveOp.ALL_REDUCE
        summed = self._transfer(scattered, size, group)
        if role is Role.EMBEDDING_FORWARD or role is Role.HEAD_BACKWARD:
            return (summed,)
        if role is Role.HEAD:
            token = self._transfer(CollectiveOp.ALL_REDUCE, 4.0 * self._tokens, group)
            return (*([gather] if split else []), token, token, token)
        return (gather,) if split and role is Role.EMBEDDING_BACKWARD else ()

    # --- context --------------------------------------------------------------------------------

    def context(self, attention_s: float, *, backward: bool) -> Cost:
        """Returns what sharing keys and values among context-parallel ranks adds to attention.

        Args:
            attention_s: Time of a rank's attention.
            backward: Keys and values are needed again, and their gradients go back.
        """
        ranks, exchange = self._parallelism.context, self._parallelism.context_exchange
        if ranks == 1:
            return Cost()
        if exchange is ContextExchange.ULYSSES:
            return self._ulysses()
        size = self._value * self._key_value_columns * self._tokens * ranks
        group = self._groups.context
        if exchange is ContextExchange.ALL_GATHER:
            gathered = self._transfer(CollectiveOp.ALL_GATHER, size, group)
            if not backward:
                return gathered
            return total_cost(gathered, self._transfer(CollectiveOp.REDUCE_SCATTER, size, group))
        # Gradients go around with keys and values.
        moved = self._transfer(CollectiveOp.ALL_GATHER, size * (2 if backward else 1), group)
        if not self._problem.own_engines:
            return moved
        # While the rank works on the last ones, none are on their way.
        return exposed(moved, attention_s * (ranks - 1) / ranks)

    @property
    def _key_value_columns(self) -> float:
        return self._model.key_value_width(self._parallelism.tensor)

    def _ulysses(self) -> Cost:
        """Queries, keys and values to the ranks of their heads, and the outputs back."""
        model, tensor = self._model, self._parallelism.tensor
        each = self._value * self._tokens
        keys_values = self._key_value_columns / 2
        queries = model.heads * model.head_dim / tensor
        columns = (queries, keys_values, keys_values, model.attention_width / tensor)
        return total_cost(
            *(
                self._transfer(CollectiveOp.ALL_TO_ALL, each * one, self._groups.context)
                for one in columns
            )
        )

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

    def experts(self) -> Cost:
        """Returns tokens on their way to the ranks of their experts, and what comes back.

        The same in both directions of a layer: results come back forward, gradients backward.
        Ranks that share every expert's matrices gather all their rows, and scatter their sums.
        """
        experts, groups = self._model.experts, self._groups
        if experts is None:
            return Cost()
        spread, hidden = self._parallelism, self._value * self._model.hidden
        own = self._tokens / spread.tensor
        load = busiest_load(experts, spread.expert).mean
        rows = own * experts.active * load
        dispatch = self._problem.expert_dispatch
        shared = spread.expert_shards * rows
        if dispatch is ExpertDispatch.ALL_GATHER:
            shared = own * spread.expert_ranks
            exchange = self._gathered_and_summed(shared / spread.expert_shards, groups.experts)
        elif dispatch is ExpertDispatch.DEDUPLICATED:
            exchange = self._deduplicated(own * load, experts)
        else:
            one = self._transfer(CollectiveOp.ALL_TO_ALL, hidden * rows, groups.experts)
            exchange = total_cost(one, one)
        return total_cost(exchange, self._gathered_and_summed(shared, groups.expert_shards))

    def _gathered_and_summed(self, rows: float, group: Group) -> Cost:
        """Returns rows gathered by a group, and their sums scattered over it."""
        size = self._value * self._model.hidden * rows
        return total_cost(
            self._transfer(CollectiveOp.ALL_GATHER, size, group),
            self._transfer(CollectiveOp.REDUCE_SCATTER, size, group),
        )

    def _deduplicated(self, tokens: float, experts: MixtureOfExperts) -> Cost:
        """Returns tokens sent once to every node and rank that needs them, and sums coming back.

        On other nodes they go to the rank with the same place there, which hands them on inside
        its node meanwhile, so that the slower of both ways counts.
        """
        group, width = self._groups.experts, self._value * self._model.hidden
        if group.size == 1:
            return Cost()
        copies = places_of_token(experts, group.size)
        nodes = places_of_token(experts, group.domains)
        arrived, each = tokens * nodes, copies / nodes
        sizes = {"tokens": arrived, "hidden": width / 2.0, "copies": each}
        measured = exchange_estimate(self._cluster.device, sizes)
        ranks = Group(1, group.ranks_per_domain)
        inside = (
            self._transfer(CollectiveOp.ALL_TO_ALL, width * arrived * each, ranks)
            if measured is None or ranks.size == 1
            else Cost(inside_s=float(measured.time_s))
        )
        if group.domains > 1:
            peers = Group(
                group.domains,
                1,
                group.card_sharers * group.ranks_per_domain,
                group.domain_stride,
            )
            between = self._transfer(CollectiveOp.ALL_TO_ALL, width * arrived, peers)
            inside = max(inside, between, key=lambda cost: cost.transfer_s)
        return total_cost(inside, inside)

    # --- replicas -------------------------------------------------------------------------------

    def gathered(
        self, parameters: float, experts: float = 0.0, *, matrices: float = 0.0, tensors: int = 1
    ) -> Cost:
        """Returns parameters, and those of experts, gathered from their shards.

        Args:
            parameters: Parameters of a rank without those of experts.
            experts: Its parameters of experts.
            matrices: Those of `parameters` that products in few bits read.
            tensors: Weights that they are in.
        """
        groups, op = self._groups, CollectiveOp.ALL_GATHER
        saved = 0.0
        if self._problem.gathers_fp8:
            saved = self._value - self._problem.precision.operand_bytes
        size = self._value * parameters - saved * matrices
        of_experts = (self._value - saved) * experts
        return total_cost(
            self._in_parts(op, size, groups.shards, tensors),
            self._in_parts(op, of_experts, groups.expert_zero, tensors),
        )

    def reduced(self, parameters: float, experts: float = 0.0, *, tensors: int = 1) -> Cost:
        """Returns gradients summed over replicas, scattered where anything is sharded.

        Ranks with the same shards in different copies then sum what each has.
        """
        size, of_experts = self._gradient * parameters, self._gradient * experts
        groups, op = self._groups, CollectiveOp.ALL_REDUCE
        if self._parallelism.data_sharding is DataSharding.NONE:
            return total_cost(
                self._in_parts(op, size, groups.replicas, tensors),
                self._in_parts(op, of_experts, groups.expert_replicas, tensors),
            )
        own = size / groups.shards.size + of_experts / groups.expert_zero.size
        scatter = CollectiveOp.REDUCE_SCATTER
        return total_cost(
            self._in_parts(scatter, size, groups.shards, tensors),
            self._in_parts(scatter, of_experts, groups.expert_zero, tensors),
            self._in_parts(op, own, groups.copies, tensors),
        )

    def _in_parts(self, op: CollectiveOp, size_bytes: float, group: Group, tensors: int) -> Cost:
        """Returns a transfer in as many messages as there are tensors, if they are sent apart."""
        count = tensors if self._software.tensors_apart else 1
        return self._transfer(op, size_bytes / count, group).scaled(transfers=count)

    def ends_reduced(self) -> Cost:
        """Returns the shared embedding's gradient summed over first and last stage."""
        parameters = self._model.vocab * self._model.hidden / self._parallelism.tensor
        if self._parallelism.data_sharding.shards_gradients:
            parameters /= self._parallelism.shards
        return self._transfer(
            CollectiveOp.ALL_REDUCE, self._gradient * parameters, self._groups.stages
        )
