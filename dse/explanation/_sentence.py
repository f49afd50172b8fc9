"""One-sentence summary of an explanation."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from dse.explanation._types import PathShare

#: Groups that are named.
_MOST = 2
#: Share of a group's time from which a resource or a rank is named for it.
_NAMED = 1 / 3
#: Ranks that are named one by one.
_MOST_RANKS = 3


def sentence(shares: Sequence[PathShare], collectives: Collection[str]) -> str:
    """Returns a sentence that names what an iteration is bound by.

    Args:
        shares: The critical path.
        collectives: Groups that are collectives, which belong to no single rank.
    """
    by_group: dict[str, list[PathShare]] = {}
    for share in shares:
        by_group.setdefault(share.group, []).append(share)
    ordered = sorted(by_group.items(), key=lambda item: -sum(share.share for share in item[1]))
    phrases = [
        _phrase(group, parts, with_rank=group not in collectives)
        for group, parts in ordered[:_MOST]
    ]
    if not phrases:
        return "nothing takes any time"
    phrases[0] += " of the iteration"
    return "bound by " + "; then ".join(phrases)


def _phrase(group: str, parts: Sequence[PathShare], *, with_rank: bool) -> str:
    share = sum(part.share for part in parts)
    resources: dict[str, float] = {}
    ranks: dict[int, float] = {}
    for part in parts:
        resources[part.resource_name] = resources.get(part.resource_name, 0.0) + part.share
        ranks[part.rank] = ranks.get(part.rank, 0.0) + part.share
    ordered = sorted(resources, key=lambda name: -resources[name])
    named = [name for name in ordered if resources[name] >= _NAMED * share] or ordered[:1]
    where = f" {_rank_phrase(ranks, share)}" if with_rank else ""
    return f"{group}{where} ({' and '.join(named)}), {100 * share:.0f} %"


def _rank_phrase(ranks: dict[int, float], share: float) -> str:
    most = sorted(rank for rank in ranks if ranks[rank] >= _NAMED * share)
    if sum(ranks[rank] for rank in most) < 2 * _NAMED * share or len(most) > _MOST_RANKS:
        return f"on {len(ranks)} ranks in turn"
    if len(most) == 1:
        return f"on rank {most[0]}"
    return f"on ranks {', '.join(map(str, most[:-1]))} and {most[-1]}"
