"""A workload that `dse` does not know: a multilayer perceptron under data parallelism."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property, partial
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal

from pydantic import Field

from dse.config import Count, Document, parse_document
from dse.errors import ConfigError
from dse.explanation import Resource
from dse.machine import Precision
from dse.machine.collectives import CollectiveOp
from dse.machine.kernels import gemm_estimate, streaming_estimate
from dse.workload import (
    IDEAL,
    Counts,
    Job,
    MemoryAccount,
    Names,
    ParametersBlock,
    Platforms,
    Precisions,
    Program,
    RankCounts,
    StepBuilder,
    Workload,
)

if TYPE_CHECKING:
    from collections.abc import Mapping

    from dse.machine import Cluster
    from dse.machine.platforms import Platform
    from dse.workload import AttributedGraph, Iteration, ParameterValue

_PROGRAMS = (
    Program(IDEAL, "One call for each kernel; no program reaches it", "Assumed"),
    Program("pytorch", "Eager PyTorch with DDP", "Assumed"),
)

#: Calls of the framework for each kernel, by program.
_CALLS = {IDEAL: 1.0, "pytorch": 3.0}

#: Bytes of FP32 master weights and two moments of Adam, for each parameter.
_OPTIMIZER_BYTES = 12

#: Bytes that one update of one parameter reads and writes: gradient, master weight, moments.
_UPDATE_BYTES = 30


class MlpDocument(Document):
    """The YAML of a model."""

    kind: Literal["mlp"]
    name: str
    layers: Annotated[Count, Field(le=1000)]
    width: Count


class MlpParameters(ParametersBlock):
    """What a search space may choose."""

    platform: Platforms
    world_size: RankCounts
    global_batch_size: Counts
    link: Names = ["default"]
    network: Names = ["default"]
    precision: Precisions | None = None
    program: Names | None = None


@dataclass(frozen=True)
class MlpWorkload(Workload):
    """Equal square layers; gradients are summed while the backward pass still runs."""

    kind: ClassVar[str] = "mlp"
    title: ClassVar[str] = "multilayer perceptron"
    parameters: ClassVar[type[ParametersBlock]] = MlpParameters
    programs: ClassVar[Mapping[str, Program]] = {program.name: program for program in _PROGRAMS}
    default_program: ClassVar[str] = "pytorch"

    model: MlpDocument

    @property
    def name(self) -> str:
        """Name of the model."""
        return self.model.name

    @classmethod
    def from_text(cls, text: str, *, file: str = "<string>") -> MlpWorkload:
        """Returns the model of a file."""
        return cls(parse_document(text, MlpDocument, file=file))

    def job(
        self, platform: Platform | None, parameters: Mapping[str, ParameterValue], **options: Any
    ) -> MlpJob:
        """Returns the model on a cluster; see :meth:`dse.workload.Workload.job`."""
        cluster = self.cluster(platform, parameters, **options)
        precision = Precision(str(parameters.get("precision", self.precision)))
        batch, program = int(parameters["global_batch_size"]), self.program_name(parameters)
        return MlpJob(self.model, cluster, batch, precision, program)


@dataclass(frozen=True)
class MlpJob(Job):
    """One training step of the model on a cluster.

    Attributes:
        model: What is trained.
        cluster: Where.
        global_batch_size: Samples of one iteration over all ranks.
        precision: Arithmetic.
        program: Name of the training program.
    """

    model: MlpDocument
    cluster: Cluster
    global_batch_size: int
    precision: Precision
    program: str

    @property
    def samples_per_iteration(self) -> float:
        """Global batch size."""
        return float(self.global_batch_size)

    def document(self) -> dict[str, object]:
        """Returns the arithmetic."""
        return {"precision": self.precision.value}

    def check(self) -> None:
        """Checks that every rank has the same number of samples."""
        ranks = self.cluster.world_size
        if self.global_batch_size % ranks:
            raise ConfigError(
                f"global batch size {self.global_batch_size} does not divide over {ranks} ranks; "
                f"use {max(1, self.global_batch_size // ranks) * ranks}"
            )

    def iteration(self) -> Iteration:
        """Returns the step."""
        return self._step.iteration(spread=0.05)

    def attributed(self) -> AttributedGraph:
        """Returns the step with what takes its time."""
        return self._step.attributed()

    def memory(self) -> tuple[MemoryAccount, ...]:
        """Returns the same account for every rank."""
        value = self.precision.value_bytes
        samples = self.global_batch_size / self.cluster.world_size
        account = MemoryAccount(
            (
                ("weights and gradients", 2.0 * value * self._parameters),
                ("optimizer state", float(_OPTIMIZER_BYTES * self._parameters)),
                ("activations", 2.0 * value * samples * self.model.width * self.model.layers),
            )
        )
        return (account,) * self.cluster.world_size

    @property
    def _parameters(self) -> int:
        return self.model.layers * self.model.width**2

    @cached_property
    def _step(self) -> StepBuilder:
        model, device, precision = self.model, self.cluster.device, self.precision
        samples, width = self.global_batch_size // self.cluster.world_size, model.width
        step = StepBuilder(self.cluster, precision, calls_per_op=_CALLS[self.program])
        product = gemm_estimate(device, samples, width, width, precision)
        weight_gradient = gemm_estimate(device, width, width, samples, precision)
        for layer in range(model.layers):
            step.kernel(f"layer {layer} forward", product, group="forward")
        overlaps, last = self.cluster.world_size > 1, model.layers - 1
        all_reduce = partial(
            step.collective,
            op=CollectiveOp.ALL_REDUCE,
            size_bytes=precision.value_bytes * width**2,
            group="gradient reduction",
        )
        reduced: tuple[int, ...] = ()
        for layer in range(last, -1, -1):
            backward = partial(
                step.kernel, group="backward", next_to_collective=overlaps and layer < last
            )
            backward(f"layer {layer} input gradient", product)
            task = backward(f"layer {layer} weight gradient", weight_gradient)
            if overlaps:
                name = f"all-reduce layer {layer}"
                reduced = (all_reduce(name, after=(task,), next_to_kernels=layer > 0),)
        update_bytes = float(self._parameters * _UPDATE_BYTES)
        update = streaming_estimate(device, "elementwise", {"traffic_bytes": update_bytes})
        memory = Resource.MEMORY
        step.kernel("optimizer", update, group="optimizer", after=reduced, resource=memory)
        return step
