"""Best-first search over machines and batches, pruned by bounds.

Of each platform, the option that could be best is looked at first. What it could be follows from
its price alone at first, then from the bound on its throughput, and in the end from the best plan
that is found for it; each is no better than the one before. So when the first in the queue cannot
be better than what was found already, nothing behind it can. It is branch and bound with the price
as the first bound (Land and Doig, 1960), except that plans come from a heuristic: an option whose
plan misses the goal while its bound does not is *undecided*, and is told.
"""

from __future__ import annotations

from dataclasses import replace
import heapq
import math
from typing import TYPE_CHECKING

from dse.search.recommend._types import Judgement, Recommendation, Verdict

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from dse.search.recommend._bench import Bench
    from dse.search.recommend._goals import Goal, Rank
    from dse.search.recommend._types import Option, Solved

#: Gap between the throughput of a plan and its bound from which a thorough search is worth it.
_WORTH_SEARCHING = 0.05

#: Undecided options whose bound is looked at more closely, the most promising first.
_MOST_BOUNDED = 4


def best_options(
    bench: Bench,
    options: Sequence[Option],
    goal: Goal,
    *,
    confidence: float = 0.5,
    progress: Callable[[int, int], None] | None = None,
) -> list[Judgement]:
    """Judges options such that the best of each platform that reaches a goal is among them.

    Args:
        bench: Answers for options.
        options: The space.
        goal: What is wanted.
        confidence: Least probability to reach the goal, at least one half.
        progress: Told how many options are judged.

    Returns:
        One judgement an option, in the order of the options.
    """
    judged: dict[Option, Judgement] = {}
    by_platform: dict[str, list[Option]] = {}
    for option in options:
        by_platform.setdefault(option.platform, []).append(option)

    def note(judgement: Judgement) -> None:
        judged[judgement.option] = judgement
        if progress is not None:
            progress(len(judged), len(options))

    for group in by_platform.values():
        _search_platform(bench, group, goal, confidence, note)
    return [judged[option] for option in options]


def _search_platform(
    bench: Bench,
    options: Iterable[Option],
    goal: Goal,
    confidence: float,
    note: Callable[[Judgement], None],
) -> None:
    queue: list[tuple[Rank, int, float, Option]] = []
    for order, option in enumerate(options):
        reason = bench.impossible(option)
        if reason:
            note(Judgement(option, Verdict.IMPOSSIBLE, reason=reason))
        elif goal.required_per_s(option.price_usd_per_hour) == math.inf:
            note(Judgement(option, Verdict.BOUNDED))
        else:
            rank = goal.rank(math.inf, option.price_usd_per_hour)
            queue.append((rank, order, math.inf, option))
    heapq.heapify(queue)
    best: Rank = (math.inf, math.inf)
    while queue:
        rank, order, bound, option = heapq.heappop(queue)
        if rank >= best:
            note(Judgement(option, Verdict.WORSE, bound))
            continue
        if bound == math.inf:
            bound = bench.bound_per_s(option)
            if bound < goal.required_per_s(option.price_usd_per_hour):
                note(Judgement(option, Verdict.BOUNDED, bound))
                continue
            rank = goal.rank(bound, option.price_usd_per_hour)
            heapq.heappush(queue, (rank, order, bound, option))
            continue
        judgement = _solved(bench, option, bound, goal, confidence)
        note(judgement)
        if judgement.verdict is Verdict.MEETS and judgement.solved is not None:
            best = min(best, judgement.solved.rank(goal))


def _solved(
    bench: Bench, option: Option, bound: float, goal: Goal, confidence: float
) -> Judgement:
    """Judges an option by a quick plan, and by a thorough one where that may change something."""
    judgement = judge(bench.solve(option, bound), goal, confidence)
    if judgement.verdict is Verdict.MEETS and not goal.wants_more:
        return judgement
    return _thorough(bench, judgement, goal, confidence)


def judge(solved: Solved, goal: Goal, confidence: float) -> Judgement:
    """Says what became of an option whose plan is known."""
    option = solved.option
    required = goal.required_per_s(option.price_usd_per_hour)
    fits = solved.prediction.feasible
    reached = solved.throughput_per_s >= required and solved.probability(goal) >= confidence
    if fits and reached:
        return Judgement(option, Verdict.MEETS, solved.bound_per_s, solved)
    if solved.bound_per_s < required:
        return Judgement(option, Verdict.MISSES, solved.bound_per_s, solved)
    return Judgement(option, Verdict.UNDECIDED, solved.bound_per_s, solved)


def deepened(
    bench: Bench, judgements: Sequence[Judgement], goal: Goal, confidence: float
) -> list[Judgement]:
    """Searches thoroughly for the answer, and bounds more closely what might be better than it."""
    found = list(judgements)
    best = best_of(found, goal)
    for place, one in enumerate(found):
        if best is not None and one.solved is best:
            found[place] = _thorough(bench, one, goal, confidence)
    best = best_of(found, goal)
    limit = best.rank(goal) if best is not None else (math.inf, math.inf)
    open_ranks = [
        (goal.rank(one.bound_per_s, one.option.price_usd_per_hour), place)
        for place, one in enumerate(found)
        if one.verdict is Verdict.UNDECIDED
    ]
    for rank, place in sorted(open_ranks)[:_MOST_BOUNDED]:
        if rank < limit:
            found[place] = _closer(bench, found[place], goal, confidence)
    return found


def _closer(bench: Bench, judgement: Judgement, goal: Goal, confidence: float) -> Judgement:
    """Returns a judgement with a closer bound, where its plan misses the goal."""
    option, solved = judgement.option, judgement.solved
    assert solved is not None
    required = goal.required_per_s(option.price_usd_per_hour)
    if required <= 0:
        return judgement
    bound = min(judgement.bound_per_s, bench.tight_bound_per_s(option, required))
    return judge(replace(solved, bound_per_s=bound), goal, confidence)


def _thorough(bench: Bench, judgement: Judgement, goal: Goal, confidence: float) -> Judgement:
    """Returns the better of a judgement and that of a thorough search, where it has room."""
    quick = judgement.solved
    assert quick is not None
    fits = quick.prediction.feasible
    room = quick.bound_per_s > (1 + _WORTH_SEARCHING) * quick.throughput_per_s
    if quick.thorough or (fits and not room):
        return judgement
    solved = bench.solve(judgement.option, judgement.bound_per_s, thorough=True)
    faster = solved.throughput_per_s > quick.throughput_per_s
    if not solved.prediction.feasible or (fits and not faster):
        return replace(judgement, solved=replace(quick, thorough=True))
    return judge(solved, goal, confidence)


def best_of(judgements: Iterable[Judgement], goal: Goal) -> Solved | None:
    """Returns the best that reaches a goal; None where nothing does."""
    reaching = [
        one.solved for one in judgements if one.verdict is Verdict.MEETS and one.solved is not None
    ]
    return min(reaching, key=lambda solved: solved.rank(goal), default=None)


def recommendation(
    bench: Bench,
    judgements: Sequence[Judgement],
    goal: Goal,
    *,
    model: str,
    confidence: float,
    space: tuple[str, ...],
) -> Recommendation:
    """Puts the answer together: the best, the runners-up, and what limits where nothing reaches.

    Args:
        bench: Answers for options.
        judgements: Of all options.
        goal: What was wanted.
        model: Name of the model.
        confidence: Least probability to reach the goal.
        space: The space in words.
    """
    answer = best_of(judgements, goal)
    platforms = dict.fromkeys(one.option.platform for one in judgements)
    others = [
        best_of((one for one in judgements if one.option.platform == platform), goal)
        for platform in platforms
        if answer is None or platform != answer.option.platform
    ]
    closest = None if answer is not None else _closest(bench, judgements, goal)
    return Recommendation(
        goal=goal,
        model=model,
        answer=answer,
        runners_up=tuple(
            sorted(
                (solved for solved in others if solved is not None),
                key=lambda solved: solved.rank(goal),
            )
        ),
        judgements=tuple(judgements),
        closest=closest,
        limit="" if closest is None else bench.limit(closest),
        confidence=confidence,
        space=space,
    )


def _closest(bench: Bench, judgements: Iterable[Judgement], goal: Goal) -> Solved | None:
    """Returns what comes closest to a goal: the largest share of the throughput it asks for.

    Options with the highest bounds are tried first, until no bound exceeds what was found.
    """
    queue = []
    best: tuple[float, Solved] | None = None
    for one in judgements:
        required = goal.required_per_s(one.option.price_usd_per_hour)
        if required == math.inf:
            continue
        if one.solved is not None and one.solved.prediction.feasible:
            share = _share(one.solved.throughput_per_s, required)
            if best is None or share > best[0]:
                best = share, one.solved
        elif one.solved is None and one.verdict is not Verdict.IMPOSSIBLE:
            bound = one.bound_per_s
            if bound == math.inf:
                bound = bench.bound_per_s(one.option)
            queue.append((_share(bound, required), bound, one.option))
    for share, bound, option in sorted(queue, key=lambda entry: -entry[0]):
        if best is not None and share <= best[0]:
            break
        solved = bench.solve(option, bound, thorough=True)
        reached = _share(solved.throughput_per_s, goal.required_per_s(option.price_usd_per_hour))
        if solved.prediction.feasible and (best is None or reached > best[0]):
            best = reached, solved
    return None if best is None else best[1]


def _share(throughput_per_s: float, required_per_s: float) -> float:
    """Share of what is required; where nothing would do, anything is as far."""
    return throughput_per_s / required_per_s if required_per_s > 0 else math.inf
