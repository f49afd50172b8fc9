"""Inputs of a study: space, workload, platforms, and their files."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cache
from typing import TYPE_CHECKING

from dse._text.suggest import hint
from dse.config import DocumentKind, find_document, key_places, parse_document
from dse.errors import ConfigError, UnknownNameError
from dse.machine.platforms import derive_platform, list_platforms, load_platform
from dse.model import find_model
from dse.search._input_files import (
    derived_platform_files,
    mapping_file,
    object_file,
    platform_facts,
    platform_files,
    text_file,
)
from dse.search._overrides import StudyMachines, with_overrides
from dse.search.evaluate._configurations import WorkloadContext
from dse.search.space import ModelReference, PlanSearch, SearchSpace, SpaceDocument, load_space
from dse.workload import find_program, load_workload, workload_kind

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from pathlib import Path

    from dse.machine.platforms import Override, Platform
    from dse.search._records import Fact, InputFile, StudyTrace
    from dse.workload import Workload


#: Where a space names its platforms.
_PLATFORMS = ("parameters", "platform")


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

    context: WorkloadContext
    workload_name: str
    files: tuple[InputFile, ...]
    facts: tuple[Fact, ...]
    trace: StudyTrace | None = None

    @property
    def space(self) -> SearchSpace:
        """The search space."""
        return self.context.space


def read_inputs(
    space: SearchSpace | Mapping[str, object] | str | Path,
    overrides: Sequence[str | Override] = (),
) -> StudyInputs:
    """Reads a search space and all that it names.

    Args:
        space: A search space (kept by its representation), a mapping with the content of a YAML
            (kept as its text), or the name or path of one.
        overrides: Changes of the platforms' figures; see :mod:`dse.machine.platforms`.

    Raises:
        ConfigError: A file is missing or wrong.
    """
    if isinstance(space, SearchSpace):
        chosen, file = space, object_file(space)
    elif isinstance(space, Mapping):
        file = mapping_file(space)
        chosen = parse_document(file.text, SpaceDocument, file=file.path).to_space()
        file = replace(file, name=chosen.name)
    else:
        chosen = load_space(space)
        path = find_document(DocumentKind.SEARCH_SPACE, space)
        file = text_file("space", chosen.name, path)
    if isinstance(chosen.workload, ModelReference):
        return _model_inputs(chosen, chosen.workload, file, overrides)
    # Traces bring packages that studies of models do without.
    from dse.search.evaluate._trace_inputs import trace_inputs

    return trace_inputs(chosen, chosen.workload, file, overrides)


def _model_inputs(
    space: SearchSpace,
    reference: ModelReference,
    file: InputFile,
    overrides: Sequence[str | Override],
) -> StudyInputs:
    workload = load_workload(reference.model)
    _check_kind(workload, space, file)
    files = [file, text_file("model", workload.name, find_model(reference.model))]
    platforms, platform_inputs = read_platforms(space, file)
    files += platform_inputs
    if overrides:
        machines = StudyMachines(space, platforms)
        parsed = machines.parsed(overrides)
        machines, _ = machines.overridden(parsed)
        space, platforms = machines.space, dict(machines.platforms)
        files = list(with_overrides(files, parsed))
    facts = [fact for name, found in platforms.items() for fact in platform_facts(name, found)]
    choices = {parameter.name: parameter.choices for parameter in space.parameters}
    for program in choices.get("program", ()):
        find_program(workload.programs, str(program), trains=workload.title)
    if space.search.plan is PlanSearch.JOINT:
        try:
            placements = workload.placement_parameters(platforms, choices)
        except ConfigError as error:
            raise ConfigError(f"{_place(file, 'search', 'plan')}: {error}") from error
        space = replace(space, parameters=(*space.parameters, *placements))
    context = WorkloadContext(space, space.search.seed, workload, platforms)
    return StudyInputs(context, workload.name, tuple(files), tuple(facts))


def read_platforms(
    space: SearchSpace, file: InputFile, without: str = ""
) -> tuple[dict[str, Platform], list[InputFile]]:
    """Reads the platforms that a space names or derives from others.

    Args:
        space: The search space.
        file: Its own file.
        without: A choice that is no platform.

    Returns:
        The platforms by the names of the choices, and the files that they came from.

    Raises:
        ConfigError: A file is missing or wrong, or what differs from a platform is impossible.
        UnknownNameError: Nobody of the name of the space's provider rents out any platform.
    """
    derived = {one.name: one for one in space.derived_platforms}
    places = _places_of_mappings(space, file)
    platforms: dict[str, Platform] = {}
    loaded = cache(load_platform)
    files: list[InputFile] = []
    for value in space.choices("platform"):
        name = str(value)
        if name == without:
            continue
        if name not in derived:
            platforms[name] = loaded(name)
            files += platform_files(name, platforms[name])
            continue
        one, given_in = derived[name], file.path or f"space {space.name}"
        own = places.get(name, {})
        try:
            base = loaded(one.base)
        except UnknownNameError as error:
            raise type(error)(f"{own.get(('from',), given_in)}: {error}") from error
        platforms[name] = derive_platform(one, base, given_in, own)
        files += derived_platform_files(one, platforms[name], given_in)
    _check_provider(space, file, platforms)
    return platforms, list(dict.fromkeys(files))


def _check_provider(
    space: SearchSpace, file: InputFile, platforms: Mapping[str, Platform]
) -> None:
    """Refuses a provider of whom neither the space's platforms nor the built-in ones have prices.

    One that merely has none for these platforms is a matter of each configuration.
    """
    provider = space.price_provider
    known = _providers(platforms.values())
    if not provider or provider.casefold() in map(str.casefold, known):
        return
    every = sorted({*known, *_providers(map(load_platform, list_platforms()))})
    if provider.casefold() not in map(str.casefold, every):
        raise UnknownNameError(
            f"{_place(file, 'pricing', 'provider')}: pricing.provider: no platform has a price "
            f"of `{provider}`; {hint(provider, known or every)}"
        )


def _providers(platforms: Iterable[Platform]) -> list[str]:
    return sorted({offer.provider for platform in platforms for offer in platform.offers})


def _places_of_mappings(
    space: SearchSpace, file: InputFile
) -> dict[str, dict[tuple[int | str, ...], str]]:
    """Returns the place of each key of the mappings that derive platforms, by their names."""
    if not file.path or not space.derived_platforms:
        return {}
    every = key_places(file.text, file=file.path)
    # A single mapping stands alone, several stand in a list.
    tops = [path[:-1] for path in every if path[:2] == _PLATFORMS and path[-1] == "from"]
    return {
        one.name: {
            path[len(top) :]: place for path, place in every.items() if path[: len(top)] == top
        }
        for one, top in zip(space.derived_platforms, tops, strict=False)
    }


def _check_kind(workload: Workload, space: SearchSpace, file: InputFile) -> None:
    """Refuses parameters of another kind of workload, which spaces made by hand may have.

    Raises:
        ConfigError: They are of another kind.
    """
    wanted = space.workload.kind
    if workload.kind == wanted:
        return
    raise ConfigError(
        f"{file.path or space.name}: `{workload.name}` is a {workload.title}, but the parameters "
        f"are those of a {workload_kind(wanted).title}"
    )


def _place(file: InputFile, *keys: str) -> str:
    """Returns where a space has a key; its name where it came from no file."""
    if not file.path:
        return f"space {file.name}"
    return key_places(file.text, file=file.path).get(keys, file.path)
