"""Recommendations by name."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar

from dse.api._inputs import one_of, overrides_with
from dse.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from dse.api._inputs import AnyHostProfile, AnyWorkload
    from dse.search.recommend import Recommendation
    from dse.workload import ParameterValue

Value = TypeVar("Value")
OneOrSeveral: TypeAlias = Value | Iterable[Value]


def recommend(
    workload: AnyWorkload,
    *,
    target: str = "",
    deadline: str = "",
    budget: str = "",
    samples: str = "",
    platforms: OneOrSeveral[str | Mapping[str, object]] = (),
    world_sizes: OneOrSeveral[int] = (),
    batch_sizes: OneOrSeveral[int] = (),
    precisions: OneOrSeveral[str] = (),
    types: OneOrSeveral[str] = (),
    program: str = "",
    link: str = "",
    network: str = "",
    price_basis: str = "on_demand",
    price_provider: str = "",
    confidence: float | str = 0.5,
    seed: int = 0,
    overrides: Sequence[str] = (),
    host_profile: AnyHostProfile | None = None,
    progress: Callable[[int, int], None] | None = None,
    **parameters: ParameterValue,
) -> Recommendation:
    """Finds the cheapest machines for a goal, or the fastest within a budget.

    Takes what `dse recommend` takes.

    Args:
        workload: Built-in name, path, model or workload.
        target: Throughput, such as ``10M samples/s``, or of a transformer ``1M tokens/s`` or
            ``10B tokens/day``.
        deadline: Time for `samples`, such as ``3h``.
        budget: Money for `samples`, such as ``500USD``, or for an hour, ``100USD/h``.
        samples: Samples of the whole job, such as ``4.2G``, or tokens, ``15T tokens``.
        platforms: Names, files, or mappings that derive one from another, such as
            ``{"from": "h100_sxm", "price": "2.10 USD/GPU/h"}``; every platform with a price by
            default.
        world_sizes: Numbers of ranks; by default powers of two inside a node, then 1, 2, 3, 4, 6,
            8, 12 … nodes: up to 64 ranks, and where these do not reach the goal and more might,
            up to 256 and 1,024.
        batch_sizes: Global batches; by default the model's own and its doubles up to eight times
            that, of which a larger one is taken where each doubling brings 5 %.
        precisions: Arithmetic, such as ``bf16`` and ``fp8``; the model's own by default.
        types: Sharding types that plans may use; all by default.
        program: Name of the training program; that of the kind of workload if it is left out.
        link: Interconnect inside nodes; that of each platform if it is left out.
        network: Network between nodes; each that can be rented from the provider if it is left
            out.
        price_basis: Which list prices count, such as ``spot``.
        price_provider: Only this provider's prices.
        confidence: Least probability to reach the goal, such as ``0.95`` or ``95 %``.
        seed: Seed of planners that use randomness.
        overrides: What `--set` takes: changes of the platforms' figures, as ``PATH=VALUE``.
        host_profile: Host overheads measured from traces, or the path of a file of them, in place
            of those of all platforms.
        progress: Called with the number of configurations that are judged, and of all.
        parameters: Further parameters that every configuration has, by the names of search spaces:
            ``compute_kernels="fused+fused_uvm"`` for a recommendation model, ``tensor=8`` for a
            transformer.

    Raises:
        UnknownNameError: There is no such precision, program or platform.
        ConfigError: A value is wrong, or no platform has a price.
    """
    from dse.config import UnitKind, parse_quantity
    from dse.machine import Precision
    from dse.search.recommend import RecommendOptions, parse_goal
    from dse.search.recommend import recommend as search
    from dse.workload import load_workload

    texts = {"target": target, "deadline": deadline, "budget": budget, "samples": samples}
    for name, text in texts.items():
        if not isinstance(text, str):
            raise ConfigError(f"{name} {text}: expected a text, such as `10M samples/s` or `4.2G`")
    try:
        if isinstance(confidence, str):
            confidence = parse_quantity(confidence, UnitKind.FRACTION)
    except ValueError as error:
        raise ConfigError(f"confidence: {error}") from error
    trained = load_workload(workload)
    goal = parse_goal(
        target=target,
        deadline=deadline,
        budget=budget,
        samples=samples,
        tokens_per_sample=trained.tokens_per_sample,
    )
    options = RecommendOptions(
        platforms=_several(platforms),
        world_sizes=_several(world_sizes),
        batch_sizes=_several(batch_sizes),
        precisions=tuple(one_of(Precision, "precisions", name) for name in _several(precisions)),
        types=frozenset(_several(types)),
        program=program,
        link=link,
        network=network,
        parameters=tuple(parameters.items()),
        price_basis=price_basis,
        price_provider=price_provider,
        confidence=confidence,
        seed=seed,
        overrides=overrides_with(overrides, host_profile),
    )
    return search(trained, goal, options, progress=progress)


def _several(given: Any) -> tuple[Any, ...]:
    """Returns what was given as several values; one stands for itself."""
    return (given,) if isinstance(given, str | int | Mapping) else tuple(given)
