"""A workload that `dse` does not know: a multilayer perceptron under data parallelism."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Annotated, ClassVar, Literal

from pydantic import Field

from dse.config import Count, Document, parse_document
from dse.errors import ConfigError
from dse.machine import Precision
from dse.machine.collectives import CollectiveOp
from dse.machine.kernels import gemm_estimate, streaming_estimate
from dse.workload import (
    Counts,
    Job,
    MemoryAccount,
    Names,
    ParametersBlock,
    Precisions,
    RankCounts,
    StepBuilder,
    Workload,
    named,
    required,
)

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from dse.machine import Cluster, LinkSpec, NetworkSpec
    from dse.machine.host import HostProfile
    from dse.machine.platforms import Platform
    from dse.workload import AttributedGraph, Iteration, ParameterValue

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
    precision: Precision = Precision.BF16


class MlpParameters(ParametersBlock):
    """What a search space may choose."""

    platform: Names
    world_size: RankCounts
    global_batch_size: Counts
    link: Names = ["default"]
    network: Names = ["default"]
    precision: Precisions | None = None


@dataclass(frozen=True)
class MlpWorkload(Workload):
    """Equal square layers; gradients are summed while the backward pass still runs.

    Attributes:
        model: The model.
    """

    kind: ClassVar[str] = "mlp"
    title: ClassVar[str] = "multilayer perceptron"
    parameters: ClassVar[type[ParametersBlock]] = MlpParameters

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
        self,
        platform: Platform | None,
        parameters: Mapping[str, ParameterValue],
        *,
        links: Sequence[LinkSpec] = (),
        networks: Sequence[NetworkSpec] = (),
        host_profile: HostProfile | None = None,
    ) -> MlpJob:
        """Returns the model on a cluster."""
        cluster = required(platform, self).cluster(
            int(parameters["world_size"]),
            link=named(parameters, "link"),
            network=named(parameters, "network"),
            extra_links=tuple(links),
            extra_networks=tuple(networks),
        )
        if host_profile is not None:
            cluster = replace(cluster, host=host_profile.host_spec(cluster.host))
        precision = Precision(str(parameters.get("precision", self.model.precision)))
        batch = int(parameters["global_batch_size"])
        return MlpJob(self.model, cluster, batch, precision, host_profile)


@dataclass(frozen=True)
class MlpJob(Job):
    """One training step of the model on a cluster.

    Attributes:
        model: What is trained.
        cluster: Where.
        global_batch_size: Samples of one iteration over all ranks.
        precision: Arithmetic.
        host_profile: Host overheads measured from traces, if any.
    """

    model: MlpDocument
    cluster: Cluster
    global_batch_size: int
    precision: Precision
    host_profile: HostProfile | None = None

    @property
    def samples_per_iteration(self) -> float:
        """Global batch size."""
        return float(self.global_batch_size)

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
                ("weights", float(self._parameters * value)),
                ("gradients", float(self._parameters * value)),
                ("optimizer state", float(self._parameters * _OPTIMIZER_BYTES)),
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
        step = StepBuilder(
            self.cluster, precision, calls_per_op=3.0, host_profile=self.host_profile
        )
        product = gemm_estimate(device, samples, width, width, precision)
        weight_gradient = gemm_estimate(device, width, width, samples, precision)
        for layer in range(model.layers):
            step.kernel(f"layer {layer} forward", product, group="forward")
        reduced = []
        overlaps = self.cluster.world_size > 1
        for number, layer in enumerate(reversed(range(model.layers))):
            later = {"next_to_collective": overlaps and number > 0}
            step.kernel(f"layer {layer} input gradient", product, group="backward", **later)
            task = step.kernel(
                f"layer {layer} weight gradient", weight_gradient, group="backward", **later
            )
            if overlaps:
                size = precision.value_bytes * width**2
                reduced.append(
                    step.collective(
                        f"all-reduce layer {layer}",
                        CollectiveOp.ALL_REDUCE,
                        size,
                        group="gradient reduction",
                        after=(task,),
                        next_to_kernels=layer > 0,
                    )
                )
        traffic = {"traffic_bytes": float(self._parameters * _UPDATE_BYTES)}
        update = streaming_estimate(device, "elementwise", traffic)
        step.kernel("optimizer", update, group="optimizer", after=reduced[-1:])
        return step
