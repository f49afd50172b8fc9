"""The YAML of a search space: pydantic classes, and their expansion to a `SearchSpace`."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, Annotated, Any, ClassVar

from pydantic import (
    BaseModel,
    Discriminator,
    Field,
    Tag,
    ValidationError,
    ValidationInfo,
    ValidatorFunctionWrapHandler,
    field_validator,
    model_validator,
)
from pydantic_core import InitErrorDetails, PydanticCustomError, PydanticKnownError

from dse._text.suggest import hint
from dse.config import Document, from_folder
from dse.errors import ConfigError, DseError
from dse.search.space._common_schema import (
    ConstraintBlock,
    LinkBlock,
    NetworkBlock,
    ObjectiveBlock,
    PricingBlock,
    SearchBlock,
)
from dse.search.space._space import Objective, PlanSearch, SamplerName, SearchSpace
from dse.search.space._workload_blocks import ModelWorkloadBlock, TraceWorkloadBlock
from dse.sharding import TableConstraintsBlock, TablePattern
from dse.workload import (
    Name,
    ParametersBlock,
    load_workload,
    workload_kind,
    workload_kinds,
)
from dse.workload.dlrm import NO_CONSTRAINTS, DlrmParameters
from dse.workload.recorded import RecordedParameters
from dse.workload.transformer import TransformerParameters

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from pydantic import GetJsonSchemaHandler
    from pydantic_core import CoreSchema, ErrorDetails

    from dse.workload import Workload

#: What to write in a space of a trace instead of a parameter of a model.
_INSTEAD = {
    "precision": "; write an optimization such as `precision=bf16`",
    "launch": "; write the optimization `cuda_graphs`",
    "communication_precision": "; optimizations of the traffic are in `dse trace whatif --list`",
    "global_batch_size": "; write an optimization such as `resize=512:1024`",
    "local_batch_size": "; write an optimization such as `resize=512:1024`",
}

#: Parameters of the kinds of this package; other packages add theirs.
AnyParameters = DlrmParameters | TransformerParameters | RecordedParameters | ParametersBlock


class _OfAllKinds:
    """Annotates parameters, whose schema has all kinds of workloads that there are."""

    def __get_pydantic_json_schema__(
        self, schema: CoreSchema, handler: GetJsonSchemaHandler
    ) -> dict[str, Any]:
        """Returns the schema of the parameters of any kind."""
        del schema
        kinds = workload_kinds().values()
        return {"anyOf": [handler(kind.parameters.__pydantic_core_schema__) for kind in kinds]}


#: Blocks that name a metric.
AnyMetricBlock = ObjectiveBlock | ConstraintBlock

#: The kind whose spaces name traces instead of a model.
_TRACE = "trace"


def _workload_kind(value: object) -> str:
    if isinstance(value, dict) and "model" not in value:
        of_a_trace = bool(value.keys() & TraceWorkloadBlock.model_fields.keys())
    else:
        of_a_trace = isinstance(value, TraceWorkloadBlock)
    return "of a trace" if of_a_trace else "of a model"


class SpaceDocument(Document):
    """A search space: what may be chosen, what is wanted, and how to look for it.

    Attributes:
        name: Name of the space, and of its folder of results.
        description: One line for listings.
        workload: What is trained: a model, or a captured job.
        parameters: What may be chosen, each a value, a list or a range.
        objectives: What is wanted, the leading one first.
        constraints: Limits that every answer has to keep.
        pricing: Which list prices count.
        links: Interconnects that the space offers on every platform, by name.
        networks: Networks that the space offers on every platform, by name.
        table_constraints: Constraints on tables, by a name that `parameters` choose among.
        search: How the space is searched.
    """

    called: ClassVar = "a search space"

    name: Name
    description: str = ""
    workload: Annotated[
        Annotated[ModelWorkloadBlock, Tag("of a model")]
        | Annotated[TraceWorkloadBlock, Tag("of a trace")],
        Discriminator(_workload_kind),
    ]
    parameters: Annotated[AnyParameters, _OfAllKinds()]
    objectives: Annotated[list[ObjectiveBlock], Field(min_length=1, max_length=3)]
    constraints: list[ConstraintBlock] = []
    pricing: PricingBlock = PricingBlock()
    links: dict[Name, LinkBlock] = {}
    networks: dict[Name, NetworkBlock] = {}
    table_constraints: dict[
        Name, Annotated[dict[TablePattern, TableConstraintsBlock], Field(min_length=1)]
    ] = {}
    search: SearchBlock = SearchBlock()

    @classmethod
    def chosen_block(cls, field: int | str, data: object) -> type[BaseModel] | None:
        """Returns the parameters of the kind of workload that a document is about."""
        if field != "parameters" or not isinstance(data, dict):
            return None
        workload, given = data.get("workload"), data.get("parameters")
        block = None
        with suppress(ValidationError):
            of_a_trace = _workload_kind(workload) == "of a trace"
            kind = TraceWorkloadBlock if of_a_trace else ModelWorkloadBlock
            block = kind.model_validate(workload)
        return workload_kind(_kind_of(block, given if isinstance(given, dict) else {})).parameters

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
        given = value if isinstance(value, dict) else {}
        context = info.context or {}
        known, folder = context.get("kind"), str(context.get("folder", ""))
        kind = str(known) if known else _kind_of(info.data.get("workload"), given, folder)
        parameters = workload_kind(kind).parameters
        if not isinstance(value, dict):
            return parameters.model_validate(value, context=info.context)
        misplaced = [(name, home) for name in value if (home := _home_of(name, kind)) is not None]
        if misplaced:
            problems = [
                _problem((name,), _misplaced(name, kind, home), value[name])
                for name, home in misplaced
            ]
            elsewhere = dict(misplaced)
            rest = {name: given for name, given in value.items() if name not in elsewhere}
            try:
                parameters.model_validate(rest, context=info.context)
            except ValidationError as error:
                problems += map(_again, error.errors(include_url=False))
            raise ValidationError.from_exception_data("parameters", problems)
        return parameters.model_validate(value, context=info.context)

    @field_validator("objectives")
    @classmethod
    def _different_objectives(cls, value: list[ObjectiveBlock]) -> list[ObjectiveBlock]:
        metrics = [objective.metric for objective in value]
        if len(set(metrics)) < len(metrics):
            raise PydanticCustomError("objectives", "expected different metrics, one was repeated")
        return value

    @field_validator("objectives", "constraints")
    @classmethod
    def _metrics_of_the_workload(
        cls, value: list[AnyMetricBlock], info: ValidationInfo
    ) -> list[AnyMetricBlock]:
        parameters, workload = info.data.get("parameters"), info.data.get("workload")
        if parameters is None or workload is None:
            # What is wrong there comes first; it decides which metrics there are.
            return value
        kind = workload_kind(_kind_with(parameters))
        problems = [
            _problem((index, *place), words, given)
            for index, block in enumerate(value)
            for place, words, given in _metric_problems(block, kind, workload)
        ]
        if problems:
            raise ValidationError.from_exception_data("metrics", problems)
        return value

    @model_validator(mode="after")
    def _fits_the_workload(self) -> SpaceDocument:
        if problems := [
            *self._unused_blocks(),
            *self._joint_problems(),
            *self._unknown_constraints(),
        ]:
            raise ValidationError.from_exception_data("space", problems)
        return self

    @property
    def kind(self) -> str:
        """Kind of the workload."""
        return _kind_with(self.parameters)

    def _unused_blocks(self) -> Iterator[InitErrorDetails]:
        kind = workload_kind(self.kind)
        for field in ("links", "networks"):
            if self.kind == _TRACE and getattr(self, field):
                words = (
                    "only for spaces of a model; with a trace name a link or network of the "
                    "platform, or use `network_factor`"
                )
                yield _problem((field,), words, None)
        if kind.finds_plans:
            return
        if self.table_constraints:
            words = f"a {kind.title} has no tables; leave it out"
            yield _problem(("table_constraints",), words, None)
        for field in ("planners", "improvement_rounds", "plan"):
            if field in self.search.model_fields_set:
                words = f"a {kind.title} has no sharding plan to search; leave it out"
                yield _problem(("search", field), words, None)

    def _joint_problems(self) -> Iterator[InitErrorDetails]:
        """Complains about what does not go with tables placed by the sampler."""
        if self.search.plan is not PlanSearch.JOINT or not workload_kind(self.kind).finds_plans:
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
        types = getattr(self.parameters, "sharding_types", [])
        if len(types) > 1:
            words = (
                "with `plan: joint` every table chooses its own type; write one set of types "
                f"instead of {len(types)}"
            )
            yield _problem(("parameters", "sharding_types"), words, None)

    def _unknown_constraints(self) -> Iterator[InitErrorDetails]:
        """Complains about names of constraints that the space does not define."""
        known = [NO_CONSTRAINTS, *self.table_constraints]
        for index, name in enumerate(getattr(self.parameters, "table_constraints", None) or ()):
            if name not in known:
                words = f"no constraints on tables have this name; {hint(name, known)}"
                yield _problem(("parameters", "table_constraints", index), words, name)

    def _parameters_with_program(self) -> ParametersBlock:
        """Returns the parameters with the program that runs where none is named."""
        default = workload_kind(self.kind).default_program
        if not default or getattr(self.parameters, "program", None) is not None:
            return self.parameters
        return self.parameters.model_copy(update={"program": [default]})

    def to_space(self, folder: str = "") -> SearchSpace:
        """Returns the space as plain values.

        Args:
            folder: Folder of the file, from which its paths count.
        """
        parameters = self._parameters_with_program().in_folder(folder)
        return SearchSpace(
            name=self.name,
            description=self.description,
            workload=self.workload.to_reference(folder, self.kind),
            parameters=parameters.expand(),
            objectives=tuple(
                Objective(block.metric, block.direction == "maximize") for block in self.objectives
            ),
            constraints=tuple(
                block.to_constraint(workload_kind(self.kind).metric(block.metric))
                for block in self.constraints
            ),
            price_basis=self.pricing.basis,
            price_provider=self.pricing.provider,
            links=tuple(block.to_spec(name) for name, block in self.links.items()),
            networks=tuple(block.to_spec(name) for name, block in self.networks.items()),
            search=self.search.to_settings(),
            derived_platforms=parameters.derived_platforms,
            table_constraints=tuple(
                (
                    name,
                    tuple(
                        block.to_constraints(pattern, f"table_constraints.{name}, `{pattern}`")
                        for pattern, block in blocks.items()
                    ),
                )
                for name, blocks in self.table_constraints.items()
            ),
        )


def _problem(place: tuple[int | str, ...], words: str, given: object) -> InitErrorDetails:
    return InitErrorDetails(
        type=PydanticCustomError("space", "{words}", {"words": words}), loc=place, input=given
    )


def _again(problem: ErrorDetails) -> InitErrorDetails:
    """Returns a problem that was found, to be raised together with others."""
    kind, context = problem["type"], problem.get("ctx", {})
    place, given = problem["loc"], problem["input"]
    known: Callable[..., object] = PydanticKnownError
    try:
        known(kind, context)
    except (KeyError, TypeError):
        words = PydanticCustomError(kind, "{words}", {**context, "words": problem["msg"]})
        return InitErrorDetails(type=words, loc=place, input=given)
    return InitErrorDetails(type=kind, loc=place, input=given, ctx=context)


def _kind_with(parameters: AnyParameters) -> str:
    """Returns the kind of workload that parameters are for."""
    return next(
        kind
        for kind, workload in workload_kinds().items()
        if workload.parameters is type(parameters)
    )


def _metric_problems(
    block: AnyMetricBlock,
    kind: type[Workload],
    workload: ModelWorkloadBlock | TraceWorkloadBlock,
) -> Iterator[tuple[tuple[str, ...], str, object]]:
    """Yields what is wrong with an objective or a limit: place, words, what was given."""
    try:
        metric = kind.metric(block.metric)
    except ConfigError as error:
        yield ("metric",), str(error), block.metric
        return
    if missing := workload.missing_for(metric):
        words = f"`{metric.name}` needs `workload.{missing}`, which is missing"
        yield ("metric",), words, metric.name
    if isinstance(block, ConstraintBlock):
        try:
            block.to_constraint(metric)
        except ValueError as error:
            yield (), str(error), None


def _misplaced(name: str, kind: str, home: str) -> str:
    title = workload_kind(home).title
    if kind != _TRACE:
        other = "" if home == _TRACE else f", not of a {workload_kind(kind).title}"
        form = " (`workload: {trace: …}`)" if home == _TRACE else ""
        return f"`{name}` is for spaces of a {title}{form}{other}"
    advice = _INSTEAD.get(name, "")
    return f"`{name}` is for spaces of a model (`workload: {{model: …}}`){advice}"


def _kind_of(workload: object, given: dict[str, object], folder: str = "") -> str:
    """Returns the kind of workload whose parameters are given.

    The model decides. Where it cannot be read the keys do: the kind that knows most of them brings
    the fewest complaints.
    """
    if isinstance(workload, TraceWorkloadBlock):
        return _TRACE
    kinds = list(workload_kinds())
    if isinstance(workload, ModelWorkloadBlock):
        with suppress(DseError):
            return load_workload(from_folder(workload.model, folder)).kind
        kinds.remove(_TRACE)
    return max(kinds, key=lambda kind: len(given.keys() & _keys(kind)))


def _keys(kind: str) -> frozenset[str]:
    """Returns the names of a kind's parameters, former names included."""
    return workload_kind(kind).parameters.keys()


def _home_of(name: str, kind: str) -> str | None:
    """Returns the kind that has a parameter of this name if the given kind has not."""
    if name in _keys(kind):
        return None
    return next((other for other in workload_kinds() if name in _keys(other)), None)
