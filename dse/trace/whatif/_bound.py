"""What the length of a changed step hangs on."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dse.simulate import critical_path
from dse.trace import summarise_path

if TYPE_CHECKING:
    from dse.trace import PathPart
    from dse.trace.whatif._apply import WhatIf


def bound_by(answer: WhatIf) -> tuple[PathPart, ...]:
    """Returns what the critical path of a changed step consists of, most time first.

    A change that shortens what has no share in it leaves the step as long as it is.

    Args:
        answer: The changed step.
    """
    return summarise_path(answer.graph, critical_path(answer.timeline)).parts
