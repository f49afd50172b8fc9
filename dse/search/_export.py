"""One candidate of a study as text or files that can be deployed."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from dse.config import parse_plain
from dse.errors import ConfigError
from dse.search._load import stored_platform, stored_steps, stored_workload

if TYPE_CHECKING:
    from collections.abc import Mapping

    from dse.search._records import StudyResult, TrialRecord
    from dse.workload import Configuration

#: Formats that any candidate has; all others are those of training frameworks.
_OWN_FORMATS = ("json", "yaml")


def export_text(study: StudyResult, number: int, kind: str = "json") -> str:
    """Returns the plan, the whole configuration, or the changes of one candidate.

    Args:
        study: The study.
        number: The candidate.
        kind: ``json`` for the plan, or for the configuration of models without one; ``yaml`` for
            the configuration; or the format of a training framework. Of a captured trace, both
            are its changes.

    Raises:
        ConfigError: There is no such candidate, it cannot be deployed, or its workload has no
            such format.
        StudyError: The study does not keep what is needed.
    """
    record = study.record(number)
    if study.trace is not None:
        return _changes(study, record, kind)
    configuration = _planned(record)
    workload = stored_workload(study)
    if kind == "json":
        return workload.deployment(configuration, study.model_name)
    if kind == "yaml":
        import yaml

        document = workload.document(configuration, study.model_name)
        return str(yaml.safe_dump(document, sort_keys=False))
    return workload.framework_text(
        configuration, kind, stored_platform(study, configuration.platform)
    )


def export_files(
    study: StudyResult, number: int, kind: str, *, module_path: str = ""
) -> Mapping[str, str]:
    """Returns what a training framework needs to run one candidate, as texts by file name.

    Args:
        study: The study.
        number: The candidate.
        kind: Format of a training framework that has several files.
        module_path: Path of the collection of tables in the module that is trained.

    Raises:
        ConfigError: As of :func:`export_text`.
        StudyError: The study does not keep what is needed.
    """
    record = study.record(number)
    configuration = _planned(record)
    return stored_workload(study).framework_files(
        configuration,
        kind,
        stored_platform(study, configuration.platform),
        module_path=module_path,
        prediction=record.prediction,
    )


def _planned(record: TrialRecord) -> Configuration:
    if record.configuration is None:
        raise ConfigError(
            f"configuration {record.number} has no plan: it is {record.status.value} "
            f"({record.reason})"
        )
    return record.configuration


def _changes(study: StudyResult, record: TrialRecord, kind: str) -> str:
    if kind not in _OWN_FORMATS:
        raise ConfigError(
            f"format {kind}: the study changes a captured trace and has no sharding plan; use "
            "yaml for the changes"
        )
    if not record.evaluated:
        raise ConfigError(
            f"configuration {record.number} cannot be applied: it is {record.status.value} "
            f"({record.reason})"
        )
    text = stored_steps(study, record)
    if kind == "yaml":
        return text
    return json.dumps(parse_plain(text), indent=1) + "\n"
