"""Lower bounds of the configurations on the front.

Bounds of all configurations would take more than a tenth of a study, so only those on the front
get one: with the thorough search of their plan, or when a run ends. It depends on nothing but the
configuration, so a resumed run ends with the same ones.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from dse.search._records import Params, TrialRecord
    from dse.search.evaluate._evaluator import Evaluator


def missing_bounds(
    records: Sequence[TrialRecord],
    known: Mapping[Params, float],
    evaluator: Evaluator,
) -> dict[Params, float]:
    """Returns lower bounds of configurations on the front that have none yet.

    Args:
        records: All trials, the front marked.
        known: Lower bounds in seconds by the parameters of their configuration.
        evaluator: Knows the workload.
    """
    found: dict[Params, float] = {}
    for record in records:
        if record.on_front and record.parameters not in known:
            bound_s = record.lower_bound_s
            if bound_s is None:
                bound_s = evaluator.lower_bound_s(dict(record.parameters))
            if bound_s is not None:
                found[record.parameters] = bound_s
    return found


def with_bounds(
    records: Sequence[TrialRecord], bounds: Mapping[Params, float]
) -> tuple[TrialRecord, ...]:
    """Returns the records, those on the front with their lower bound where it is known."""
    return tuple(
        replace(record, lower_bound_s=bounds.get(record.parameters) if record.on_front else None)
        for record in records
    )
