"""Difference of two iteration times by operator group and resource."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from dse.explanation._types import Difference, DifferenceStep

if TYPE_CHECKING:
    from dse.explanation._resources import Resource
    from dse.explanation._types import Explanation


def compare_explanations(before: Explanation, after: Explanation) -> Difference:
    """Attributes the difference of two iteration times.

    Both critical paths are as long as their iterations, so the changes of their groups add up to
    the difference.

    Args:
        before: The first iteration.
        after: The second one, of the same groups as far as they do the same.
    """
    first, second = _by_group(before), _by_group(after)
    steps = []
    for key in dict.fromkeys((*first, *second)):
        old_s, old_name = first.get(key, (0.0, ""))
        new_s, new_name = second.get(key, (0.0, ""))
        both = old_name and new_name and old_name != new_name
        steps.append(
            DifferenceStep(
                group=key[0],
                resource=key[1],
                resource_name=f"{old_name} → {new_name}" if both else new_name or old_name,
                before_s=old_s,
                after_s=new_s,
                change_s=new_s - old_s,
            )
        )
    steps.sort(key=lambda step: (-abs(step.change_s), step.group, step.resource))
    return Difference(before.iteration_time_s, after.iteration_time_s, tuple(steps))


def _by_group(explanation: Explanation) -> dict[tuple[str, Resource], tuple[float, str]]:
    """Seconds of each group and resource over all ranks, and what the resource is called."""
    found: dict[tuple[str, Resource], tuple[list[float], str]] = {}
    for part in explanation.path:
        seconds, _ = found.setdefault((part.group, part.resource), ([], part.resource_name))
        seconds.append(part.seconds)
    return {key: (math.fsum(seconds), name) for key, (seconds, name) in found.items()}
