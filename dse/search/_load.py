"""Loading a study from its folder, without its input files."""

from __future__ import annotations

from dataclasses import replace
import math
from pathlib import Path
from typing import TYPE_CHECKING

from dse.config import IN_MEMORY, parse_document, parse_plain
from dse.errors import ConfigError, StudyError
from dse.machine.platforms import CalibrationSource, platform_from_text
from dse.search._directory import StudyDirectory
from dse.search._input_files import platform_facts
from dse.search._options import Study
from dse.search._overrides import (
    override_space,
    override_study_platform,
    stored_overrides,
)
from dse.search._polish import FrontPolish
from dse.search._records import (
    BASE_ROLE,
    CALIBRATION_ROLE,
    PLATFORM_ROLE,
    STEPS_ROLE,
    TrialStatus,
)
from dse.search._result import study_result
from dse.search.space import SpaceDocument
from dse.search.storage import Journal
from dse.workload import workload_from_text
from dse.workload.recorded import is_step_file

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from dse.machine.platforms import Platform
    from dse.search._header import StudyHeader
    from dse.search._records import InputFile, StudyResult, TrialRecord
    from dse.search.space import SearchSpace
    from dse.workload import Workload


def load_study(root: str | Path) -> Study:
    """Loads a study from its folder.

    Raises:
        StudyError: The folder is not a study, or its journal is damaged.
        ConfigError: `study.yaml` is damaged; every problem with its place.
    """
    directory = StudyDirectory(Path(root))
    header = directory.read_header()
    if not directory.journal.is_file():
        raise StudyError(f"{root} has no journal.log; the study cannot be read without it")
    journal = Journal(directory.journal, header.objectives, header.parameters)
    first, revised = journal.records(), journal.revised()
    _check(root, header, (*first, *revised))
    records = FrontPolish(first, revised, header.objectives).records
    facts = [
        fact
        for file in header.inputs
        if file.role == "platform"
        for fact in platform_facts(file.name, _platform(file, header.inputs))
    ]
    result = study_result(header, records, tuple(facts), journal.bounds())
    result = replace(result, validation=directory.read_validation())
    evaluated = sum(record.evaluated for record in records)
    complete = header.certificate is not None and header.certificate.complete
    return Study(
        result,
        directory,
        interrupted=evaluated < header.trials and not complete,
        exhausted=complete,
        storage=header.storage,
    )


def _check(root: str | Path, header: StudyHeader, records: Sequence[TrialRecord]) -> None:
    """Refuses a journal of another study: its records do not answer the same questions.

    Raises:
        StudyError: A feasible configuration lacks an answer or has one too many.
    """
    for record in records:
        given = sum(map(math.isfinite, record.values)), len(record.values)
        wanted = len(header.objectives)
        if record.status is TrialStatus.FEASIBLE and (
            given != (wanted, wanted) or not record.evaluated
        ):
            raise StudyError(
                f"{root}: configuration {record.number} of the journal has {given[0]} values for "
                f"the {wanted} objectives of study.yaml; restore both from a copy"
            )


def stored_workload(study: StudyResult) -> Workload:
    """Returns the workload from the model file that the study keeps.

    Raises:
        ConfigError: The study is of a captured trace, which it does not keep.
        StudyError: The study keeps no model.
    """
    if study.trace is not None:
        raise ConfigError(
            f"{study.name} is a study of a captured trace, which it does not keep; use "
            "`dse trace whatif TRACE` for changes of the machine (prices can be changed here)"
        )
    file = _input(study, "model", study.model_name)
    return workload_from_text(file.text, file=file.path)


def stored_platform(study: StudyResult, name: str) -> Platform:
    """Returns a platform from the text that the study keeps.

    Raises:
        StudyError: The study keeps no such platform.
    """
    return _platform(_input(study, "platform", name), study.inputs)


def stored_source(study: StudyResult) -> str | Mapping[str, object]:
    """Returns where the search space came from: its path, or its content where it has none.

    Raises:
        StudyError: The study keeps no space.
    """
    file = _input(study, "space")
    if file.path != IN_MEMORY:
        return file.path
    content = parse_plain(file.text, file=file.path)
    return content if isinstance(content, dict) else {}


def stored_space(study: StudyResult) -> SearchSpace:
    """Returns the search space from the text that the study keeps, with its overrides.

    Raises:
        ConfigError: The space was made in Python and is in no file.
        StudyError: The study keeps no space.
    """
    file = _input(study, "space")
    if not file.path:
        raise ConfigError(
            f"the search space of {study.name} was made in Python, so its limits and prices are "
            "not in the study; pass it as `space`"
        )
    return override_space(_space(file, study.kind), stored_overrides(study.inputs))[0]


def stored_steps(study: StudyResult, record: TrialRecord) -> str:
    """Returns the changes of a configuration of a trace, as YAML for `dse trace whatif --steps`.

    Raises:
        ConfigError: It changes nothing.
        StudyError: The study is of a model, or keeps no file of steps that the configuration
            names.
    """
    import yaml

    from dse.workload.recorded import (
        changes_document,
        machine_changes,
        optimizations,
        with_captured_platform,
    )

    parameters = dict(record.parameters)
    trace = study.trace
    if trace is None:
        raise StudyError(f"the study {study.name} is of a model; there is no trace to change")
    platforms = _stored_platforms(study)
    named = platforms.get(str(parameters.get("platform", "")))
    captured = platforms.get(trace.platform) or next(
        (one for one in platforms.values() if one.name == trace.platform), None
    )
    machine = machine_changes(
        with_captured_platform(parameters, named, captured),
        trace.world_size,
        trace.device,
        _stored_mappings(study.inputs),
    )
    texts = optimizations(parameters)
    if not machine and not texts:
        raise ConfigError(
            f"configuration {record.number} changes nothing: it is the step as captured"
        )
    files = {text: _input(study, STEPS_ROLE, text).text for text in texts if is_step_file(text)}
    document = changes_document(
        name=f"{study.name} {record.number}"[:200],
        description=f"Configuration {record.number} of the study {study.name}, for {trace.step} "
        f"of {trace.path}",
        machine=machine,
        texts=texts,
        files=files,
    )
    return yaml.safe_dump(document, sort_keys=False, allow_unicode=True, width=100)


def _stored_platforms(study: StudyResult) -> dict[str, Platform]:
    """Returns the platforms of a study by the names under which it loaded them."""
    return {
        file.name: _platform(file, study.inputs)
        for file in study.inputs
        if file.role == PLATFORM_ROLE
    }


def _stored_mappings(inputs: Sequence[InputFile]) -> dict[str, Mapping[str, object]]:
    """Returns the mappings of the platforms that are derived from others, by their names."""
    if not any(file.role == BASE_ROLE for file in inputs):
        return {}
    found = {
        file.name: parse_plain(file.text, file=file.path)
        for file in inputs
        if file.role == PLATFORM_ROLE
    }
    return {
        name: mapping
        for name, mapping in found.items()
        if isinstance(mapping, dict) and "from" in mapping
    }


def _platform(file: InputFile, inputs: Sequence[InputFile]) -> Platform:
    """A platform from its text, with the fitted models that the study keeps of it."""
    prefix = f"{file.name}: "
    kept = [
        CalibrationSource(used.name.removeprefix(prefix), used.path, used.sha256, used.text)
        for used in inputs
        if used.role == CALIBRATION_ROLE and used.name.startswith(prefix) and used.text
    ]
    bases = {used.name: used.text for used in inputs if used.role == BASE_ROLE}
    platform = platform_from_text(file.text, file.path, kept, bases)
    overrides = stored_overrides(inputs)
    if not overrides:
        return platform
    space = next((_space(used) for used in inputs if used.role == "space" and used.path), None)
    return override_study_platform(platform, file.name, overrides, space)


def _space(file: InputFile, kind: str = "") -> SearchSpace:
    # The model's own file need not be there any more, so the study says which kind it is.
    document = parse_document(file.text, SpaceDocument, file=file.path, context={"kind": kind})
    return document.to_space(str(Path(file.path).parent))


def _input(study: StudyResult, role: str, name: str = "") -> InputFile:
    for file in study.inputs:
        if file.role == role and name in ("", file.name):
            return file
    wanted = f"{role} `{name}`" if name else role
    raise StudyError(f"the study keeps no {wanted}; its study.yaml was changed")
