"""Best-first search over machines and batches, pruned by bounds.

Of each platform, the option that could be best is looked at first. What it could be follows from
its price alone, then from the bounds on its throughput that studies use, the quick one first, and
in the end from the best plan that is found for it; each is no better than the one before. So when
the first in the queue cannot be better than what was found already, nothing behind it can. It is
branch and bound with the price as the first bound (Land and Doig, 1960), except that plans come
from a heuristic: an option whose plan misses the goal while its bound does not is *undecided*, and
is reported as such.
"""

from __future__ import annotations

from dataclasses import replace
import heapq
import math
from operator import itemgetter
from typing import TYPE_CHECKING

from dse.search.recommend._types import SURE, Judgement, Recommendation, Verdict

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from dse.search.recommend._evaluate import OptionEvaluator
    from dse.search.recommend._goals import Goal, Rank
    from dse.search.recommend._types import Option, Solved, Unpriced

#: Undecided options whose bound is refined, the most promising first.
_MOST_BOUNDED = 4


def judge_options(
    evaluator: OptionEvaluator,
    options: Sequence[Option],
    goal: Goal,
    *,
    confidence: float = 0.5,
    progress: Callable[[int, int], None] | None = None,
) -> list[Judgement]:
    """Judges options such that the best of each platform that reaches a goal is among them.

    Args:
        evaluator: Evaluates options.
        options: The space.
        goal: What is wanted.
        confidence: Least probability to reach the goal, at least one half.
        progress: Called with the number of options that are judged, and of all.

    Returns:
        One judgement an option, in the order of the options.
    """
    judged: dict[Option, Judgement] = {}
    by_platform: dict[str, list[Option]] = {}
    for option in options:
        by_platform.setdefault(option.platform, []).append(option)
    for group in by_platform.values():
        for judgement in _judge(evaluator, group, goal, confidence):
            judged[judgement.option] = judgement
            if progress is not None:
                progress(len(judged), len(options))
    return _bounded(evaluator, [judged[option] for option in options], goal, confidence)


def _judge(
    evaluator: OptionEvaluator,
    options: Iterable[Option],
    goal: Goal,
    confidence: float,
    best: Rank = (math.inf,),
) -> Iterator[Judgement]:
    """Judges options such that the best of all that is better than a known rank is among them."""
    stages = evaluator.bounds
    # Each entry has the number of bounds that are known, and the last of them.
    queue: list[tuple[Rank, int, int, float, Option]] = []
    for order, option in enumerate(options):
        if reason := evaluator.impossible(option):
            yield Judgement(option, Verdict.IMPOSSIBLE, reason=reason)
        elif goal.required_per_s(option.price_usd_per_hour) == math.inf:
            yield Judgement(option, Verdict.BOUNDED)
        else:
            queue.append((option.rank(goal, math.inf), order, 0, math.inf, option))
    heapq.heapify(queue)
    while queue:
        rank, order, known, bound, option = heapq.heappop(queue)
        if rank >= best:
            yield Judgement(option, Verdict.WORSE, bound)
        elif known < len(stages):
            bound = min(bound, evaluator.bound_per_s(option, stages[known]))
            if bound <= 0:
                yield Judgement(option, Verdict.IMPOSSIBLE, reason=evaluator.no_way(option))
                continue
            if bound < goal.required_per_s(option.price_usd_per_hour):
                yield Judgement(option, Verdict.BOUNDED, bound)
                continue
            rank = option.rank(goal, bound)
            heapq.heappush(queue, (rank, order, known + 1, bound, option))
        else:
            judgement = judge(evaluator.solve(option, bound, confidence), goal, confidence)
            if judgement.verdict is Verdict.MEETS and judgement.solved is not None:
                best = min(best, judgement.solved.rank(goal))
            yield judgement


def judge(solved: Solved, goal: Goal, confidence: float) -> Judgement:
    """Judges an option whose plan is known."""
    required = goal.required_per_s(solved.option.price_usd_per_hour)
    reached = solved.throughput_per_s >= required and solved.probability(goal) >= confidence
    # A plan that is as fast as its bound may still not be sure enough.
    better = solved.bound_per_s >= required and solved.bound_per_s > solved.throughput_per_s
    verdict = Verdict.UNDECIDED if better else Verdict.MISSES
    if solved.prediction.feasible and reached:
        verdict = Verdict.MEETS
    return Judgement(solved.option, verdict, solved.bound_per_s, solved)


def _bounded(
    evaluator: OptionEvaluator, judgements: Sequence[Judgement], goal: Goal, confidence: float
) -> list[Judgement]:
    """Refines the bounds of undecided options that might be better than the answer."""
    found = list(judgements)
    best = best_solved(found, goal)
    limit = (math.inf,) if best is None else best.rank(goal)
    undecided = [
        (judgement.option.rank(goal, judgement.bound_per_s), place)
        for place, judgement in enumerate(found)
        if judgement.verdict is Verdict.UNDECIDED
    ]
    for rank, place in sorted(undecided)[:_MOST_BOUNDED]:
        option, solved = found[place].option, found[place].solved
        required = goal.required_per_s(option.price_usd_per_hour)
        if solved is not None and rank < limit and required > 0:
            bound = min(solved.bound_per_s, evaluator.refined_per_s(option, required))
            found[place] = judge(replace(solved, bound_per_s=bound), goal, confidence)
    return found


def best_solved(judgements: Iterable[Judgement], goal: Goal) -> Solved | None:
    """Returns the best that reaches a goal; None where nothing does."""
    reaching = [
        judgement.solved
        for judgement in judgements
        if judgement.verdict is Verdict.MEETS and judgement.solved is not None
    ]
    return min(reaching, key=lambda solved: solved.rank(goal), default=None)


def _better(
    evaluator: OptionEvaluator,
    judgements: Sequence[Judgement],
    goal: Goal,
    confidence: float,
    *,
    own_batch: bool,
) -> Solved | None:
    """Returns the best under a further wish, beginning with what is known already.

    Args:
        evaluator: Evaluates options.
        judgements: Of all options.
        goal: What is wanted.
        confidence: Least probability to reach the goal.
        own_batch: Leave out options that double the model's own batch.
    """
    wanted = [one for one in judgements if not (own_batch and one.option.doublings)]
    known = [
        judge(evaluator.solve(one.option, one.bound_per_s, confidence), goal, confidence)
        for one in wanted
        if one.solved is not None
    ]
    best = best_solved(known, goal)
    left = [one.option for one in wanted if one.verdict is Verdict.WORSE]
    limit = (math.inf,) if best is None else best.rank(goal)
    found = list(_judge(evaluator, left, goal, confidence, limit))
    return best_solved([*known, *found], goal)


def recommendation(
    evaluator: OptionEvaluator,
    judgements: Sequence[Judgement],
    goal: Goal,
    *,
    model: str,
    confidence: float,
    space: tuple[str, ...],
    program: str = "",
    model_batch_size: int = 0,
    unpriced: tuple[Unpriced, ...] = (),
    tokens_per_sample: int = 0,
) -> Recommendation:
    """Puts the answer together: the best, the surest, the runners-up, and what limits them.

    Args:
        evaluator: Evaluates options.
        judgements: Of all options.
        goal: What was wanted.
        model: Name of the model.
        confidence: Least probability to reach the goal.
        space: Description of the space.
        program: Training program of all options; empty where the workload has none.
        model_batch_size: Batch of the model's own recipe; 0 if it has none.
        unpriced: Machines that were left out because they have no price.
        tokens_per_sample: Tokens of a sample where throughput is reported in tokens; else 0.
    """
    platforms = dict.fromkeys(judgement.option.platform for judgement in judgements)
    best = [
        best_solved((one for one in judgements if one.option.platform == platform), goal)
        for platform in platforms
    ]
    reaching = sorted(
        (solved for solved in best if solved is not None), key=lambda solved: solved.rank(goal)
    )
    answer = reaching[0] if reaching else None
    sure = own_batch = None
    if answer is not None and answer.probability(goal) < SURE:
        sure = _better(evaluator, judgements, goal, max(confidence, SURE), own_batch=False)
    if answer is not None and answer.option.doublings:
        own_batch = _better(evaluator, judgements, goal, confidence, own_batch=True)
    closest = None if reaching else _closest(evaluator, judgements, goal, confidence)
    return Recommendation(
        goal=goal,
        model=model,
        answer=answer,
        sure=sure,
        own_batch=own_batch,
        runners_up=tuple(reaching[1:]),
        judgements=tuple(judgements),
        closest=closest,
        limit="" if closest is None else evaluator.limit(closest),
        advice="" if closest is None else _advice(closest, judgements, goal, confidence),
        confidence=confidence,
        space=space,
        program=program,
        model_batch_size=model_batch_size,
        unpriced=unpriced,
        tokens_per_sample=tokens_per_sample,
    )


def _advice(
    closest: Solved, judgements: Sequence[Judgement], goal: Goal, confidence: float
) -> str:
    """Returns what would help where nothing reaches a goal: what lies beyond what was tried."""
    option = closest.option
    if closest.throughput_per_s >= goal.required_per_s(option.price_usd_per_hour):
        probability = closest.probability(goal)
        return (
            f"it reaches the goal with a probability of {100 * probability:.0f} %, less than the "
            f"{100 * confidence:g} % that was asked for"
        )
    most_ranks = max(one.option.world_size for one in judgements)
    most_samples = max(one.option.global_batch_size for one in judgements)
    beyond = []
    if option.world_size == most_ranks:
        beyond.append(f"more than {most_ranks} ranks (world sizes)")
    if option.global_batch_size == most_samples:
        beyond.append(f"a larger batch than {most_samples:,} (batch sizes)")
    return f"what may help was not tried: {' and '.join(beyond)}" if beyond else ""


def _closest(
    evaluator: OptionEvaluator, judgements: Iterable[Judgement], goal: Goal, confidence: float
) -> Solved | None:
    """Returns what comes closest to a goal: the largest share of the throughput it requires.

    Options with the highest bounds are tried first, until no bound exceeds what was found.
    """
    stages = evaluator.bounds
    best: tuple[float, Solved | None] = (0.0, None)
    # As in `_judge`: a share with its sign changed, then as many bounds as are known.
    queue: list[tuple[float, int, int, float, Option]] = []
    for order, judgement in enumerate(judgements):
        option, solved, bound = judgement.option, judgement.solved, judgement.bound_per_s
        required = goal.required_per_s(option.price_usd_per_hour)
        if required == math.inf or judgement.verdict is Verdict.IMPOSSIBLE:
            continue
        if solved is None:
            queue.append((-_share(bound, required), order, 0, bound, option))
        elif solved.prediction.feasible:
            share = _share(solved.throughput_per_s, required)
            best = max(best, (share, solved), key=itemgetter(0))
    heapq.heapify(queue)
    while queue and -queue[0][0] > best[0]:
        _, order, known, bound, option = heapq.heappop(queue)
        required = goal.required_per_s(option.price_usd_per_hour)
        if known < len(stages):
            bound = min(bound, evaluator.bound_per_s(option, stages[known]))
            heapq.heappush(queue, (-_share(bound, required), order, known + 1, bound, option))
            continue
        solved = evaluator.solve(option, bound, confidence)
        if solved.prediction.feasible:
            share = _share(solved.throughput_per_s, required)
            best = max(best, (share, solved), key=itemgetter(0))
    return best[1]


def largest_share(judgements: Iterable[Judgement], goal: Goal) -> float:
    """Returns the largest share of the throughput that a goal requires, where machines raise it.

    Args:
        judgements: Of options none of which reaches the goal.
        goal: What is wanted.

    Returns:
        At most what bounds leave possible; infinite where the model does not fit anywhere, 0 where
        twice the machines would have to be twice as fast because they cost twice as much.
    """
    shares = []
    fits = True
    for judgement in judgements:
        price = judgement.option.price_usd_per_hour
        required = goal.required_per_s(price)
        if required == math.inf:
            continue
        if judgement.verdict is Verdict.IMPOSSIBLE:
            fits = False
        elif goal.required_per_s(2 * price) < 2 * required:
            solved = judgement.solved
            reached = judgement.bound_per_s if solved is None else solved.throughput_per_s
            shares.append(_share(reached, required))
        else:
            shares.append(0.0)
    return max(shares, default=0.0 if fits else math.inf)


def _share(throughput_per_s: float, required_per_s: float) -> float:
    """Returns a share of what is required; anything is enough where nothing is."""
    return throughput_per_s / required_per_s if required_per_s > 0 else math.inf
