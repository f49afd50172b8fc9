"""Start of a run: a new study in a new folder, or a study that is resumed."""

from __future__ import annotations

from dataclasses import dataclass
import logging
from pathlib import Path
from typing import TYPE_CHECKING

from dse._io.reading import path_exists
from dse.errors import StudyError
from dse.search._records import CHANGES_ROLE, TrialStatus

if TYPE_CHECKING:
    from dse.search._directory import StudyDirectory
    from dse.search._header import StudyHeader
    from dse.search._options import RunOptions
    from dse.search.space import SamplerName
    from dse.search.storage import Journal

_LOGGER = logging.getLogger("dse.search")

#: Name of a study's folder under this one unless the user names another.
DEFAULT_RESULTS = Path("results")


@dataclass(frozen=True, slots=True)
class StudyIdentity:
    """What makes a study the same one, wherever it is kept.

    Attributes:
        created: ISO date and time of its start.
        seed: Seed.
        sampler: Sampler.
        digests: `(role, name, SHA-256)` of every input file.
        cost_model: Name of the function that answers in place of our performance model.
    """

    created: str
    seed: int
    sampler: SamplerName
    digests: tuple[tuple[str, str, str], ...]
    cost_model: str | None = None

    @staticmethod
    def of(header: StudyHeader) -> StudyIdentity:
        """Returns the identity of a study."""
        return StudyIdentity(
            header.created,
            header.seed,
            header.sampler,
            tuple((file.role, file.name, file.sha256) for file in header.inputs),
            header.cost_model,
        )


def study_folder(options: RunOptions, name: str) -> Path:
    """Returns the study folder.

    Args:
        options: Settings of the run.
        name: Of the study.

    Raises:
        StudyError: It is a file.
    """
    if options.out is not None:
        root = options.out
        if path_exists(root) and not root.is_dir():
            raise StudyError(f"{root} is a file; --out needs a folder")
        return root
    safe = "".join(sign if sign.isalnum() or sign in "-_." else "_" for sign in name)
    safe = safe.strip(".")[:60]
    root = DEFAULT_RESULTS / (safe or "study")
    if options.resume:
        return root
    suffix = 2
    while root.exists():
        root = DEFAULT_RESULTS / f"{safe or 'study'}-{suffix}"
        suffix += 1
    return root


def former_header(directory: StudyDirectory, options: RunOptions) -> StudyHeader | None:
    """Returns the header of the study in a folder that is resumed; None for a new study.

    Args:
        directory: The folder, whose lock this run holds.
        options: Settings of the run.

    Raises:
        StudyError: There is a study, and it is not to be resumed; or there is none to resume.
        ConfigError: `study.yaml` is damaged; every problem with its place.
    """
    if options.resume:
        return directory.read_header()
    if directory.header.exists() or directory.journal.exists():
        raise StudyError(
            f"{directory.root} already holds a study; add --resume to continue it, or choose "
            "another --out"
        )
    return None


def check_versions(directory: StudyDirectory, former: StudyHeader, header: StudyHeader) -> None:
    """Refuses to resume a study of another version of dse, whose predictions may differ.

    Other packages of another version are logged as a warning: answers are those of this package,
    but samplers may go on in another way.

    Args:
        directory: The folder.
        former: What the study was started with.
        header: What this run was started with.

    Raises:
        StudyError: The version of dse differs.
    """
    before = {each.package: each.version for each in former.versions}
    for each in header.versions:
        old = before.get(each.package, each.version)
        if old == each.version:
            continue
        if each.package == "dse":
            raise StudyError(
                f"{directory.root} was started with dse {old}, and this is {each.version}, whose "
                "predictions may differ; continue with that version, or start a new study"
            )
        _LOGGER.warning(
            "%s was started with %s %s, and this is %s; what is proposed next may differ",
            directory.root,
            each.package,
            old,
            each.version,
        )


def check_trials(
    directory: StudyDirectory, journal: Journal, former: StudyHeader, header: StudyHeader
) -> None:
    """Refuses to resume a study with fewer configurations than it has.

    Its tables and its front would lose what the journal has.

    Args:
        directory: The folder.
        journal: What is finished.
        former: What the study was started with.
        header: What this run was started with.

    Raises:
        StudyError: It has more.
    """
    # Runs that share a study keep everything.
    if header.trials >= former.trials or header.storage is not None:
        return
    there = sum(record.status is not TrialStatus.REJECTED for record in journal.records())
    if header.trials < min(there, former.trials):
        raise StudyError(
            f"{directory.root} has {min(there, former.trials)} evaluated configurations, more "
            f"than --trials {header.trials}; give at least as many, or start a new study with "
            "another --out"
        )


def _cost_model(name: str | None) -> str:
    return "the performance model" if name is None else f"`{name}`"


def resumed_header(
    place: str, former: StudyIdentity, header: StudyHeader, options: RunOptions
) -> StudyHeader:
    """Returns the header to resume with, after checking that it is the same study.

    Args:
        place: Where the study is kept, for messages.
        former: What it was started with.
        header: What this run was started with.
        options: Settings that were given explicitly.

    Raises:
        StudyError: An input, the cost model, the seed or the sampler differs.
    """
    if former.cost_model != header.cost_model:
        raise StudyError(
            f"{place} was evaluated by {_cost_model(former.cost_model)}, not by "
            f"{_cost_model(header.cost_model)}; continue with the same one, or start a new study"
        )
    digests = {(role, name): sha256 for role, name, sha256 in former.digests}
    changes = [file.sha256 for file in header.inputs if file.role == CHANGES_ROLE]
    if changes != [sha256 for (role, _), sha256 in digests.items() if role == CHANGES_ROLE]:
        raise StudyError(
            f"{place} was started with other changes of its platforms; give the same --set, or "
            "start a new study"
        )
    spaces = [
        next((name for role, name in inputs if role == "space"), "")
        for inputs in (digests, ((file.role, file.name) for file in header.inputs))
    ]
    if spaces[0] != spaces[1]:
        raise StudyError(
            f"{place} was started with the search space `{spaces[0]}`, not `{spaces[1]}`; name "
            "that space, or start a new study"
        )
    present = {(file.role, file.name) for file in header.inputs}
    for role, name in digests:
        if (role, name) not in present:
            raise StudyError(
                f"{place}: the {role} `{name}` that the study was started with is gone; start a "
                "new study, or restore the file"
            )
    for file in header.inputs:
        if digests.get((file.role, file.name)) != file.sha256:
            raise StudyError(
                f"{place}: the {file.role} `{file.name}` has changed since the study was started; "
                "start a new study, or restore the file"
            )
    for name, given, old, new in (
        ("seed", options.seed, former.seed, header.seed),
        ("sampler", options.sampler, former.sampler, header.sampler),
    ):
        if given is not None and old != new:
            raise StudyError(
                f"{place} was started with {name} {old}, not {new}; drop the option, or start a "
                "new study"
            )
    return header.with_changes(created=former.created, seed=former.seed, sampler=former.sampler)
