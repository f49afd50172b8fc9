"""Lower bounds of the configurations on the front.

Bounds of all configurations would take more than a tenth of a study, so only those on the front
get one, once it does not change any more. The recommended one gets the bound of
:func:`dse.shard`, which takes seconds, others a quick one, without branching. It depends on
nothing but the front, so a run that was interrupted and resumed ends with the same ones.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from dse.search._records import Params, TrialRecord


def with_bounds(
    records: Sequence[TrialRecord], bounds: Mapping[Params, float]
) -> tuple[TrialRecord, ...]:
    """Returns the records, those on the front with their lower bound where it is known."""
    return tuple(
        replace(record, lower_bound_s=bounds.get(record.parameters) if record.on_front else None)
        for record in records
    )
