"""Alignment of two sequences, one of which may be a part of the other."""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from difflib import SequenceMatcher
from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Sequence

    from dse.trace.read._rank_trace import Longs

#: How much further than its length a loose end may extend.
_SLACK = 64
#: Larger gaps are only matched at their ends.
_MAX_GAP = 4000
_TRIED_OFFSETS = 50


def align(
    left: Sequence[int],
    right: Sequence[int],
    anchors: tuple[Sequence[int], Sequence[int]] | None = None,
) -> Longs:
    """Returns for each entry of `left` its counterpart in `right`, or -1.

    Entries that occur once on both sides anchor the alignment; without any, the offset with the
    most equal entries does. Between anchors equal runs are followed from both ends.

    Args:
        left: Tokens; usually the shorter sequence.
        right: Tokens.
        anchors: Finer tokens of both sides in which anchors are searched.
    """
    result = np.full(len(left), -1, dtype=np.int64)
    finer = anchors or (left, right)
    anchors_found = _anchors(*finer) or _by_offset(left, right)
    return _between(left, right, anchors_found, result) if anchors_found else result


def _between(
    left: Sequence[int], right: Sequence[int], anchors: list[tuple[int, int]], result: Longs
) -> Longs:
    head, tail = anchors[0], anchors[-1]
    borders = [
        (-1, max(head[1] - head[0] - _SLACK, 0) - 1),
        *anchors,
        (len(left), min(tail[1] + len(left) - tail[0] + _SLACK, len(right))),
    ]
    for (from_left, from_right), (to_left, to_right) in pairwise(borders):
        if 0 <= from_left < len(left):
            result[from_left] = from_right
        _fill(left, right, (from_left + 1, to_left), (from_right + 1, to_right), result)
    return result


def _anchors(left: Sequence[int], right: Sequence[int]) -> list[tuple[int, int]]:
    counts = Counter(left), Counter(right)
    place = {token: at for at, token in enumerate(right) if counts[1][token] == 1}
    pairs = [
        (at, place[token])
        for at, token in enumerate(left)
        if counts[0][token] == 1 and token in place
    ]
    return _increasing(pairs)


def _increasing(pairs: list[tuple[int, int]]) -> list[tuple[int, int]]:
    """Returns the longest subsequence whose second members increase."""
    tops: list[int] = []
    last: list[int] = []
    before: list[int] = []
    for at, (_, value) in enumerate(pairs):
        pile = bisect_left(tops, value)
        before.append(last[pile - 1] if pile else -1)
        if pile == len(tops):
            tops.append(value)
            last.append(at)
        else:
            tops[pile] = value
            last[pile] = at
    chain = []
    at = last[-1] if last else -1
    while at >= 0:
        chain.append(pairs[at])
        at = before[at]
    return chain[::-1]


def _by_offset(left: Sequence[int], right: Sequence[int]) -> list[tuple[int, int]]:
    """Returns the equal entries under the offset with the most of them; the earliest of ties."""
    ours, theirs = np.asarray(left), np.asarray(right)
    counts = Counter(right)
    rare = sorted((counts[token], token) for token in set(left) if token in counts)
    votes: Counter[int] = Counter()
    for _, token in rare[:8]:
        offsets = np.flatnonzero(theirs == token) - np.flatnonzero(ours == token)[:1]
        votes.update(offsets.tolist())
    best: list[tuple[int, int]] = []
    for offset, _ in sorted(votes.items(), key=lambda item: (-item[1], item[0]))[:_TRIED_OFFSETS]:
        low, high = max(0, -offset), min(len(ours), len(theirs) - offset)
        same = np.flatnonzero(ours[low:high] == theirs[low + offset : high + offset]) + low
        if len(same) > len(best):
            best = [(at, at + offset) for at in same.tolist()]
    return best


def _fill(
    left: Sequence[int],
    right: Sequence[int],
    ours: tuple[int, int],
    theirs: tuple[int, int],
    result: Longs,
) -> None:
    (low, high), (first, last) = ours, theirs
    while low < high and first < last and left[low] == right[first]:
        result[low] = first
        low, first = low + 1, first + 1
    while low < high and first < last and left[high - 1] == right[last - 1]:
        high, last = high - 1, last - 1
        result[high] = last
    if low >= high or first >= last or max(high - low, last - first) > _MAX_GAP:
        return
    matcher = SequenceMatcher(None, left[low:high], right[first:last], autojunk=False)
    for block in matcher.get_matching_blocks():
        places = np.arange(block.size)
        result[low + block.a + places] = first + block.b + places
