"""Predictions: what the performance model says about one job."""

from __future__ import annotations

from dataclasses import dataclass
import math
from statistics import NormalDist
from typing import TYPE_CHECKING, Annotated, TypeAlias, overload

from pydantic import Field

from dse._text.digits import dollars, significant
from dse._text.html import fields_html
from dse._text.suggest import hint
from dse.errors import UnknownNameError
from dse.simulate import RankBreakdown
from dse.workload._programs import IDEAL

if TYPE_CHECKING:
    from collections.abc import Iterable

_GIB = 2**30

#: Further figure of models that count tokens.
_TOKEN_THROUGHPUT = "throughput_tokens_per_s"

#: A figure that some workloads do not have, which is NaN then; studies keep it all the same.
MaybeKnown: TypeAlias = Annotated[float, Field(allow_inf_nan=True)]

#: Purpose of what an allocator reserves and does not give out.
RESERVED = "reserved by the allocator"

#: Purposes that a message about a full device names, the largest first.
_NAMED = 3


@dataclass(frozen=True, slots=True)
class MemoryAccount:
    """Bytes that one rank needs, by purpose.

    Attributes:
        parts: Purpose and bytes on the device.
        host_bytes: Bytes in host memory, which are not part of the total.
        spread: Standard deviation of the logarithm of actual over predicted total; 0 where none is
            known.
    """

    parts: tuple[tuple[str, float], ...]
    host_bytes: float = 0.0
    spread: float = 0.0

    @property
    def total_bytes(self) -> float:
        """Bytes on the device, over all purposes."""
        return sum(size_bytes for _, size_bytes in self.parts)

    @property
    def allocated_bytes(self) -> float:
        """Bytes on the device without those that an allocator reserves and does not give out."""
        return self.total_bytes - self.bytes_for(RESERVED)

    def bytes_for(self, purpose: str) -> float:
        """Returns the bytes for one purpose; zero if there is no such purpose."""
        return dict(self.parts).get(purpose, 0.0)

    def fit_probability(self, limit_bytes: float) -> float:
        """Returns the probability that the total is at most a limit; 0 or 1 without a spread."""
        total = self.total_bytes
        if self.spread == 0.0 or not 0.0 < limit_bytes < math.inf or total <= 0.0:
            return float(total <= limit_bytes)
        return NormalDist(0.0, self.spread).cdf(math.log(limit_bytes / total))

    def largest(self) -> str:
        """Returns the largest purposes with their sizes, as a message shows them."""
        parts = sorted(self.parts, key=lambda part: -part[1])[:_NAMED]
        return ", ".join(f"{purpose} {size_bytes / _GIB:.1f} GiB" for purpose, size_bytes in parts)


def totals_bytes(memory: tuple[MemoryAccount, ...]) -> tuple[float, ...]:
    """Returns the bytes of each account; ranks that hold the same share one, added up once."""
    known = {id(account): account for account in memory}
    totals = {key: account.total_bytes for key, account in known.items()}
    return tuple(totals[id(account)] for account in memory)


def fit_probability(memory: Iterable[MemoryAccount], limit_bytes: float) -> float:
    """Returns the probability that every rank fits; NaN without an account.

    What makes one account wrong makes all of them wrong, so the least likely rank decides.

    Args:
        memory: What each rank holds.
        limit_bytes: Memory of one rank.
    """
    # Ranks that hold the same share one account.
    accounts = {id(account): account for account in memory}.values()
    return min((account.fit_probability(limit_bytes) for account in accounts), default=math.nan)


@dataclass(frozen=True, slots=True)
class Effect:
    """What one change of a captured step did.

    Attributes:
        title: The change.
        tasks: Tasks that it scaled, added, removed or moved.
        before_s: Length of the step before it, in seconds.
        after_s: Length of the step after it.
    """

    title: str
    tasks: int
    before_s: float
    after_s: float


@dataclass(frozen=True, slots=True, repr=False)
class Prediction:
    """What the performance model says about one training step.

    Where several ranks do the same work, one of them stands for all: a pipeline stage of a
    transformer has one entry in `breakdown` and `memory`.

    Attributes:
        iteration_time_s: Expected time of one iteration.
        iteration_time_p5_s: Lower end of the 90 % interval; NaN for captured steps.
        iteration_time_p95_s: Upper end of the 90 % interval; NaN for captured steps.
        throughput_samples_per_s: Global batch over iteration time; NaN if the samples of a
            captured step are not known.
        price_usd_per_hour: Price of the whole cluster, or None if it is not known.
        cost_usd_per_million_samples: Price of a million samples, or None without a price.
        breakdown: Where the time of each rank goes.
        memory: What the memory of each rank holds; empty for captured steps.
        usable_memory_bytes: Device memory available to a job; 0 where memory is not known.
        feasible: Whether every rank fits.
        infeasible_reason: Why not; empty if feasible.
        metrics: Further figures by name, which only some workloads have, such as
            ``throughput_tokens_per_s``.
        effects: What each change of a captured step did, in order.
        notes: What was assumed.
        program: Training program; empty where none is named.
        bound_by: The work with the largest share of the critical path, such as ``embedding
            updates`` or ``host dispatch``; empty where it is not known.
        bound_share: That share.
        network: Name of the network between the nodes, or pods; empty inside one, and where it is
            not known.
        rented: Whose price it is, such as ``2 × AWS p5.48xlarge``; empty where it is not known.
    """

    iteration_time_s: float
    iteration_time_p5_s: MaybeKnown
    iteration_time_p95_s: MaybeKnown
    throughput_samples_per_s: MaybeKnown
    price_usd_per_hour: float | None
    cost_usd_per_million_samples: float | None
    breakdown: tuple[RankBreakdown, ...]
    memory: tuple[MemoryAccount, ...]
    usable_memory_bytes: float
    feasible: bool
    infeasible_reason: str
    metrics: tuple[tuple[str, float], ...] = ()
    effects: tuple[Effect, ...] = ()
    notes: tuple[str, ...] = ()
    program: str = ""
    bound_by: str = ""
    bound_share: float = 0.0
    network: str = ""
    rented: str = ""

    @property
    def is_bound(self) -> bool:
        """Whether the ideal program runs, so that no real program is as fast."""
        return self.program == IDEAL

    @property
    def bound_text(self) -> str:
        """What binds the step, with its share: ``host dispatch, 96 %``; empty if not known."""
        return f"{self.bound_by}, {100 * self.bound_share:.0f} %" if self.bound_by else ""

    @property
    def memory_bytes_per_rank(self) -> tuple[float, ...]:
        """Total bytes of each rank."""
        return totals_bytes(self.memory)

    @property
    def _has_interval(self) -> bool:
        return not math.isnan(self.iteration_time_p5_s)

    @property
    def _has_throughput(self) -> bool:
        return not math.isnan(self.throughput_samples_per_s)

    def __repr__(self) -> str:
        time = f"{significant(1e3 * self.iteration_time_s, 4)} ms"
        if self._has_interval:
            low, high = 1e3 * self.iteration_time_p5_s, 1e3 * self.iteration_time_p95_s
            time += f" ({significant(low, 4)}–{significant(high, 4)})"
        rate = f"{significant(self.throughput_samples_per_s, 4)} samples/s"
        state = "feasible" if self.feasible else self.infeasible_reason
        parts = (time, rate, state) if self._has_throughput else (time, state)
        return f"Prediction({', '.join(parts)})"

    def _repr_html_(self) -> str:
        """Shows the figures in a notebook."""
        low, high = 1e3 * self.iteration_time_p5_s, 1e3 * self.iteration_time_p95_s
        cost, price = self.cost_usd_per_billion, self.price_usd_per_hour
        used, usable = self.peak_memory_bytes / _GIB, self.usable_memory_bytes / _GIB
        rate = f"{self.throughput_samples_per_s:,.0f} samples/s" if self._has_throughput else ""
        rented = f", {self.rented}" if self.rented else ""
        fields = (
            ("program", f"{self.program}, a lower bound" if self.is_bound else self.program),
            ("iteration time", f"{significant(1e3 * self.iteration_time_s, 4)} ms"),
            (
                "90 % interval",
                f"{significant(low, 4)}–{significant(high, 4)} ms" if self._has_interval else "",
            ),
            ("throughput", rate),
            ("bound by", self.bound_text),
            ("price", "" if price is None else f"{dollars(price, grouped=True)} USD/h{rented}"),
            ("cost", "" if cost is None else f"{significant(cost)} USD per billion {self.counts}"),
            ("memory", f"{used:.1f} of {usable:.1f} GiB" if self.memory else ""),
            ("feasible", "yes" if self.feasible else f"no: {self.infeasible_reason}"),
        )
        return fields_html("Prediction of one training step", fields)

    @property
    def peak_memory_bytes(self) -> float:
        """Bytes of the fullest rank."""
        return max(self.memory_bytes_per_rank, default=0.0)

    @property
    def peak_allocated_bytes(self) -> float:
        """Bytes of the fullest rank without those that an allocator only reserves."""
        # Ranks that hold the same are one object, or equal.
        return max((account.allocated_bytes for account in set(self.memory)), default=0.0)

    @property
    def memory_headroom_fraction(self) -> float:
        """Free share of the usable memory on the fullest rank; negative if it does not fit.

        NaN where memory is not known.
        """
        if not self.memory:
            return math.nan
        return 1.0 - self.peak_memory_bytes / self.usable_memory_bytes

    @property
    def fit_probability(self) -> float:
        """Probability that every rank fits; NaN where memory is not known.

        A job is feasible from one half up.
        """
        return fit_probability(self.memory, self.usable_memory_bytes)

    @overload
    def metric(self, name: str) -> float: ...

    @overload
    def metric(self, name: str, default: None, /) -> float | None: ...

    def metric(self, name: str, *default: None) -> float | None:
        """Returns one of the further figures; with a default, that where there is none.

        Args:
            name: As in :attr:`metrics`.
            *default: None, for figures that only some workloads have.

        Raises:
            UnknownNameError: There is no such figure, and no default.
        """
        known = dict(self.metrics)
        if name in known or default:
            return known.get(name)
        if isinstance(getattr(self, name, None), float):
            advice = f"it is an attribute, `prediction.{name}`"
        else:
            advice = hint(name, known) if known else "this workload has none"
        raise UnknownNameError(f"the prediction has no further figure `{name}`; {advice}")

    @property
    def counts(self) -> str:
        """What throughput and cost count for people: ``tokens`` where there are any."""
        return "samples" if self.metric(_TOKEN_THROUGHPUT, None) is None else "tokens"

    @property
    def throughput_per_s(self) -> float:
        """Samples or tokens a second, whichever :attr:`counts` says; NaN if they are not known."""
        tokens_per_s = self.metric(_TOKEN_THROUGHPUT, None)
        return self.throughput_samples_per_s if tokens_per_s is None else tokens_per_s

    @property
    def cost_usd_per_billion(self) -> float | None:
        """Cost of a billion of what :attr:`counts` says; None without a price."""
        if self.cost_usd_per_million_samples is None:
            return None
        of_a_sample = self.throughput_per_s / self.throughput_samples_per_s
        return 1e3 * self.cost_usd_per_million_samples / of_a_sample
