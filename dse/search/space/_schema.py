"""The YAML of a search space: pydantic classes, and their expansion to a `SearchSpace`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

from pydantic import (
    Discriminator,
    Field,
    Tag,
    ValidationError,
    ValidationInfo,
    ValidatorFunctionWrapHandler,
    field_validator,
    model_validator,
)
from pydantic_core import InitErrorDetails, PydanticCustomError

from dse.config import Document
from dse.search.space._common_schema import (
    ConstraintBlock,
    LinkBlock,
    NetworkBlock,
    ObjectiveBlock,
    PricingBlock,
    SearchBlock,
)
from dse.search.space._fields import Name
from dse.search.space._metrics import KNOWN_METRICS, Metric
from dse.search.space._model_schema import ModelParameters, ModelWorkloadBlock
from dse.search.space._space import (
    Objective,
    PlanSearch,
    SamplerName,
    SearchSpace,
    WorkloadKind,
)
from dse.search.space._trace_schema import TraceParameters, TraceWorkloadBlock
from dse.search.space._transformer_schema import TransformerParameters

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

#: What to write in a space of a trace instead of a parameter of a model.
_INSTEAD = {
    "precision": "; write an optimization such as `precision=bf16`",
    "launch": "; write the optimization `cuda_graphs`",
    "communication_precision": "; optimizations of the traffic are in `dse trace whatif --list`",
    "global_batch_size": "; write an optimization such as `resize=512:1024`",
    "local_batch_size": "; write an optimization such as `resize=512:1024`",
}

AnyParameters = ModelParameters | TransformerParameters | TraceParameters

_KINDS: dict[type[AnyParameters], WorkloadKind] = {
    ModelParameters: WorkloadKind.DLRM,
    TransformerParameters: WorkloadKind.TRANSFORMER,
    TraceParameters: WorkloadKind.TRACE,
}

_NAMES = {
    WorkloadKind.DLRM: "recommendation model",
    WorkloadKind.TRANSFORMER: "transformer",
    WorkloadKind.TRACE: "trace",
}

_WORDS = {
    WorkloadKind.DLRM: "recommendation models",
    WorkloadKind.TRANSFORMER: "transformers",
    WorkloadKind.TRACE: "a trace (`workload: {trace: …}`)",
}


def _workload_kind(value: object) -> str:
    if isinstance(value, dict) and "model" not in value:
        of_a_trace = bool(value.keys() & TraceWorkloadBlock.model_fields.keys())
    else:
        of_a_trace = isinstance(value, TraceWorkloadBlock)
    return "of a trace" if of_a_trace else "of a model"


class SpaceDocument(Document):
    """A search space: what may be chosen, what is wanted, and how to look for it."""

    name: Name
    description: str = ""
    workload: Annotated[
        Annotated[ModelWorkloadBlock, Tag("of a model")]
        | Annotated[TraceWorkloadBlock, Tag("of a trace")],
        Discriminator(_workload_kind),
    ]
    parameters: AnyParameters
    objectives: Annotated[list[ObjectiveBlock], Field(min_length=1, max_length=3)]
    constraints: list[ConstraintBlock] = []
    pricing: PricingBlock = PricingBlock()
    links: dict[Name, LinkBlock] = {}
    networks: dict[Name, NetworkBlock] = {}
    search: SearchBlock = SearchBlock()

    @field_validator("workload", mode="before")
    @classmethod
    def _one_workload(cls, value: object) -> object:
        if isinstance(value, dict) and {"model", "trace"} <= value.keys():
            raise PydanticCustomError(
                "workload", "expected one of `model` and `trace`, found both"
            )
        return value

    @field_validator("parameters", mode="wrap")
    @classmethod
    def _parameters_of_the_workload(
        cls, value: object, handler: ValidatorFunctionWrapHandler, info: ValidationInfo
    ) -> AnyParameters:
        del handler  # it would try all kinds and complain about each
        if not isinstance(value, dict):
            return ModelParameters.model_validate(value)
        kind = _parameters_kind(info.data.get("workload"), value)
        misplaced = [(name, home) for name in value if (home := _home_of(name, kind)) is not None]
        if misplaced:
            raise ValidationError.from_exception_data(
                "parameters",
                [
                    _problem((name,), _misplaced(name, kind, home), value[name])
                    for name, home in misplaced
                ],
            )
        return kind.model_validate(value)

    @field_validator("objectives")
    @classmethod
    def _different_objectives(cls, value: list[ObjectiveBlock]) -> list[ObjectiveBlock]:
        metrics = [objective.metric for objective in value]
        if len(set(metrics)) < len(metrics):
            raise PydanticCustomError("objectives", "expected different metrics, one was repeated")
        return value

    @model_validator(mode="after")
    def _fits_the_workload(self) -> SpaceDocument:
        if problems := [
            *self._unknown_metrics(),
            *self._unused_blocks(),
            *self._joint_problems(),
        ]:
            raise ValidationError.from_exception_data("space", problems)
        return self

    @property
    def kind(self) -> WorkloadKind:
        """What the space is about."""
        return _KINDS[type(self.parameters)]

    def _unknown_metrics(self) -> Iterator[InitErrorDetails]:
        workload, metrics = self.workload, KNOWN_METRICS[self.kind]
        named: dict[str, Sequence[ObjectiveBlock | ConstraintBlock]] = {
            "objectives": self.objectives,
            "constraints": self.constraints,
        }
        for field, blocks in named.items():
            for index, block in enumerate(blocks):
                metric, place = block.metric, (field, index, "metric")
                if metric not in metrics:
                    known = ", ".join(f"`{one}`" for one in Metric if one in metrics)
                    words = f"a {_NAMES[self.kind]} does not tell `{metric}`; it tells {known}"

                    yield _problem(place, words, metric.value)
                elif missing := workload.missing_for(metric):
                    words = f"`{metric}` needs `workload.{missing}`, which is missing"
                    yield _problem(place, words, metric.value)

    def _unused_blocks(self) -> Iterator[InitErrorDetails]:
        if self.kind is WorkloadKind.DLRM:
            return
        for field in ("links", "networks"):
            if self.kind is WorkloadKind.TRACE and getattr(self, field):
                words = (
                    "only for spaces of a model; with a trace name a link or network of the "
                    "platform, or use `network_factor`"
                )
                yield _problem((field,), words, None)
        for field in ("planners", "improvement_rounds", "plan"):
            if field in self.search.model_fields_set:
                words = f"a {_NAMES[self.kind]} has no sharding plan to search; leave it out"
                yield _problem(("search", field), words, None)

    def _joint_problems(self) -> Iterator[InitErrorDetails]:
        """Complains about what does not go with tables placed by the sampler."""
        if self.search.plan is not PlanSearch.JOINT or not isinstance(
            self.parameters, ModelParameters
        ):
            return
        if self.search.sampler is SamplerName.GRID:
            words = (
                "`plan: joint` has too many combinations for a grid; choose the sampler `tpe`, "
                "`nsga2` or `random`"
            )
            yield _problem(("search", "sampler"), words, self.search.sampler.value)
        for field in ("planners", "improvement_rounds"):
            if field in self.search.model_fields_set:
                words = "with `plan: joint` the sampler places the tables; leave it out"
                yield _problem(("search", field), words, None)
        if len(self.parameters.sharding_types) > 1:
            words = (
                "with `plan: joint` every table chooses its own type; write one set of types "
                f"instead of {len(self.parameters.sharding_types)}"
            )
            yield _problem(("parameters", "sharding_types"), words, None)

    def to_space(self, folder: str = "") -> SearchSpace:
        """Returns the space as plain values.

        Args:
            folder: Folder of the file, from which paths of traces count.
        """
        return SearchSpace(
            name=self.name,
            description=self.description,
            workload=self.workload.to_workload(folder, self.kind),
            parameters=self.parameters.expand(),
            objectives=tuple(
                Objective(block.metric, block.direction == "maximize") for block in self.objectives
            ),
            constraints=tuple(block.to_constraint() for block in self.constraints),
            price_basis=self.pricing.basis,
            price_provider=self.pricing.provider,
            links=tuple(block.to_spec(name) for name, block in self.links.items()),
            networks=tuple(block.to_spec(name) for name, block in self.networks.items()),
            search=self.search.to_settings(),
        )


def _problem(place: tuple[int | str, ...], words: str, given: object) -> InitErrorDetails:
    return InitErrorDetails(
        type=PydanticCustomError("space", "{words}", {"words": words}), loc=place, input=given
    )


def _misplaced(name: str, kind: type[AnyParameters], home: type[AnyParameters]) -> str:
    if kind is not TraceParameters:
        other = "" if home is TraceParameters else f", not of {_WORDS[_KINDS[kind]]}"
        return f"`{name}` is for spaces of {_WORDS[_KINDS[home]]}{other}"
    advice = _INSTEAD.get(name, "")
    return f"`{name}` is for spaces of a model (`workload: {{model: …}}`){advice}"


def _parameters_kind(workload: object, given: dict[str, object]) -> type[AnyParameters]:
    kinds: tuple[type[AnyParameters], ...] = tuple(_KINDS)
    if isinstance(workload, TraceWorkloadBlock):
        return TraceParameters
    if isinstance(workload, ModelWorkloadBlock):
        kinds = (ModelParameters, TransformerParameters)
    # Which of them is meant, the keys say: the kind that knows most of them, in case of doubt the
    # first, brings fewest complaints.
    return max(kinds, key=lambda kind: len(given.keys() & kind.model_fields.keys()))


def _home_of(name: str, kind: type[AnyParameters]) -> type[AnyParameters] | None:
    """Returns the kind of parameters that knows a name which this kind does not, if any."""
    if name in kind.model_fields:
        return None
    return next((other for other in _KINDS if name in other.model_fields), None)
