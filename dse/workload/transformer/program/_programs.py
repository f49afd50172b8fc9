"""Training programs of transformers, with the origin of every figure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from dse.workload._programs import IDEAL, FittedValue, Program
from dse.workload.transformer._types import EAGER_CALLS, TransformerRuntime
from dse.workload.transformer.program._runtimes import (
    COMPOSER,
    IDEAL_RUNTIME,
    MEGATRON,
    MEGATRON_CORE,
    NANOTRON,
    PYTORCH,
    PYTORCH_CPU,
    ROUTER_KERNELS,
    TORCHTITAN,
    TORCHTITAN_EAGER,
)

if TYPE_CHECKING:
    from collections.abc import Mapping

_VTRAIN = "180 simulated steps of small GPT models under Megatron-DeepSpeed: A100, 2 to 8 GPUs"
_NANOTRON = "144 published steps of 1B and 8B models under nanotron: H100, 8 to 64 GPUs, EFA"
_PEAKS = "reserved memory of 431 published runs of 1B and 8B models: H100, 8 to 64 GPUs"
_BRIDGE = "2 published steps of Qwen3 30B-A3B under Megatron-Bridge: 8 B200, one sample a pass"
_TINY = "18 steps of decoders of 0.1 and 0.4 million parameters: two ranks of an EPYC"
_ROUTER = FittedValue("router_kernels", ROUTER_KERNELS, _BRIDGE)
_CALLS = FittedValue("framework_calls_per_op", EAGER_CALLS, _VTRAIN)


@dataclass(frozen=True, slots=True)
class TransformerProgram(Program):
    """A training program of transformers.

    Attributes:
        software: How it is written.
        cpu_software: How it is written where the ranks are CPUs; None if that is no different.
    """

    software: TransformerRuntime = IDEAL_RUNTIME
    cpu_software: TransformerRuntime | None = None

    def software_for(self, *, on_cpu: bool) -> TransformerRuntime:
        """Returns how the program is written on GPUs or on a CPU."""
        return self.cpu_software if on_cpu and self.cpu_software is not None else self.software


_PROGRAMS = (
    TransformerProgram(
        name=IDEAL,
        description="Overlaps and fuses all that can be, with the fastest attention measured",
        origin="Assumed: gradients of two bytes, one pass of a fused optimizer, one call a kernel",
    ),
    TransformerProgram(
        name="megatron",
        description="Megatron-LM of 2022 with Apex, as in its two papers",
        origin=(
            "Read: gradients are reduced after the last backward pass, stages wait for what they "
            "send, and the host with them. Counted: bytes of an update and of the loss"
        ),
        fitted=(_CALLS,),
        software=MEGATRON,
    ),
    TransformerProgram(
        name="megatron_deepspeed",
        description="Megatron-DeepSpeed, which shares its kernels and schedule with Megatron-LM",
        origin="Like `megatron`",
        fitted=(_CALLS,),
        software=MEGATRON,
    ),
    TransformerProgram(
        name="nemo",
        description="NeMo: Megatron-Core with Transformer Engine, FP8 and attention of today",
        origin=(
            "Read: gradients of two bytes, reduced during the backward pass; transfers of tensor "
            "parallelism in parts beside products; fused norms, activations and loss; attention "
            "of FlashAttention-3's class; experts' biases, limits and padding in kernels of their "
            "own. Counted: bytes of an update"
        ),
        fitted=(_CALLS, _ROUTER),
        software=MEGATRON_CORE,
    ),
    TransformerProgram(
        name="megatron_bridge",
        description="Megatron-Bridge, which shares Megatron-Core with NeMo",
        origin="Like `nemo`",
        fitted=(_CALLS, _ROUTER),
        software=MEGATRON_CORE,
    ),
    TransformerProgram(
        name="nanotron",
        description="nanotron: eager PyTorch, FlashAttention-2, FP32 gradients, no overlap",
        origin=(
            "Read: stages share the arithmetic of layers and logits; shapes precede what stages "
            "send, and the host waits for them; collectives of tensor parallelism overlap with "
            "gradients of weights only; gradients are reduced tensor by tensor after the last "
            "backward pass; gradients of two bytes exist beside the sums of four and, without "
            "sharding, buckets of both. Counted: bytes of an update and of the loss"
        ),
        fitted=(
            _CALLS,
            FittedValue("calls_per_collective", NANOTRON.calls_per_collective, _NANOTRON),
            FittedValue("delay_beside_stages_s", NANOTRON.delay_beside_stages_s, _NANOTRON),
            FittedValue("delay_between_nodes_s", NANOTRON.delay_between_nodes_s, _NANOTRON),
            FittedValue("kept_share", NANOTRON.kept_share, _PEAKS),
        ),
        software=NANOTRON,
    ),
    TransformerProgram(
        name="torchtitan",
        description="torchtitan with FSDP2 and torch.compile of each layer",
        origin=(
            "Read: gradients are reduced in four bytes beside the backward pass; collectives of "
            "tensor parallelism overlap with nothing; attention is FlashAttention-2. Counted: "
            "bytes of an update. Assumed: compiled code is one call a kernel"
        ),
        software=TORCHTITAN,
    ),
    TransformerProgram(
        name="torchtitan_eager",
        description="torchtitan with FSDP2, without torch.compile",
        origin="Like `torchtitan`, with separate elementwise kernels and PyTorch's loss",
        fitted=(_CALLS,),
        software=TORCHTITAN_EAGER,
    ),
    TransformerProgram(
        name="pytorch",
        description="PyTorch's own DDP, FSDP2 and tensor parallelism, as `fsdp` exports them",
        origin=(
            "Read: like `torchtitan_eager`, without clipping; hooks and DTensor in Python. "
            "Counted: bytes of an update"
        ),
        fitted=(
            _CALLS,
            FittedValue("framework_calls_per_op", PYTORCH_CPU.framework_calls_per_op, _TINY),
            FittedValue("calls_per_collective", PYTORCH_CPU.calls_per_collective, _TINY),
            FittedValue("calls_per_shard_transfer", PYTORCH_CPU.calls_per_shard_transfer, _TINY),
        ),
        software=PYTORCH,
        cpu_software=PYTORCH_CPU,
    ),
    TransformerProgram(
        name="composer",
        description="Composer over PyTorch FSDP with Triton's attention, as LLM Foundry ran MPT",
        origin=(
            "Read: separate elementwise kernels, PyTorch's loss. Counted: bytes of an update. "
            "Fitted on 65 published steps: time of elementwise kernels, rate of the attention "
            "kernel"
        ),
        fitted=(_CALLS,),
        software=COMPOSER,
    ),
)

#: Built-in programs by name.
TRANSFORMER_PROGRAMS: Mapping[str, TransformerProgram] = {
    program.name: program for program in _PROGRAMS
}
