"""Evaluators of finished studies, from the inputs that studies keep."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dse.errors import StudyError
from dse.search._load import stored_platform, stored_space, stored_workload
from dse.search._overrides import StudyMachines
from dse.search.evaluate._configurations import WorkloadContext

if TYPE_CHECKING:
    from dse.search._records import StudyResult
    from dse.search.evaluate._configurations import ConfigurationEvaluator
    from dse.search.space import SearchSpace


def study_machines(study: StudyResult, space: SearchSpace | None = None) -> StudyMachines:
    """Reads the search space and the platforms that a study keeps.

    Args:
        study: The study.
        space: Its search space, where that was made in Python and is in no file.

    Raises:
        ConfigError: The search space is in no file, or a file is damaged.
    """
    chosen = space or stored_space(study)
    names = [file.name for file in study.inputs if file.role == "platform"]
    return StudyMachines(chosen, {name: stored_platform(study, name) for name in names})


def study_context(study: StudyResult, machines: StudyMachines) -> WorkloadContext:
    """Returns what evaluates configurations of a study of a model.

    Raises:
        ConfigError: The study is of a captured trace.
        StudyError: Another cost model answered, which the study does not keep.
    """
    if study.cost_model is not None:
        raise StudyError(
            f"{study.name} was evaluated by `{study.cost_model}`, which the study does not keep; "
            "only that function can evaluate its configurations again"
        )
    return WorkloadContext(machines.space, study.seed, stored_workload(study), machines.platforms)


def study_evaluator(study: StudyResult) -> ConfigurationEvaluator:
    """Returns the evaluator of a study's configurations, made from the inputs that it keeps.

    Raises:
        ConfigError: The study is of a captured trace, its search space is in no file, or a file
            is damaged.
        StudyError: A file is missing, or another cost model answered.
    """
    return study_context(study, study_machines(study)).make_evaluator()
