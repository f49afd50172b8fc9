"""Job of a transformer: a training step, spread over the ranks of a cluster."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from typing import TYPE_CHECKING

from dse.errors import ConfigError
from dse.machine import Precision, has_own_engines
from dse.workload._job import Job
from dse.workload._launch import LaunchMode
from dse.workload._notes import precision_notes
from dse.workload._predict import memory_reason
from dse.workload.transformer._check import check_parallelism
from dse.workload.transformer._text import format_parallelism
from dse.workload.transformer._types import (
    Capture,
    DataSharding,
    ExpertDispatch,
    Recompute,
    RecomputeModule,
    Schedule,
)
from dse.workload.transformer.explain._attribution import attributed_step
from dse.workload.transformer.memory._account import ACTIVATIONS, stage_accounts
from dse.workload.transformer.memory._offload import check_offload
from dse.workload.transformer.memory._recompute import recomputed_flops, repeats
from dse.workload.transformer.program._runtimes import IDEAL_RUNTIME
from dse.workload.transformer.step._iteration import (
    kernels_time_s,
    short_iteration,
    simulated_micro_batches,
    step_iteration,
)
from dse.workload.transformer.step._schedule import (
    layers_by_chunk,
    layers_by_work,
    warm_up_passes,
)

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from dse.machine import Cluster
    from dse.model import TransformerModel
    from dse.workload._explain import AttributedGraph
    from dse.workload._iteration import Iteration, SimulatedStep
    from dse.workload._prediction import MemoryAccount
    from dse.workload.transformer._types import (
        Parallelism,
        TransformerRuntime,
    )

#: Precisions of products in which programs keep weights.
FP8_PARAMETERS = frozenset({Precision.FP8, Precision.MXFP8})


@dataclass(frozen=True)
class TransformerJob(Job):
    """A training step of a transformer.

    Attributes:
        model: What is trained.
        cluster: Where.
        global_batch_size: Samples of one iteration over all ranks.
        precision: Arithmetic.
        parallelism: How it is spread.
        software: How the training program is written.
        program: Name of the training program; empty where only its runtime is known.
    """

    model: TransformerModel
    cluster: Cluster
    global_batch_size: int
    precision: Precision
    parallelism: Parallelism
    software: TransformerRuntime = IDEAL_RUNTIME
    program: str = ""

    @property
    def micro_batches(self) -> int:
        """Passes through a stage in one iteration."""
        parallelism = self.parallelism
        return self.global_batch_size // (parallelism.data * parallelism.micro_batch_size)

    @property
    def micro_batch_tokens(self) -> int:
        """Tokens of one micro-batch on a rank; context-parallel ranks share each sample."""
        parallelism = self.parallelism
        samples, context = parallelism.micro_batch_size, parallelism.context
        return samples * (self.model.sequence_length // context)

    @cached_property
    def layers_by_chunk(self) -> tuple[int, ...]:
        """Layers of each chunk, in the order of the model."""
        model, spread = self.model, self.parallelism
        if self.software.balances_stages and spread.interleave == 1:
            head = model.vocab * model.hidden / model.layer_models[0].layer_matrix_parameters
            *others, last = layers_by_work(model.layers, spread.pipeline, head)
            return *others, last + model.mtp_modules
        return layers_by_chunk(model.layers, spread.pipeline, spread.interleave, model.mtp_modules)

    def chunk_layers(self, stage: int, chunk: int) -> int:
        """Returns the layers of a chunk of a pipeline stage."""
        return self.layers_by_chunk[chunk * self.parallelism.pipeline + stage]

    def chunk_kinds(self, stage: int, chunk: int) -> tuple[int, ...]:
        """Returns the kind of each layer of a chunk, by its index in :attr:`layer_jobs`."""
        by_chunk, index = self.layers_by_chunk, chunk * self.parallelism.pipeline + stage
        first = sum(by_chunk[:index])
        return self.model.layer_kinds[first : first + by_chunk[index]]

    @property
    def layer_jobs(self) -> tuple[TransformerJob, ...]:
        """The job with all layers of one kind, for each kind of layer of the model."""
        if self.model.is_uniform:
            return (self,)
        return tuple(replace(self, model=one) for one in self.model.layer_models)

    def stage_layer_jobs(self, stage: int) -> tuple[tuple[TransformerJob, int], ...]:
        """Returns the job with all layers of one kind, and how many of them a stage has."""
        if self.model.is_uniform:
            return ((self, self.stage_layers(stage)),)
        chunks = range(self.parallelism.interleave)
        kinds = [kind for chunk in chunks for kind in self.chunk_kinds(stage, chunk)]
        return tuple((job, kinds.count(kind)) for kind, job in enumerate(self.layer_jobs))

    def stage_layers(self, stage: int) -> int:
        """Returns the layers of a pipeline stage."""
        return sum(self.layers_by_chunk[stage :: self.parallelism.pipeline])

    @property
    def gradient_bytes(self) -> int:
        """Bytes of a gradient value where it is summed over micro-batches and ranks."""
        software = self.software
        if self.precision.value_bytes == 4 or (
            software.sums_bf16_in_fp32 and self.precision.outside_products is Precision.BF16
        ):
            return 4
        return software.gradient_bytes

    @property
    def fp8_parameters(self) -> bool:
        """Whether weights of products are kept in FP8, and not in BF16 as well.

        Programs do so where the FP32 weights are sharded.
        """
        sharded = self.parallelism.data_sharding is not DataSharding.NONE
        return self.software.fp8_parameters and sharded and self.precision in FP8_PARAMETERS

    @property
    def weight_remainders(self) -> bool:
        """Whether master weights are the 16 bits that weights in BF16 lack.

        The distributed optimizer of Megatron-Core keeps them so on the device.
        """
        spread = self.parallelism
        sharded = spread.data_sharding is DataSharding.OPTIMIZER and not spread.offload.optimizer
        return self.software.weight_remainders and sharded and self.precision is Precision.BF16

    @property
    def gathers_fp8(self) -> bool:
        """Whether sharded weights of products are gathered in FP8.

        Factors of blocks differ between a weight and its transpose: both are made of BF16.
        """
        return self.fp8_parameters and self.precision is Precision.FP8

    @property
    def operand_copies(self) -> int:
        """Copies of a weight in few bits: as it is, and transposed where products need that.

        Tensor cores that take factors of 32 values take operands with one factor in any layout.
        """
        any_layout = self.cluster.device.peak.has(Precision.MXFP8)
        return 1 if self.precision is Precision.FP8 and any_layout else 2

    @property
    def own_engines(self) -> bool:
        """Whether transfers overlap with kernels, and the host ahead of both.

        Between processes on a CPU, all of them take the cores of the ranks in turn.
        """
        return has_own_engines(self.cluster.device)

    @property
    def overlaps_tensor_products(self) -> bool:
        """Whether gathers and scatters of tensor parallelism overlap in parts with products.

        The buffers of which Transformer Engine sends the parts are reached over one NVLink domain.
        """
        spread = self.parallelism
        inside = spread.tensor <= self.cluster.domain_size
        return self.software.overlap_tensor_products and spread.sequence_parallel and inside

    @property
    def expert_dispatch(self) -> ExpertDispatch:
        """How tokens reach their experts: as requested, else as the program does it."""
        return self.parallelism.expert_dispatch or self.software.expert_dispatch

    @property
    def expert_overlap(self) -> bool:
        """Whether exchanges with experts hide behind a pass of another micro-batch."""
        asked = self.parallelism.expert_overlap
        if asked is None:
            return self.software.expert_overlap and not self._overlap_problem
        return asked

    @property
    def paired_share(self) -> float:
        """Share of the passes in which exchanges with experts hide, over all stages.

        A stage begins with one forward pass more than it would otherwise, so that the passes that
        it runs together are of different micro-batches. It holds no more for that: the one pass
        fills memory as the other frees it.
        """
        if not self.expert_overlap:
            return 0.0
        spread = self.parallelism
        total = self.micro_batches * spread.interleave
        alone = [
            warm_up_passes(
                spread.pipeline, spread.interleave, self.micro_batches, stage, spread.schedule
            )
            for stage in range(spread.pipeline)
        ]
        paired = sum(max(0, total - passes - 1) for passes in alone)
        return paired / (total * spread.pipeline)

    @property
    def _overlap_problem(self) -> str:
        """What keeps exchanges with experts from hiding, and what to do; empty if nothing does."""
        spread = self.parallelism
        if spread.expert == 1:
            return "each rank has all experts; use expert > 1"
        if self.micro_batches == 1:
            return "there is no other micro-batch; use several"
        if spread.schedule is not Schedule.ONE_F_ONE_B:
            return f"not with schedule {spread.schedule}; use {Schedule.ONE_F_ONE_B}"
        if spread.pipeline > 1 and spread.interleave == 1:
            return "pipelines need virtual stages for it; use interleave > 1"
        if repeats(spread, RecomputeModule.EXPERTS):
            return "recomputed layers would exchange tokens again; recompute less"
        if self.expert_dispatch is ExpertDispatch.ALL_GATHER:
            return f"not with {ExpertDispatch.ALL_GATHER} dispatch; use another one"
        return ""

    @property
    def captured(self) -> Capture:
        """What is launched as CUDA graphs."""
        eager = self.software.launch is LaunchMode.EAGER
        return Capture.NOTHING if eager else self.software.captures

    @property
    def _capture_problem(self) -> str:
        """What keeps passes of layers from being captured, and what to do; empty if nothing does.

        These are the rules of Megatron-Core's `transformer_config.py`.
        """
        spread = self.parallelism
        if spread.recompute is Recompute.FULL:
            return "whole layers cannot be recomputed within a graph; use recompute selective"
        if self.model.experts is not None and repeats(spread, RecomputeModule.EXPERTS):
            return (
                f"recomputing {RecomputeModule.EXPERTS} repeats the router, which is in a graph; "
                "use other recompute_modules"
            )
        if spread.offload.activations:
            return "activations in a graph stay on the device; use offload none or optimizer"
        return ""

    rank_word = "stage"

    @property
    def samples_per_iteration(self) -> float:
        """Global batch size."""
        return float(self.global_batch_size)

    def check(self) -> None:
        """Checks the degrees; see :func:`check_parallelism`."""
        check_parallelism(
            self.model,
            self.cluster,
            self.global_batch_size,
            self.parallelism,
            balanced=self.software.balances_stages,
        )
        check_offload(self.model, self.parallelism)
        if self.parallelism.expert_overlap and (problem := self._overlap_problem):
            raise ConfigError(f"expert_overlap: {problem}, or leave it out")
        if self.captured is Capture.LAYERS and (problem := self._capture_problem):
            launch = self.software.launch
            raise ConfigError(f"launch {launch}: {problem}, or launch {LaunchMode.EAGER}")

    def key(self) -> TransformerJob:
        """Returns the job itself: nothing is left open."""
        return self

    def optimistic_time_s(self, *, closer: bool = False) -> float:
        """Returns the time of the model's arithmetic at the peak rate of all devices.

        The closer one is that of the busiest stage's kernels, and of those before and after them:
        without transfers between stages, the host, and what stages wait for each other.
        """
        if closer:
            return kernels_time_s(self)
        peak = self.cluster.device.peak.of(self.precision) * self.cluster.world_size
        return self.global_batch_size * self.model.model_flops_per_sample_causal / peak

    def least_memory(self) -> tuple[MemoryAccount, ...]:
        """Returns the account of each pipeline stage: nothing is left open."""
        return self.memory()

    def cannot_fit(self) -> str:
        """Returns which stage does not fit its device; empty if all do."""
        return memory_reason(self, self.memory(), self.cluster.device)

    def iteration(self) -> Iteration:
        """Returns the step of one rank of each pipeline stage."""
        return step_iteration(self)

    def simulated(self) -> SimulatedStep:
        """Returns the time of the step; rounds of a pipeline that repeat others are left out."""
        return short_iteration(self).run()

    def sample_times_s(self) -> NDArray[np.float64]:
        """Draws times of the step; see :meth:`Iteration.sample_times_s`."""
        return short_iteration(self).sample_times_s()

    def memory(self) -> tuple[MemoryAccount, ...]:
        """Returns the account of each pipeline stage, at its peak in the schedule."""
        return _accounts(self)

    def attributed(self) -> AttributedGraph:
        """Returns the step with each pass divided by what its kernels are for."""
        return attributed_step(self)

    def metrics(self, iteration_time_s: float) -> tuple[tuple[str, float], ...]:
        """Returns tokens per second, and utilizations of the devices' arithmetic.

        All are shares of what the devices' peak rates allow in that time. Model FLOPs utilization
        (MFU) counts no recomputation; it counts attention's scores as if there were no causal mask
        (Chowdhery et al., PaLM, arXiv 2204.02311, appendix B), those inside a sliding window where
        there is one, or, causal, those that a token sees. Hardware FLOPs utilization (HFU:
        Korthikanti et al., § 6.3) is the former plus recomputation.
        """
        batch, model = self.global_batch_size, self.model
        peak = self.cluster.device.peak.of(self.precision) * self.cluster.world_size
        possible = peak * iteration_time_s
        flops = batch * model.model_flops_per_sample
        causal = batch * model.model_flops_per_sample_causal
        return (
            ("throughput_tokens_per_s", batch * model.sequence_length / iteration_time_s),
            ("model_flops_utilization", flops / possible),
            ("model_flops_utilization_causal", causal / possible),
            ("hardware_flops_utilization", (flops + recomputed_flops(self)) / possible),
        )

    def notes(self) -> tuple[str, ...]:
        """Returns what the device lacks, what stands for what, and what is left out."""
        found = precision_notes(self.cluster.device, self.precision)
        if self.captured is Capture.LAYERS:
            found = (*found, "passes of layers are captured as CUDA graphs, of unknown memory")
        kept = simulated_micro_batches(self)
        if kept == self.micro_batches:
            return found
        others = f"each stands for {self.micro_batches / kept:.4g}"
        if self.parallelism.pipeline > 1:
            others = "the others take as long as the last of them"
        return (*found, f"{kept} micro-batches are simulated; {others}")

    def setup(self) -> str:
        """Returns the parallelism, and the micro-batches of one replica."""
        passes = f"{self.micro_batches} micro-batch{'' if self.micro_batches == 1 else 'es'}"
        return f"parallelism: {format_parallelism(self.parallelism)}; {passes} a replica"

    def document(self) -> dict[str, object]:
        """Returns arithmetic, parallelism, and the micro-batches of one replica."""
        return {
            "precision": self.precision.value,
            "parallelism": self.parallelism,
            "parallelism_words": format_parallelism(self.parallelism),
            "micro_batches": self.micro_batches,
        }

    def memory_advice(self, fullest: MemoryAccount) -> str:
        """Returns what reduces the largest part and is not yet chosen."""
        largest, chosen = max(fullest.parts, key=lambda part: part[1])[0], self.parallelism
        if largest == ACTIVATIONS:
            ways = {
                "sequence parallelism": chosen.tensor > 1 and not chosen.sequence_parallel,
                "a smaller micro batch": chosen.micro_batch_size > 1,
                "more recomputation": chosen.recompute is not Recompute.FULL
                or chosen.recompute_layers > 0,
                "context parallelism": chosen.context == 1,
            }
            *others, last = [way for way, helps in ways.items() if helps] or ["more ranks"]
            return f"{', '.join(others)} or {last}" if others else last
        return "more tensor or pipeline parallelism, or more sharding over data ranks"


@lru_cache(maxsize=4096)
def _accounts(job: TransformerJob) -> tuple[MemoryAccount, ...]:
    """Returns the account of each stage; a search asks for those of a job several times."""
    return stage_accounts(job)
