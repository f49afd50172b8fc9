"""Transformers as a workload."""

from __future__ import annotations

from dataclasses import asdict, dataclass, fields, replace
from enum import Enum, StrEnum
from typing import TYPE_CHECKING, ClassVar, TypeVar

from dse.config import parse_document
from dse.errors import ConfigError
from dse.machine import Precision
from dse.model import TransformerDocument
from dse.workload._launch import LaunchMode
from dse.workload._metrics import ITERATION_TIME, THROUGHPUT, Metric, metrics_with
from dse.workload._model_workload import ModelWorkload
from dse.workload.transformer._contents import model_contents
from dse.workload.transformer._job import FP8_PARAMETERS, TransformerJob
from dse.workload.transformer._lattice import CHOSEN, usual_ways
from dse.workload.transformer._parameters import TransformerParameters
from dse.workload.transformer._text import format_parallelism
from dse.workload.transformer._types import (
    Capture,
    ContextExchange,
    DataSharding,
    ExpertDispatch,
    Offload,
    Parallelism,
    Recompute,
    RecomputeModule,
    Schedule,
)
from dse.workload.transformer.deploy import DEPLOY_FORMATS
from dse.workload.transformer.program._programs import TRANSFORMER_PROGRAMS

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from dse.machine import LinkSpec, NetworkSpec
    from dse.machine.platforms import Platform
    from dse.model import TransformerModel
    from dse.workload._configuration import Configuration
    from dse.workload._parameters import ParametersBlock, ParameterValue
    from dse.workload._programs import Program
    from dse.workload.transformer._types import TransformerRuntime

_Choice = TypeVar("_Choice", bound=StrEnum)

#: Transformers train few samples a second; their steps take seconds.
_METRICS = metrics_with(
    replace(THROUGHPUT, unit="samples/s", scale=1.0),
    replace(ITERATION_TIME, unit="s", scale=1.0),
    Metric(
        "throughput_tokens_per_s",
        "Throughput",
        maximize=True,
        unit="tokens/s",
        digits=0,
        time_exponent=-1,
    ),
    *(
        Metric(
            name,
            title,
            column=f"{title} %",
            maximize=True,
            unit="%",
            scale=100.0,
            digits=1,
            time_exponent=-1,
        )
        for name, title in (
            ("model_flops_utilization", "MFU"),
            ("model_flops_utilization_causal", "MFU, causal"),
            ("hardware_flops_utilization", "HFU"),
        )
    ),
)


@dataclass(frozen=True, slots=True)
class TransformerWorkload(ModelWorkload):
    """A transformer whose training step is spread over the ranks.

    Attributes:
        model: What is trained.
    """

    kind: ClassVar[str] = "transformer"
    title: ClassVar[str] = "transformer"
    parameters: ClassVar[type[ParametersBlock]] = TransformerParameters
    metrics: ClassVar[tuple[Metric, ...]] = _METRICS
    bounds_time: ClassVar[bool] = True
    programs: ClassVar[Mapping[str, Program]] = TRANSFORMER_PROGRAMS
    default_program: ClassVar[str] = "megatron_bridge"
    rank_word: ClassVar[str] = TransformerJob.rank_word
    frameworks: ClassVar[tuple[str, ...]] = tuple(DEPLOY_FORMATS)
    summarized: ClassVar[frozenset[str]] = frozenset(f.name for f in fields(Parallelism))

    model: TransformerModel

    @property
    def sizes(self) -> Mapping[str, float]:
        """Number of layers."""
        return {"layers": self.model.layers}

    @property
    def contents(self) -> Mapping[str, object]:
        """What the model holds."""
        own = {"name": self.name, "kind": self.kind, "description": self.description}
        return {**own, **model_contents(self.model)}

    @property
    def tokens_per_sample(self) -> int:
        """Length of a sample."""
        return self.model.sequence_length

    @classmethod
    def from_text(cls, text: str, *, file: str = "<string>") -> TransformerWorkload:
        """Returns the model of a file; see :meth:`Workload.from_text`."""
        return cls(parse_document(text, TransformerDocument, file=file).to_model())

    @classmethod
    def parallelism(cls, configuration: Configuration) -> Parallelism:
        """Returns how a configuration spreads the step."""
        parameters = dict(configuration.parameters)
        return _parallelism(parameters, cls._software(parameters))

    @classmethod
    def details(cls, configuration: Configuration) -> tuple[tuple[str, str], ...]:
        """Returns the parallelism."""
        return (("Parallelism", cls.summary(configuration)),)

    @classmethod
    def summary(cls, configuration: Configuration) -> str:
        """Returns the parallelism."""
        return format_parallelism(cls.parallelism(configuration))

    @classmethod
    def document(cls, configuration: Configuration, model_name: str) -> dict[str, object]:
        """Returns the configuration with its parallelism in one block."""
        spread = {
            name: _plain(value) for name, value in asdict(cls.parallelism(configuration)).items()
        }
        # `super()` without arguments does not work in dataclasses with slots.
        found = super(TransformerWorkload, cls).document(configuration, model_name)
        plain = {name: value for name, value in found.items() if name not in spread}
        return {**plain, "parallelism": spread}

    def framework_text(
        self, configuration: Configuration, framework: str, platform: Platform
    ) -> str:
        """Returns a configuration in a framework's format; see the base class."""
        if framework not in DEPLOY_FORMATS:
            return ModelWorkload.framework_text(self, configuration, framework, platform)
        # A framework has no setting for how ranks are connected.
        parameters = {
            **dict(configuration.parameters),
            "world_size": configuration.world_size,
            "global_batch_size": configuration.global_batch_size,
            "link": "default",
            "network": "default",
        }
        return DEPLOY_FORMATS[framework].write(self.job(platform, parameters))

    @classmethod
    def _software(
        cls, parameters: Mapping[str, ParameterValue], *, on_cpu: bool = False
    ) -> TransformerRuntime:
        """Returns how the program is written, with what parameters want to be otherwise.

        Raises:
            ConfigError: It cannot capture the graphs that are asked for.
        """
        name = cls.program_name(parameters)
        software = TRANSFORMER_PROGRAMS[name].software_for(on_cpu=on_cpu)
        if (reduced := parameters.get("gradient_reduction_precision")) is not None:
            value_bytes = Precision(str(reduced)).value_bytes
            software = replace(software, gradient_bytes=value_bytes, sums_bf16_in_fp32=False)
        if (kept := parameters.get("fp8_param_gather")) is not None:
            software = replace(software, fp8_parameters=bool(kept))
        if (launch := parameters.get("launch")) is not None:
            software = replace(software, launch=LaunchMode(str(launch)))
        if software.launch is LaunchMode.CUDA_GRAPHS and software.captures is Capture.NOTHING:
            programs = TRANSFORMER_PROGRAMS.values()
            able = (one.name for one in programs if one.software.captures is not Capture.NOTHING)
            raise ConfigError(
                f"launch {software.launch}: program {name} captures no graphs; use launch "
                f"{LaunchMode.EAGER}, or a program that can: {', '.join(able)}"
            )
        return software

    @classmethod
    def batch_grain(cls, configuration: Configuration) -> int:
        """Returns one micro-batch on every replica; interleaved schedules want one per stage."""
        spread = cls.parallelism(configuration)
        stages = spread.pipeline if spread.interleave > 1 else 1
        return spread.data * spread.micro_batch_size * stages

    def candidates(
        self, platform: Platform, parameters: Mapping[str, ParameterValue]
    ) -> Iterator[Mapping[str, ParameterValue]]:
        """Yields the usual ways to parallelize the step; see the base class."""
        given = parameters.keys() & set(CHOSEN)
        for spread in usual_ways(self.job(platform, parameters), given):
            values = {name: getattr(spread, name) for name in CHOSEN}
            yield {
                **parameters,
                **{name: getattr(value, "value", value) for name, value in values.items()},
            }

    def job(
        self,
        platform: Platform | None,
        parameters: Mapping[str, ParameterValue],
        *,
        links: Sequence[LinkSpec] = (),
        networks: Sequence[NetworkSpec] = (),
    ) -> TransformerJob:
        """Returns the job; data parallelism takes the ranks that the other degrees leave over.

        Raises:
            ConfigError: Gradients cannot be reduced, or weights kept, in the type asked for.
        """
        cluster = self.cluster(platform, parameters, links=links, networks=networks)
        program = self.program_name(parameters)
        software = self._software(parameters, on_cpu=cluster.device.kind == "cpu")
        precision = Precision(str(parameters.get("precision", self.model.precision.value)))
        reduced = parameters.get("gradient_reduction_precision")
        if reduced == Precision.BF16 and precision.outside_products is not Precision.BF16:
            raise ConfigError(
                f"gradient reduction in {reduced} with precision {precision}: gradients have the "
                f"type of the weights or {Precision.FP32}; leave it out, or use {Precision.FP32}"
            )
        job = TransformerJob(
            model=self.model,
            cluster=cluster,
            global_batch_size=int(parameters["global_batch_size"]),
            precision=precision,
            parallelism=_parallelism(parameters, software),
            software=software,
            program=program,
        )
        if parameters.get("fp8_param_gather") and not job.fp8_parameters:
            raise ConfigError(
                f"fp8_param_gather with precision {precision} and data sharding "
                f"{job.parallelism.data_sharding}: programs keep weights in "
                f"{' or '.join(sorted(FP8_PARAMETERS))}, and only if something is sharded; leave "
                "it out"
            )
        return job


def _parallelism(
    parameters: Mapping[str, ParameterValue], software: TransformerRuntime
) -> Parallelism:
    """Returns how parameters spread the step.

    Args:
        parameters: The parameters.
        software: How the program is written, for what they leave open.

    Raises:
        ConfigError: The degrees do not divide the ranks, or data-parallel ranks that there are
            not would shard something.
    """

    def degree(name: str) -> int:
        return int(parameters.get(name, 1))

    def choice(name: str, default: _Choice) -> _Choice:
        return type(default)(str(parameters.get(name, default)))

    world_size = int(parameters["world_size"])
    tensor, pipeline, context = (degree(name) for name in ("tensor", "pipeline", "context"))
    others = tensor * pipeline * context
    if world_size % others:
        raise ConfigError(
            f"tensor {tensor} × pipeline {pipeline} × context {context} = {others} does not "
            f"divide {world_size} ranks; choose degrees whose product does"
        )
    usual = software.sequence_parallel and tensor > 1
    shards = parameters.get("sharding_degree")
    dispatch, overlap = (parameters.get(f"expert_{name}") for name in ("dispatch", "overlap"))
    found = Parallelism(
        tensor=tensor,
        pipeline=pipeline,
        data=world_size // others,
        context=context,
        expert=degree("expert"),
        expert_tensor=degree("expert_tensor") if parameters.get("expert_tensor") else None,
        expert_dispatch=None if dispatch is None else ExpertDispatch(str(dispatch)),
        expert_overlap=None if overlap is None else bool(overlap),
        interleave=degree("interleave"),
        schedule=choice("schedule", Schedule.ONE_F_ONE_B),
        sequence_parallel=bool(parameters.get("sequence_parallel", usual)),
        micro_batch_size=degree("micro_batch_size"),
        recompute=choice("recompute", Recompute.NONE),
        recompute_modules=RecomputeModule.of(str(parameters.get("recompute_modules", ""))),
        recompute_layers=int(parameters.get("recompute_layers", 0)),
        offload=choice("offload", Offload.NONE),
        offload_layers=int(parameters.get("offload_layers", 0)),
        data_sharding=choice("data_sharding", DataSharding.NONE),
        sharding_degree=None if shards is None else int(shards),
        reshard_after_forward=bool(parameters.get("reshard_after_forward", True)),
        no_sync=bool(parameters.get("no_sync", False)),
        context_exchange=choice("context_exchange", ContextExchange.RING),
    )
    if found.replicas == 1 and found.data_sharding is not DataSharding.NONE:
        raise ConfigError(
            f"data sharding {found.data_sharding.value} with one replica shards nothing: same as "
            f"{DataSharding.NONE.value}; use that, or fewer tensor, pipeline and context ranks"
        )
    return found


def _plain(value: object) -> object:
    """Returns a field of the parallelism as files and options write it."""
    if isinstance(value, tuple):
        return RecomputeModule.text(value)
    return value.value if isinstance(value, Enum) else value
