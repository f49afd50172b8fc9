"""What a stored study was made from, with or without changes."""

from __future__ import annotations

from dataclasses import dataclass
import hashlib
from typing import TYPE_CHECKING

from pydantic import model_validator
from pydantic_core import PydanticCustomError

from dse.config import (
    SCHEMA_VERSION,
    Document,
    NonNegativeFloat,
    StrictModel,
    parse_document,
    parse_json,
)
from dse.errors import ConfigError, StudyError
from dse.search._records import InputFile
from dse.search._rescore_changes import FIELDS, Amount, Change, KnownNames, parse_changes
from dse.search._rescore_platforms import PriceChoice, changed_platform, changed_space
from dse.search.evaluate._dlrm import ModelContext
from dse.search.evaluate._transformer import StepContext
from dse.search.space import SpaceDocument, WorkloadKind

if TYPE_CHECKING:
    from collections.abc import Sequence

    from dse.machine.platforms import Platform
    from dse.search._records import StudyResult
    from dse.search._rescore_platforms import ChangedFigure
    from dse.search.space import SearchSpace

#: Role of the input that keeps the changes of a study that was scored again.
CHANGES_ROLE = "changes"


class ChangeBlock(StrictModel):
    """One change, read; see :class:`dse.search.Change`."""

    text: str
    platform: str
    field: str
    name: str
    factor: NonNegativeFloat | None
    value: NonNegativeFloat | None

    @model_validator(mode="after")
    def _check(self) -> ChangeBlock:
        if self.field not in FIELDS:
            raise PydanticCustomError("change", "expected a field that can be changed")
        if (self.factor is None) == (self.value is None):
            raise PydanticCustomError("change", "expected one of `factor` and `value`")
        return self

    @classmethod
    def of(cls, change: Change) -> ChangeBlock:
        """Returns a change as it is stored."""
        return cls(
            text=change.text,
            platform=change.platform,
            field=change.field,
            name=change.name,
            factor=change.amount.factor,
            value=change.amount.value,
        )

    def to_change(self) -> Change:
        """Returns it as a plain value."""
        amount = Amount(self.factor, self.value)
        return Change(self.text, self.platform, self.field, self.name, amount)


class ChangesDocument(Document):
    """The changes of a study that was scored again, among its inputs."""

    changes: list[ChangeBlock]


@dataclass(frozen=True, slots=True)
class StoredInputs:
    """All that candidates of a study are predicted from.

    Attributes:
        space: The search space.
        platforms: By the name that the study knows them by.
    """

    space: SearchSpace
    platforms: dict[str, Platform]

    @property
    def prices(self) -> PriceChoice:
        """Which list prices count."""
        return PriceChoice(self.space.price_basis, self.space.price_provider)

    @property
    def names(self) -> KnownNames:
        """What changes may name."""
        return KnownNames.of(self.platforms.items(), self.space)

    def changed(self, changes: Sequence[Change]) -> tuple[StoredInputs, tuple[ChangedFigure, ...]]:
        """Returns the inputs after changes, and every figure that moved.

        Raises:
            ConfigError: A change is impossible.
        """
        space, figures = changed_space(self.space, changes)
        moved = list(figures)
        platforms: dict[str, Platform] = {}
        for name, platform in self.platforms.items():
            platforms[name], figures = changed_platform(platform, changes, name, self.prices)
            moved += figures
        return StoredInputs(space, platforms), tuple(moved)


def stored_inputs(study: StudyResult, space: SearchSpace | None = None) -> StoredInputs:
    """Reads the search space and the platforms that a study keeps.

    Args:
        study: The study.
        space: Its search space, where that was made in Python and is in no file.

    Raises:
        ConfigError: The search space is in no file, or a file is damaged.
    """
    from dse.search._load import stored_platform

    chosen = space or stored_space(study)
    names = [file.name for file in study.inputs if file.role == "platform"]
    return StoredInputs(chosen, {name: stored_platform(study, name) for name in names})


def read_changes(
    study: StudyResult, changes: Sequence[str | Change], inputs: StoredInputs
) -> tuple[Change, ...]:
    """Returns changes, those that are texts read.

    Raises:
        ConfigError: A text is wrong, or there is none.
    """
    if not changes:
        raise ConfigError(
            f"nothing to change in {study.name}: give a change such as `link.bandwidth=+20%`"
        )
    read: list[Change] = []
    for change in changes:
        read += parse_changes([change], inputs.names) if isinstance(change, str) else [change]
    return tuple(read)


def model_context(study: StudyResult, inputs: StoredInputs) -> ModelContext | StepContext:
    """Returns what evaluates configurations of a study of a model.

    Raises:
        ConfigError: The study is of a captured trace.
    """
    from dse.search._load import stored_model, stored_transformer

    if study.kind is WorkloadKind.TRACE:
        raise ConfigError(
            f"{study.name} is a study of a captured trace, which it does not keep; ask "
            "`dse trace whatif TRACE` for changes of the machine (prices can be changed here)"
        )
    if study.kind is WorkloadKind.TRANSFORMER:
        return StepContext(inputs.space, study.seed, stored_transformer(study), inputs.platforms)
    return ModelContext(inputs.space, study.seed, stored_model(study), inputs.platforms)


def with_changes(files: Sequence[InputFile], changes: Sequence[Change]) -> tuple[InputFile, ...]:
    """Returns the inputs of a study that was scored again: its own, and all changes so far."""
    every = [*stored_changes(files), *changes]
    document = ChangesDocument(
        schema_version=SCHEMA_VERSION, changes=[ChangeBlock.of(change) for change in every]
    )
    text = document.model_dump_json(indent=1) + "\n"
    digest = hashlib.sha256(text.encode()).hexdigest()
    kept = [file for file in files if file.role != CHANGES_ROLE]
    return (*kept, InputFile(CHANGES_ROLE, "changes", "", digest, text))


def stored_changes(files: Sequence[InputFile]) -> tuple[Change, ...]:
    """Returns the changes with which a study was scored again; none of a plain study.

    Raises:
        ConfigError: They do not have the form that this version writes.
    """
    return tuple(
        block.to_change()
        for file in files
        if file.role == CHANGES_ROLE
        for block in parse_json(file.text, ChangesDocument, file="changes").changes
    )


def after_stored_changes(platform: Platform, name: str, files: Sequence[InputFile]) -> Platform:
    """Returns a platform of a study with the changes that the study keeps.

    Args:
        platform: As its file has it.
        name: Name that the study knows it by.
        files: Inputs of the study.
    """
    changes = stored_changes(files)
    if not changes:
        return platform
    space = next((_space(file) for file in files if file.role == "space" and file.path), None)
    prices = PriceChoice(space.price_basis, space.price_provider) if space else PriceChoice()
    return changed_platform(platform, changes, name, prices)[0]


def stored_space(study: StudyResult) -> SearchSpace:
    """Returns the search space of a study from the text that it keeps, with its changes.

    Raises:
        ConfigError: The space was made in Python and is in no file.
        StudyError: The study keeps none.
    """
    for file in study.inputs:
        if file.role == "space":
            if not file.path:
                raise ConfigError(
                    f"the search space of {study.name} was made in Python, so the study cannot "
                    "tell its limits and prices; pass it as `space`"
                )
            return changed_space(_space(file), stored_changes(study.inputs))[0]
    raise StudyError(f"the study {study.name} keeps no search space; its study.yaml was changed")


def _space(file: InputFile) -> SearchSpace:
    return parse_document(file.text, SpaceDocument, file=file.path).to_space("")
