"""Changes that users write: primitives with selectors, and named optimizations."""

from __future__ import annotations

from abc import abstractmethod
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal, get_args

from pydantic import AliasChoices, BeforeValidator, Field
from pydantic_core import PydanticCustomError

from dse.config import (
    Bytes,
    Fraction,
    Seconds,
    StrictModel,
    UnitKind,
    format_quantity,
    parse_quantity,
)
from dse.errors import ConfigError
from dse.graph import TaskKind
from dse.trace import COMPUTING, TaskRole, TrainingPhase
from dse.trace.whatif.core._select import Selector

if TYPE_CHECKING:
    from dse.trace.whatif.core._editor import StepEditor


def _as_factor(value: object) -> object:
    """Reads `2x`, `50 %` or a bare number."""
    if not isinstance(value, str):
        return value
    text = value.strip().lower()
    try:
        if text.endswith("%"):
            return parse_quantity(text, UnitKind.FRACTION)
        return float(text.removesuffix("x").removesuffix("×"))
    except ValueError as error:
        raise PydanticCustomError(
            "factor",
            "expected a factor such as `2x`, `0.5` or `50 %`, found `{found}`",
            {"found": value},
        ) from error


def _as_list(value: object) -> list[object]:
    return list(value) if isinstance(value, list) else [value]


def _lower(value: object) -> object:
    return [item.lower() if isinstance(item, str) else item for item in _as_list(value)]


#: A positive number, written `2x`, `0.5` or `50 %`.
Factor = Annotated[float, Field(gt=0, allow_inf_nan=False), BeforeValidator(_as_factor)]
Patterns = Annotated[
    list[Annotated[str, Field(min_length=1)]], Field(min_length=1), BeforeValidator(_as_list)
]
Numbers = Annotated[
    list[Annotated[int, Field(ge=0)]], Field(min_length=1), BeforeValidator(_as_list)
]
PhaseName = Literal["other", "forward", "backward", "optimizer"]
RoleName = Literal[
    "host_work",
    "host_gap",
    "call",
    "after_wait",
    "launch_delay",
    "stream_gap",
    "kernel",
    "copy",
    "fill",
    "collective",
]
KindName = Literal["compute", "collective", "copy", "host"]
#: `lane` is the key of older files.
_STREAM_KEYS = AliasChoices("stream", "lane")


class Change(StrictModel):
    """One change to a captured step."""

    @property
    @abstractmethod
    def title(self) -> str:
        """Short name for reports and messages."""

    @abstractmethod
    def apply(self, editor: StepEditor) -> None:
        """Applies the change.

        Raises:
            ConfigError: Nothing was selected, or the traces lack what the change needs.
            SimulationError: The change is impossible.
        """


class SelectBlock(StrictModel):
    """Selection of tasks; all given conditions have to hold."""

    name: Patterns | None = None
    operator: Patterns | None = None
    phase: Annotated[list[PhaseName], BeforeValidator(_lower)] | None = None
    role: Annotated[list[RoleName], BeforeValidator(_lower)] | None = None
    kind: Annotated[list[KindName], BeforeValidator(_lower)] | None = None
    rank: Numbers | None = None
    stream: Annotated[Patterns | None, Field(validation_alias=_STREAM_KEYS)] = None
    collective: Patterns | None = None
    layer: Numbers | None = None
    longer_than: Seconds | None = None
    shorter_than: Seconds | None = None
    larger_than: Bytes | None = None
    without: SelectBlock | None = None

    def __str__(self) -> str:
        given = []
        for name in type(self).model_fields:
            value = getattr(self, name)
            if value is None:
                continue
            if isinstance(value, list):
                value = " or ".join(map(str, value))
            elif name in ("longer_than", "shorter_than"):
                value = format_quantity(value, UnitKind.TIME)
            elif name == "larger_than":
                value = format_quantity(value, UnitKind.SIZE)
            given.append(f"{name.replace('_', ' ')} {value}")
        return ", ".join(given) or "all work of devices"

    def to_selector(self) -> Selector:
        """Returns the selector; without role or kind it selects the work of devices."""
        roles = tuple(TaskRole[name.upper()] for name in self.role or ())
        if not roles and not self.kind:
            roles = (*COMPUTING, TaskRole.COLLECTIVE)
        return self._selector(roles)

    def _selector(self, roles: tuple[TaskRole, ...]) -> Selector:
        without = self.without
        return Selector(
            name=tuple(self.name or ()),
            operator=tuple(self.operator or ()),
            phase=tuple(TrainingPhase[name.upper()] for name in self.phase or ()),
            role=roles,
            kind=tuple(TaskKind[name.upper()] for name in self.kind or ()),
            rank=tuple(self.rank or ()),
            stream=tuple(self.stream or ()),
            collective=tuple(self.collective or ()),
            layer=tuple(self.layer or ()),
            longer_than_s=self.longer_than,
            shorter_than_s=self.shorter_than,
            larger_than_bytes=self.larger_than,
            without=None
            if without is None
            else without._selector(tuple(TaskRole[name.upper()] for name in without.role or ())),
        )


class _OnSelection(Change):
    select: SelectBlock

    def _tasks(self, editor: StepEditor) -> tuple[int, ...]:
        tasks = editor.select(self.select.to_selector())
        if not tasks:
            raise ConfigError(
                f"no task has {self.select}; `dse trace info --streams` lists kernels, operators "
                "and streams"
            )
        return tasks


class ScaleChange(_OnSelection):
    """Multiplies the durations of tasks."""

    scale: Factor

    @property
    def title(self) -> str:
        """Short name."""
        return f"scale by {self.scale:g}: {self.select}"

    def apply(self, editor: StepEditor) -> None:
        """Scales."""
        editor.scale(self._tasks(editor), self.scale)


class RemoveChange(_OnSelection):
    """Removes tasks; `with_launches` removes the calls that launched nothing else as well."""

    remove: Literal[True]
    with_launches: bool = True

    @property
    def title(self) -> str:
        """Short name."""
        return f"remove: {self.select}"

    def apply(self, editor: StepEditor) -> None:
        """Removes."""
        editor.remove(self._tasks(editor), launches=self.with_launches)


class InsertBlock(StrictModel):
    """A new task for each of the selected ones, right ahead of it or behind it.

    An operator of a thread is several tasks if it calls others, and gets one new task: ahead of
    its first one or behind its last one.

    Ahead, it waits for everything that the selected task waits for, and that task waits for it.
    Behind, it waits for the selected task, and unless `blocking` is false, everything that waited
    for that task waits for the new one as well. It goes to the stream of the selected task, or to
    another stream of the same rank.
    """

    name: Annotated[str, Field(min_length=1)]
    duration: Seconds
    role: RoleName = "kernel"
    place: Literal["ahead", "behind"] = "behind"
    stream: Annotated[str | None, Field(validation_alias=_STREAM_KEYS, min_length=1)] = None
    blocking: bool = True


class InsertChange(_OnSelection):
    """Inserts tasks."""

    insert: InsertBlock

    @property
    def title(self) -> str:
        """Short name."""
        block = self.insert
        return f"insert `{block.name}` {block.place}: {self.select}"

    def apply(self, editor: StepEditor) -> None:
        """Inserts one task for each operator or work of a device that is selected."""
        block = self.insert
        role, ahead = TaskRole[block.role.upper()], block.place == "ahead"
        whole = map(editor.fragments_of, self._tasks(editor))
        tasks = tuple(dict.fromkeys(parts[0 if ahead else -1] for parts in whole))
        passes_on = block.blocking and not ahead
        followers = editor.followers() if passes_on else {}
        behind = editor.successors(tasks) if passes_on else {}
        for task in tasks:
            own = (editor.rank_of(task), editor.stream_of(task))
            stream = (own[0], block.stream or own[1])
            same = stream == own
            other: tuple[int, ...] = () if same else (task,)
            after = editor.waits_of(task) if ahead else other
            before = other if ahead else tuple(followers.get(task, ()))
            if task in behind and not same:
                before = (*before, behind[task])
            editor.insert(
                block.name,
                role,
                stream,
                block.duration,
                after=after,
                before=before,
                ahead_of=task if same and ahead else None,
                behind=task if same and not ahead else None,
                like=task,
            )


class ScheduleChange(Change):
    """Reorders streams: of the ready tasks the one with the lowest priority value runs first."""

    schedule: Patterns
    priority: Literal["layer", "last_layer_first", "shortest", "longest"] = "layer"

    @property
    def title(self) -> str:
        """Short name."""
        return f"schedule {', '.join(self.schedule)} by {self.priority}"

    def apply(self, editor: StepEditor) -> None:
        """Reorders.

        Raises:
            ConfigError: No stream with work fits.
        """
        works = (*COMPUTING, TaskRole.COLLECTIVE)
        tasks = editor.select(Selector(stream=tuple(self.schedule), role=works))
        if not tasks:
            raise ConfigError(
                f"no stream with work fits {' or '.join(self.schedule)}; there are "
                + ", ".join(
                    sorted(
                        {
                            name
                            for _, name in editor.streams_of(editor.select(Selector(role=works)))
                        }
                    )
                )
            )
        order = {
            "layer": lambda task: editor.layer_of(task),
            "last_layer_first": lambda task: -editor.layer_of(task),
            "shortest": editor.duration_of,
            "longest": lambda task: -editor.duration_of(task),
        }
        editor.schedule(editor.streams_of(tasks), order[self.priority])


class Optimization(Change):
    """A named change, about twenty lines over the primitives; its fields are its options.

    Subclasses name themselves by `optimization: Literal["name"]`.

    Attributes:
        main_option: Field that `NAME=VALUE` sets; empty if only options can be given.
    """

    main_option: ClassVar[str] = ""

    optimization: str

    @property
    def title(self) -> str:
        """Name and options that were given."""
        given = [
            self.shown(name)
            for name in type(self).model_fields
            if name in self.model_fields_set and name != "optimization"
        ]
        return " ".join([self.optimization, *given])

    def shown(self, option: str) -> str:
        """Returns an option as a user would write it: `bucket=25 MiB`, `layer=1;2`."""
        field, value = type(self).model_fields[option], getattr(self, option)
        types = _alternatives(field.annotation)
        unit = next((unit for kind, unit in _UNITS if kind in types), None)
        if isinstance(value, bool):
            text = str(value).lower()
        elif isinstance(value, list):
            text = ";".join(map(str, value))
        elif isinstance(value, float):
            text = f"{value:.6g}" if unit is None else format_quantity(value, unit)
        else:
            text = str(value)
        return f"{option}={text}"


#: Types of figures with a unit.
_UNITS: tuple[tuple[object, UnitKind], ...] = (
    (Bytes, UnitKind.SIZE),
    (Seconds, UnitKind.TIME),
    (Fraction, UnitKind.FRACTION),
)


def _alternatives(annotation: Any) -> list[object]:
    """Returns an annotation and all types that it is made of."""
    return [annotation, *(one for part in get_args(annotation) for one in _alternatives(part))]
