"""Inputs of a study: space, workload, platforms, and their files."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from dse.config import DocumentKind, find_document, key_places
from dse.errors import ConfigError
from dse.machine.platforms import load_platform
from dse.model import TransformerModel, find_model, load_model
from dse.search._input_files import in_memory, platform_facts, platform_files, text_file
from dse.search.evaluate._dlrm import ModelContext
from dse.search.evaluate._transformer import StepContext
from dse.search.propose import with_placements
from dse.search.space import ModelWorkload, PlanSearch, SearchSpace, WorkloadKind, load_space
from dse.workload.dlrm import software_profile as software_profile_of_dlrm
from dse.workload.transformer import software_profile

if TYPE_CHECKING:
    from pathlib import Path

    from dse.machine.platforms import Platform
    from dse.model import DlrmModel
    from dse.search._records import Fact, InputFile
    from dse.search.evaluate._base import EvaluationContext
    from dse.search.evaluate._trace_types import StudyTrace


@dataclass(frozen=True, slots=True)
class StudyInputs:
    """What a study is made from.

    Attributes:
        context: What evaluations need, with the seed of the space.
        workload_name: What is trained.
        files: The files that all came from.
        facts: Where the platforms' numbers come from.
        trace: The captured step; None of a model.
    """

    context: EvaluationContext
    workload_name: str
    files: tuple[InputFile, ...]
    facts: tuple[Fact, ...]
    trace: StudyTrace | None = None

    @property
    def space(self) -> SearchSpace:
        """The search space."""
        return self.context.space


def read_inputs(space: SearchSpace | str | Path) -> StudyInputs:
    """Reads a search space and all that it names.

    Args:
        space: A search space (kept by its representation), or the name or path of one.

    Raises:
        ConfigError: A file is missing or wrong.
    """
    if isinstance(space, SearchSpace):
        chosen, file = space, in_memory(space)
    else:
        chosen = load_space(space)
        path = find_document(DocumentKind.SEARCH_SPACE, str(space))
        file = text_file("space", chosen.name, path)
    if isinstance(chosen.workload, ModelWorkload):
        return _model_inputs(chosen, chosen.workload, file)
    # Traces bring packages that studies of models do without.
    from dse.search.evaluate._trace_inputs import trace_inputs

    return trace_inputs(chosen, chosen.workload, file)


def _model_inputs(space: SearchSpace, workload: ModelWorkload, file: InputFile) -> StudyInputs:
    model = load_model(workload.model)
    _check_kind(model, space, file)
    files = [file, text_file("model", model.name, find_model(workload.model))]
    platforms: dict[str, Platform] = {}
    facts: list[Fact] = []
    for value in space.choices("platform"):
        name = str(value)
        platform = load_platform(name)
        platforms[name] = platform
        files += platform_files(name, platform)
        facts += platform_facts(name, platform)
    if isinstance(model, TransformerModel):
        for software in space.choices("software"):
            software_profile(str(software))
        steps = StepContext(space, space.search.seed, model, platforms)
        return StudyInputs(steps, model.name, tuple(files), tuple(facts))
    for parameter in space.parameters:
        if parameter.name == "software_profile":
            for choice in parameter.choices:
                software_profile_of_dlrm(str(choice))
    if space.search.plan is PlanSearch.JOINT:
        space = with_placements(space, model, platforms, _place_of_plan(file))
    context = ModelContext(space, space.search.seed, model, platforms)
    return StudyInputs(context, model.name, tuple(files), tuple(facts))


def _check_kind(model: DlrmModel | TransformerModel, space: SearchSpace, file: InputFile) -> None:
    """Refuses parameters of another kind of model.

    Raises:
        ConfigError: They are; says which are wanted.
    """
    of_transformer = space.workload.kind is WorkloadKind.TRANSFORMER
    if isinstance(model, TransformerModel) == of_transformer:
        return
    if of_transformer:
        words = "is a recommendation model, but the parameters are those of a transformer"
        advice = "choose among `sharding_types`, `launch` and what else the file formats list"
    else:
        words = "is a transformer, but the parameters are those of a recommendation model"
        advice = "name at least one of `tensor`, `pipeline`, `micro_batch_size` and `recompute`"
    raise ConfigError(f"{file.path or space.name}: `{model.name}` {words}; {advice}")


def _place_of_plan(file: InputFile) -> str:
    """Returns where the space says how plans are found; its name where it came from no file."""
    if not file.path:
        return f"space {file.name}"
    return key_places(file.text, file=file.path).get(("search", "plan"), file.path)
