"""Records of trials as JSON, in journals and in databases."""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Any

from dse.search._records import Params, TrialRecord

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pydantic import TypeAdapter


def optuna_values(record: TrialRecord, objective_count: int) -> list[float] | None:
    """Returns the objective values of a trial that Optuna takes for complete; None of others."""
    complete = record.evaluated and len(record.values) == objective_count
    if not complete or any(value != value for value in record.values):
        return None
    return list(record.values)


def record_to_json(record: TrialRecord) -> dict[str, Any]:
    """Returns a record as a JSON value."""
    stored: dict[str, Any] = _record_adapter().dump_python(record, mode="json")
    return stored


def record_from_json(stored: object) -> TrialRecord:
    """Returns the record of a JSON value.

    Raises:
        ValueError: It does not have the form that this version writes.
    """
    return _record_adapter().validate_python(stored)


def bounds_to_json(bounds: Mapping[Params, float]) -> list[list[object]]:
    """Returns lower bounds in seconds, by the parameters of their configuration, as JSON."""
    return [[[list(pair) for pair in choice], bound_s] for choice, bound_s in bounds.items()]


def bounds_from_json(stored: object) -> dict[Params, float]:
    """Returns the lower bounds of a JSON value.

    Raises:
        ValueError: It does not have the form that this version writes.
    """
    return dict(_bounds_adapter().validate_python(stored))


@cache
def _record_adapter() -> TypeAdapter[TrialRecord]:
    from pydantic import TypeAdapter

    return TypeAdapter(TrialRecord)


@cache
def _bounds_adapter() -> TypeAdapter[list[tuple[Params, float]]]:
    from pydantic import TypeAdapter

    return TypeAdapter(list[tuple[Params, float]])
