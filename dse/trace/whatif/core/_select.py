"""Selectors of tasks: by name, operator, phase, role, rank, stream, size or length."""

from __future__ import annotations

from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import lru_cache
from typing import TYPE_CHECKING

from dse.trace import TaskRole

if TYPE_CHECKING:
    from dse.graph import TaskKind
    from dse.trace import TrainingPhase

#: What runs on a thread.
HOST_ROLES = (TaskRole.HOST_WORK, TaskRole.HOST_GAP, TaskRole.CALL, TaskRole.AFTER_WAIT)


@dataclass(frozen=True, slots=True)
class Selector:
    """A selection of tasks; all given conditions have to hold. Patterns are shell-like: `*gemm*`.

    Attributes:
        name: Patterns of names of tasks: kernels, calls, top-level operators.
        operator: Patterns of operators or annotations around the task, or around its launch.
        phase: Parts of the step.
        role: Roles.
        kind: Kinds of work.
        rank: Ranks.
        stream: Patterns of names of streams.
        collective: Operations of collectives.
        layer: Numbers of layers, the first forward operator is 0.
        longer_than_s: Only tasks longer than this, in seconds.
        shorter_than_s: Only tasks shorter than this, in seconds.
        larger_than_bytes: Only collectives and copies of more bytes than this.
        without: Tasks that are left out.
    """

    name: tuple[str, ...] = ()
    operator: tuple[str, ...] = ()
    phase: tuple[TrainingPhase, ...] = ()
    role: tuple[TaskRole, ...] = ()
    kind: tuple[TaskKind, ...] = ()
    rank: tuple[int, ...] = ()
    stream: tuple[str, ...] = ()
    collective: tuple[str, ...] = ()
    layer: tuple[int, ...] = ()
    longer_than_s: float | None = None
    shorter_than_s: float | None = None
    larger_than_bytes: float | None = None
    without: Selector | None = None


@lru_cache(maxsize=65536)
def matches(text: str, patterns: tuple[str, ...]) -> bool:
    """Returns whether a text fits one of some patterns; case does not matter."""
    lower = text.lower()
    return any(fnmatchcase(lower, pattern.lower()) for pattern in patterns)


@lru_cache(maxsize=65536)
def matches_any(texts: tuple[str, ...], patterns: tuple[str, ...]) -> bool:
    """Returns whether one of some texts fits one of some patterns."""
    return any(matches(text, patterns) for text in texts)
