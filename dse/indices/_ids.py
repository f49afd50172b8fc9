"""Row numbers: how they follow from popularity.

Which row number a popular row has makes no difference to a whole table, but to blocks of its rows
(:mod:`dse.indices._blocks`) and to drawn row numbers.
"""

from __future__ import annotations

from enum import StrEnum
import hashlib
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

#: Rounds of the hash that scatters row numbers.
_HASH_ROUNDS = 3


class IdOrder(StrEnum):
    """How row numbers follow from popularity.

    HASHED: a row's number says nothing about its popularity, as after hashing ids.
    BY_POPULARITY: the most popular row is the first, as in vocabularies that are sorted by
    frequency or numbered in order of appearance.
    """

    HASHED = "hashed"
    BY_POPULARITY = "by_popularity"


def hashed_rows(ranks: NDArray[np.int64], rows: int, table: str) -> NDArray[np.int64]:
    """Returns the row numbers that a hash gives to rows of some popularity.

    The hash is a permutation that depends on the table's name: multiplications by odd numbers and
    exclusive-ors with the upper half of the bits, repeated until the number is below `rows`.

    Args:
        ranks: Popularity ranks from 0, the most popular one, to `rows - 1`; any shape.
        rows: Rows of the table.
        table: Name of the table.

    Returns:
        Different numbers for different ranks; shape of `ranks`.
    """
    bits = max(2, (rows - 1).bit_length())
    mask, half = np.uint64(2**bits - 1), np.uint64((bits + 1) // 2)
    digest = hashlib.sha256(table.encode()).digest()
    keys = np.frombuffer(digest, dtype="<u8")
    numbers = ranks.astype(np.uint64)
    outside = np.ones(ranks.shape, dtype=bool)
    while outside.any():
        mixed = numbers[outside]
        for turn in range(_HASH_ROUNDS):
            mixed = ((mixed ^ keys[turn]) * (keys[turn + 1] | np.uint64(1))) & mask
            mixed ^= mixed >> half
        numbers[outside] = mixed
        outside = numbers >= np.uint64(rows)
    return numbers.astype(np.int64)
