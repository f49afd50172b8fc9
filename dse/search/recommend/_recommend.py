"""Recommendation of machines, a batch and a plan for a goal."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import product
import math
from typing import TYPE_CHECKING

from dse._text.suggest import hint
from dse.errors import ConfigError
from dse.machine.platforms import list_platforms, load_platform, override_platforms
from dse.search.evaluate._configurations import WorkloadContext
from dse.search.recommend._evaluate import OptionEvaluator
from dse.search.recommend._search import judge_options, largest_share, recommendation
from dse.search.recommend._types import Option, Unpriced, Verdict
from dse.search.space import ModelReference, SearchSpace
from dse.search.space._common_schema import SearchBlock
from dse.workload import load_workload
from dse.workload.dlrm import TYPE_SEPARATOR

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
    from os import PathLike

    from dse.machine import Precision
    from dse.machine.platforms import Override, Platform
    from dse.model import DlrmModel, TransformerModel
    from dse.search.recommend._goals import Goal
    from dse.search.recommend._types import Judgement, Recommendation
    from dse.workload import ParameterValue, Workload

    AnyModel = str | PathLike[str] | DlrmModel | TransformerModel | Workload

#: Largest world sizes that are tried unless others are named: each where nothing up to the one
#: before it reaches the goal.
MAX_WORLD_SIZES = (64, 256, 1024)

#: Networks that the description of the space names; more are counted.
MAX_NAMED = 4

#: How often the model's own batch is doubled unless batch sizes are named.
MAX_DOUBLINGS = 3

#: Share of a batch that may be added to it so that it divides over the ranks.
_MOST_ADDED = 1 / 8


@dataclass(frozen=True, slots=True)
class RecommendOptions:
    """The space that is searched; empty means the default.

    Attributes:
        platforms: Names, files, or mappings that derive one from another; by default every
            built-in platform. Those without a price are left out, with the reason.
        world_sizes: Numbers of ranks; by default powers of two inside a node, then 1, 2, 3, 4, 6,
            8, 12 … nodes: up to 64 ranks, and where these do not reach the goal and more might,
            up to 256 and 1,024.
        batch_sizes: Global batches; by default the model's own, twice, four and eight times that,
            of which a larger one is taken only where each doubling brings 5 %, because a larger
            batch trains differently.
        precisions: Arithmetic; by default the model's own.
        types: Names of sharding types that plans may use; all by default.
        program: Name of the training program; that of the kind of workload by default.
        link: Interconnect inside nodes, where there are several ranks; that of the platform by
            default.
        network: Network between nodes, where there are several; by default each that instances
            of the provider and basis have.
        parameters: Name and value of further parameters that every configuration has, as in search
            spaces.
        price_basis: Which list prices count.
        price_provider: Only this one's; empty for the cheapest of all.
        confidence: Least probability to reach the goal; one half asks for the expected value.
        seed: Seed of planners that use randomness.
        overrides: `PATH=VALUE` texts that change figures of platforms, see
            :mod:`dse.machine.platforms`.
    """

    platforms: tuple[str | Mapping[str, object], ...] = ()
    world_sizes: tuple[int, ...] = ()
    batch_sizes: tuple[int, ...] = ()
    precisions: tuple[Precision, ...] = ()
    types: frozenset[str] = frozenset()
    program: str = ""
    link: str = ""
    network: str = ""
    parameters: tuple[tuple[str, ParameterValue], ...] = ()
    price_basis: str = "on_demand"
    price_provider: str = ""
    confidence: float = 0.5
    seed: int = 0
    overrides: tuple[str | Override, ...] = ()


def recommend(
    model: AnyModel,
    goal: Goal,
    options: RecommendOptions | None = None,
    *,
    progress: Callable[[int, int], None] | None = None,
) -> Recommendation:
    """Finds the best machines and batch for a goal, with a plan.

    Args:
        model: A workload or model, or its name or file.
        goal: What is wanted.
        options: The space that is searched.
        progress: Called with the number of configurations that are judged, and of all.

    Returns:
        The answer with its plan, the best of every other platform, and the outcome of every
        configuration of the space.

    Raises:
        ConfigError: A name or number is wrong, or no platform has a price.
    """
    chosen = options or RecommendOptions()
    if not 0.5 <= chosen.confidence < 1:
        raise ConfigError(
            f"confidence {chosen.confidence:g}; expected at least 50 % and less than 100 %"
        )
    workload = load_workload(model)
    platforms = _platforms(chosen)
    evaluator = option_evaluator(workload, platforms, chosen)
    judged: dict[Option, Judgement] = {}
    shares: list[float] = []
    for most in MAX_WORLD_SIZES:
        space, unpriced = _options(workload, platforms, chosen, most)
        if not space:
            raise ConfigError(_nothing_priced(platforms, unpriced, chosen))
        left = [option for option in space if option not in judged]
        found = judge_options(
            evaluator,
            left,
            goal,
            confidence=chosen.confidence,
            progress=_after(len(judged), progress),
        )
        judged |= {one.option: one for one in found}
        shares.append(largest_share(found, goal))
        reached = any(one.verdict is Verdict.MEETS for one in found)
        if reached or chosen.world_sizes or not _more_may_reach(shares):
            break
    return recommendation(
        evaluator,
        [judged[option] for option in space],
        goal,
        model=workload.name,
        confidence=chosen.confidence,
        space=_space_texts(space, chosen),
        program=workload.program_name({"program": chosen.program}),
        model_batch_size=_model_batch_size(workload),
        unpriced=unpriced,
        tokens_per_sample=0 if goal.counts_samples else workload.tokens_per_sample,
    )


def _after(
    judged: int, progress: Callable[[int, int], None] | None
) -> Callable[[int, int], None] | None:
    """Returns a callback that counts on from what was judged before."""
    if progress is None:
        return None
    return lambda done, total: progress(judged + done, judged + total)


def _more_may_reach(shares: Sequence[float]) -> bool:
    """Returns whether larger world sizes may reach a goal that those so far do not.

    Throughput grows no faster than the ranks, and no faster than in the step before.

    Args:
        shares: Largest share of the required throughput with each of `MAX_WORLD_SIZES` so far, as
            :func:`largest_share` returns it.
    """
    steps = len(MAX_WORLD_SIZES) - len(shares)
    growth = MAX_WORLD_SIZES[1] / MAX_WORLD_SIZES[0]
    if len(shares) > 1 and 0 < shares[-2] < math.inf:
        growth = min(growth, max(1.0, shares[-1] / shares[-2]))
    return steps > 0 and shares[-1] * growth**steps >= 1


def option_evaluator(
    workload: Workload, platforms: Mapping[str, Platform], options: RecommendOptions
) -> OptionEvaluator:
    """Returns what evaluates the options of a workload with the evaluator of studies.

    Args:
        workload: What is trained.
        platforms: Every platform that options name, by that name.
        options: Prices, interconnects, sharding types, training program and seed.

    Raises:
        ConfigError: The workload has no such program, or no platform has a link or network of the
            name.
    """
    space = SearchSpace(
        name=f"recommend {workload.name}",
        description="",
        workload=ModelReference(workload.name, workload.kind),
        parameters=(),
        objectives=(),
        constraints=(),
        price_basis=options.price_basis,
        price_provider=options.price_provider,
        links=(),
        networks=(),
        search=SearchBlock().to_settings(),
    )
    fixed = dict(options.parameters)
    for name in fixed:
        if name not in workload.parameters.model_fields:
            raise ConfigError(f"{name}: not for a {workload.title}; leave it out")
    if program := workload.program_name({"program": options.program}):
        fixed["program"] = program
    if workload.finds_plans and options.types:
        fixed["sharding_types"] = TYPE_SEPARATOR.join(sorted(options.types))
    # Every configuration has these besides.
    own = {"platform": next(iter(platforms)), "world_size": 1, "global_batch_size": 1}
    values = workload.single_values({**own, **fixed})
    fixed = {name: values[name] for name in fixed}
    context = WorkloadContext(space, options.seed, workload, platforms)
    for what, name in (("link", options.link), ("network", options.network)):
        known = {
            spec.name: None
            for platform in platforms.values()
            for spec in (platform.links if what == "link" else platform.networks)
        }
        if name and name not in known:
            raise ConfigError(f"no platform has a {what} `{name}`; {hint(name, tuple(known))}")
    return OptionEvaluator(context.make_evaluator(), fixed, options.link)


def _platforms(options: RecommendOptions) -> dict[str, Platform]:
    """Returns platforms by the names that configurations carry."""
    named: Sequence[str | Mapping[str, object]] = options.platforms or list_platforms()
    loaded: dict[str, Platform] = {}
    for source in named:
        platform = load_platform(source)
        loaded[source if isinstance(source, str) else platform.name] = platform
    changed, _ = override_platforms(
        loaded,
        options.overrides,
        price_basis=options.price_basis,
        price_provider=options.price_provider,
    )
    return changed


def _options(
    workload: Workload,
    platforms: Mapping[str, Platform],
    options: RecommendOptions,
    most: int,
) -> tuple[list[Option], tuple[Unpriced, ...]]:
    """Returns everything with up to so many ranks that can be rented, and what cannot."""
    for what, values in (("world size", options.world_sizes), ("batch size", options.batch_sizes)):
        wrong = [value for value in values if value < 1]
        if wrong:
            raise ConfigError(f"{what} {wrong[0]}; expected at least 1")
    precisions = options.precisions or (workload.precision,)
    prices = {"basis": options.price_basis, "provider": options.price_provider}
    found: dict[Option, None] = {}
    unpriced: list[Unpriced] = []
    for name, platform in platforms.items():
        world_sizes = options.world_sizes or _world_sizes(platform, most)
        reasons: dict[str, list[int]] = {}
        for world_size in world_sizes:
            for network in _networks(platform, world_size, options):
                quote = platform.quote(world_size, network=network, **prices)
                if quote is None:
                    reason = platform.no_price_reason(world_size, network=network, **prices)
                    reasons.setdefault(reason, []).append(world_size)
                    continue
                price, offer = quote.usd_per_hour, quote.offer
                batches = _batches(workload, world_size, options.batch_sizes)
                for (batch, doublings), precision in product(batches, precisions):
                    option = Option(
                        name, world_size, batch, precision, price, doublings, network, offer
                    )
                    found[option] = None
        for reason, sizes in reasons.items():
            left_out = () if len(sizes) == len(world_sizes) else tuple(sizes)
            unpriced.append(Unpriced(name, left_out, reason))
    return list(found), tuple(unpriced)


def _networks(platform: Platform, world_size: int, options: RecommendOptions) -> tuple[str, ...]:
    """Returns the networks to try; inside one node, or pod, it makes no difference."""
    if not platform.needs_network(world_size):
        return ("",)
    if options.network:
        return (options.network,)
    rented = platform.rented_networks(
        world_size, basis=options.price_basis, provider=options.price_provider
    )
    return rented or ("",)


def _nothing_priced(
    platforms: Mapping[str, Platform], unpriced: Sequence[Unpriced], options: RecommendOptions
) -> str:
    """Returns why no machine at all has a price."""
    if options.platforms:
        reasons = "; ".join(f"platform {one.platform} has {one.reason}" for one in unpriced)
        return f"{reasons}; add an offer to its file or choose another"
    known = sorted(
        {
            f"{offer.provider} {offer.basis}"
            for platform in platforms.values()
            for offer in platform.offers
            if not offer.superseded
        }
    )
    return (
        f"no platform has a price on the basis `{options.price_basis}`"
        + (f" of {options.price_provider}" if options.price_provider else "")
        + f"; choose another: {', '.join(known)}"
    )


def _world_sizes(platform: Platform, most: int) -> tuple[int, ...]:
    """Powers of two inside a node, then counts of nodes inside a pod, then counts of pods."""
    node, pod = platform.devices_per_node, platform.nodes_per_pod
    inside = [2**power for power in range(node.bit_length()) if 2**power < node]
    nodes = [count * node for count in _counts(pod - 1)]
    pods = [count * pod * node for count in _counts(most // (pod * node))]
    return *inside, *nodes, *pods


def _counts(most: int) -> list[int]:
    """Returns powers of two and three times those, up to a number."""
    powers = [2**power for power in range(max(0, most).bit_length())]
    return sorted(count for one in powers for count in (one, 3 * one) if count <= most)


def _batches(
    workload: Workload, world_size: int, named: Sequence[int]
) -> Iterator[tuple[int, int]]:
    """Yields batches that divide over the ranks, and how often each doubles the model's own."""
    for batch in named:
        yield batch, 0
    if not named:
        for doublings in range(MAX_DOUBLINGS + 1):
            yield (
                _divisible(workload, workload.global_batch_size * 2**doublings, world_size),
                doublings,
            )


def _divisible(workload: Workload, batch: int, world_size: int) -> int:
    """Returns the next batch of which every rank gets the same share.

    Ranks that share the tables of a recommendation model have samples of their own; those that
    share the layers of another one have the same, so there it is the next of a share of the ranks
    that is close.
    """
    ranks = world_size
    while not workload.finds_plans and ranks % 2 == 0 and -batch % ranks > _MOST_ADDED * batch:
        ranks //= 2
    return batch + -batch % ranks


def _model_batch_size(workload: Workload) -> int:
    """Returns the batch of the model's own recipe; 0 if it has none."""
    try:
        return workload.global_batch_size
    except ConfigError:
        return 0


def _space_texts(options: Iterable[Option], chosen: RecommendOptions) -> tuple[str, ...]:
    """Names the values of each choice."""
    every = list(options)
    platforms = list(dict.fromkeys(option.platform for option in every))
    worlds = sorted({option.world_size for option in every})
    batches = sorted({option.global_batch_size for option in every})
    precisions = list(dict.fromkeys(option.precision.value for option in every))
    networks = list(dict.fromkeys(option.network for option in every if option.network))
    between = f"networks {', '.join(networks)} between nodes"
    changes = [one if isinstance(one, str) else one.text for one in chosen.overrides]
    if len(networks) > MAX_NAMED:
        between = f"{len(networks)} networks that can be rented between nodes"
    return (
        f"platforms {', '.join(platforms)}",
        f"world sizes {', '.join(map(str, worlds))}",
        f"batches {', '.join(f'{batch:,}' for batch in batches)}",
        f"precisions {', '.join(precisions)}",
        *([f"link {chosen.link}"] if chosen.link else []),
        *([between] if networks else []),
        *(f"with {change}" for change in changes),
    )
