"""Recommendations by name."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from dse.api._inputs import AnyWorkload
    from dse.search.recommend import Recommendation


def recommend(
    workload: AnyWorkload,
    *,
    target: str = "",
    deadline: str = "",
    budget: str = "",
    samples: str = "",
    program: str = "",
    link: str = "",
    network: str = "",
    platforms: Sequence[str | Mapping[str, object]] = (),
    world_sizes: Sequence[int] = (),
    batch_sizes: Sequence[int] = (),
    price_provider: str = "",
    confidence: float = 0.5,
    progress: Callable[[int, int], None] | None = None,
) -> Recommendation:
    """Finds the cheapest machines for a goal, or the fastest within a budget.

    Args:
        workload: Built-in name, path, model or workload.
        target: Throughput, such as ``10M samples/s``.
        deadline: Time for `samples`, such as ``3h``.
        budget: Money for `samples`, such as ``500USD``, or for an hour, ``100USD/h``.
        samples: Samples of the whole job, such as ``4.2G``.
        program: Name of the training program; that of the kind of workload if it is left out.
        link: Interconnect inside nodes; that of each platform if it is left out.
        network: Network between nodes; each that can be rented from the provider if it is left
            out.
        platforms: Names, files, or mappings that derive one from another, such as
            ``{"from": "h100_sxm", "price": "2.10 USD/GPU/h"}``; every platform with a price by
            default.
        world_sizes: Numbers of ranks; powers of two by default.
        batch_sizes: Global batches; by default the model's own and its doubles up to eight times
            that, of which a larger one is taken where each doubling brings 5 %.
        price_provider: Only this provider's prices.
        confidence: Least probability to reach the goal.
        progress: Called with the number of configurations that are judged, and of all.

    Raises:
        ConfigError: A value is wrong, or no platform has a price.
    """
    from dse.search.recommend import RecommendOptions, parse_goal
    from dse.search.recommend import recommend as search

    goal = parse_goal(target=target, deadline=deadline, budget=budget, samples=samples)
    options = RecommendOptions(
        platforms=tuple(platforms),
        world_sizes=tuple(world_sizes),
        batch_sizes=tuple(batch_sizes),
        program=program,
        link=link,
        network=network,
        price_provider=price_provider,
        confidence=confidence,
    )
    return search(workload, goal, options, progress=progress)
