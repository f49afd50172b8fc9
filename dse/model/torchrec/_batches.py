"""Lookups of sample batches: every `KeyedJaggedTensor` in them, feature by feature."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from dse.errors import ConfigError
from dse.indices import LengthSketch, RowSketch
from dse.model.torchrec._nested import is_jagged, parts_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from dse.model.torchrec._tables import LiveTable


@dataclass(frozen=True, slots=True)
class MeasuredLookups:
    """What sample batches show.

    Attributes:
        lengths: Lookups of bags, by feature.
        rows: Popularity of rows, by table.
        samples: Samples of the first batch; 0 without batches.
        dense_features: Width of its dense input; 0 if none was seen.
        first: The first batch; None without batches.
    """

    lengths: Mapping[str, LengthSketch]
    rows: Mapping[str, RowSketch]
    samples: int
    dense_features: int
    first: Any = None


def measure_lookups(tables: Sequence[LiveTable], batches: Iterable[Any]) -> MeasuredLookups:
    """Counts the lookups of all batches.

    Args:
        tables: The tables.
        batches: Batches, or parts of them, with a `KeyedJaggedTensor` somewhere inside.

    Raises:
        ConfigError: A batch has none, or a row number is not one of its table's.
    """
    by_feature = {feature: table for table in tables for feature in table.features}
    lengths = {feature: LengthSketch() for feature in by_feature}
    rows = {table.name: RowSketch(table.rows) for table in tables}
    samples = dense_features = 0
    first = None
    for number, batch in enumerate(batches):
        jagged = list(_jagged(batch))
        if not jagged:
            raise ConfigError(
                f"batch {number}: no KeyedJaggedTensor in a {type(batch).__name__}; give batches "
                "as the module takes them"
            )
        # The last part of a data set may have no sample.
        jagged = [one for one in jagged if one.stride()]
        if jagged and not samples:
            first = batch
            samples = int(jagged[0].stride())
            dense_features = _dense_width(batch, samples)
        for one in jagged:
            for feature, part in one.to_dict().items():
                if feature in by_feature:
                    table = by_feature[feature]
                    lengths[feature].add(_array(part.lengths()))
                    _count(rows[table.name], table, feature, _array(part.values()))
    return MeasuredLookups(lengths, rows, samples, dense_features, first)


def _count(sketch: RowSketch, table: LiveTable, feature: str, values: Any) -> None:
    try:
        sketch.add(values)
    except ValueError as error:
        raise ConfigError(f"feature `{feature}` of table `{table.name}`: {error}") from None


def _jagged(value: Any) -> Iterator[Any]:
    """Yields the keyed jagged tensors in a batch, at any depth."""
    if is_jagged(value):
        yield value
        return
    for part in parts_of(value):
        yield from _jagged(part)


def _dense_width(batch: Any, samples: int) -> int:
    """Width of the first two-dimensional floating-point tensor with a row a sample."""
    for part in parts_of(batch):
        if hasattr(part, "is_floating_point") and part.is_floating_point():
            if part.dim() == 2 and part.shape[0] == samples:
                return int(part.shape[1])
        elif width := _dense_width(part, samples):
            return width
    return 0


def _array(tensor: Any) -> np.ndarray[Any, np.dtype[np.int64]]:
    return np.asarray(tensor.detach().cpu().numpy(), dtype=np.int64)
