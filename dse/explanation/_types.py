"""Parts of an explanation."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from dse._text.digits import significant
from dse._text.html import fields_html

if TYPE_CHECKING:
    from dse.explanation._resources import Resource

#: Parts of the critical path that a notebook shows.
_SHOWN_SHARES = 12


@dataclass(frozen=True, slots=True)
class CriticalTask:
    """One task of the critical path.

    Attributes:
        task: Index in the graph.
        name: Its name.
        group: Operator group.
        rank: Rank on which it runs; of a collective, that of the member on the path.
        stream: Name of its stream.
        resource: What takes most of it.
        resource_name: Its name on this machine.
        start_s: When it starts.
        seconds: What it adds to the path.
        last_rank: Of a collective the rank that came last and so let it start; otherwise `rank`.
        longest_wait_s: Of a collective, how long the rank that came first waited; otherwise 0.
    """

    task: int
    name: str
    group: str
    rank: int
    stream: str
    resource: Resource
    resource_name: str
    start_s: float
    seconds: float
    last_rank: int
    longest_wait_s: float


@dataclass(frozen=True, slots=True)
class PathShare:
    """What one operator group spends on one resource on one rank along the critical path.

    Attributes:
        group: Operator group.
        resource: What takes the time.
        resource_name: Its name on this machine.
        rank: Where.
        tasks: Tasks on the path with a part in it.
        seconds: Sum of their parts.
        share: The sum as a fraction of the iteration.
    """

    group: str
    resource: Resource
    resource_name: str
    rank: int
    tasks: int
    seconds: float
    share: float


@dataclass(frozen=True, slots=True)
class WaitedFor:
    """How a rank waited for another one in collectives.

    Attributes:
        rank: The rank that came last.
        times: Collectives.
        seconds: Time waited in them, with or without other work meanwhile.
    """

    rank: int
    times: int
    seconds: float


@dataclass(frozen=True, slots=True)
class RankExplanation:
    """Where one rank's iteration goes, and what it means for the others.

    The first five parts add up to the iteration. At each instant the first of these that holds
    takes the time: the rank waits for its host (see :class:`dse.simulate.RankBreakdown`); a kernel
    runs; a collective transfers; a copy runs; a collective waits for other ranks; nothing.

    Attributes:
        rank: The rank.
        compute_s: Kernels, and copies beside which nothing else runs, that the host does not hide.
        transfer_s: Collectives that transfer while no kernel runs.
        waiting_s: Collectives that wait for other ranks while nothing computes or transfers.
        host_s: Time in which the rank waits for its host.
        idle_s: The rest.
        collective_s: All transfer, hidden or not.
        waited_for: Whom its collectives waited for, most often first.
        movable_s: Its work that could be on other ranks, such as lookups and updates of tables.
        gain_without_movable_s: How much shorter the iteration would be without that work on this
            rank, collectives lasting as long as before.
    """

    rank: int
    compute_s: float
    transfer_s: float
    waiting_s: float
    host_s: float
    idle_s: float
    collective_s: float
    waited_for: tuple[WaitedFor, ...]
    movable_s: float
    gain_without_movable_s: float


@dataclass(frozen=True, slots=True)
class Sensitivity:
    """The iteration with one resource faster, simulated again.

    Attributes:
        resource: What becomes faster.
        resource_name: Its name on this machine.
        factor: How much.
        iteration_time_s: The iteration then.
        gain_s: How much shorter it is.
        gain: The same as a fraction of the iteration.
    """

    resource: Resource
    resource_name: str
    factor: float
    iteration_time_s: float
    gain_s: float
    gain: float


@dataclass(frozen=True, slots=True)
class Imbalance:
    """How evenly work that could be elsewhere is spread.

    Attributes:
        most_loaded_rank: The rank with most of it.
        most_s: Its work.
        mean_s: Mean over ranks.
        excess: The most over the mean, less one.
        gain_if_even_s: How much shorter the iteration would be if all ranks had the mean of each
            task, collectives lasting as long as before.
    """

    most_loaded_rank: int
    most_s: float
    mean_s: float
    excess: float
    gain_if_even_s: float


@dataclass(frozen=True, slots=True)
class Explanation:
    """Why an iteration takes as long as it does.

    Attributes:
        sentence: The answer in one sentence.
        iteration_time_s: Length of the iteration, and of its critical path.
        path: The critical path by group, resource and rank, most time first; adds up to the
            iteration.
        tasks: The critical path task by task, in order of time.
        ranks: One entry a rank, ascending.
        sensitivities: For each resource that any task uses, most gain first.
        imbalance: None where no work could be elsewhere.
    """

    sentence: str
    iteration_time_s: float
    path: tuple[PathShare, ...]
    tasks: tuple[CriticalTask, ...]
    ranks: tuple[RankExplanation, ...]
    sensitivities: tuple[Sensitivity, ...]
    imbalance: Imbalance | None

    def __repr__(self) -> str:
        return f"Explanation({_in_ms(self.iteration_time_s)}: {self.sentence})"

    @property
    def bound_by(self) -> Resource:
        """The resource with the largest share of the critical path."""
        seconds: dict[Resource, float] = {}
        for share in self.path:
            seconds[share.resource] = seconds.get(share.resource, 0.0) + share.seconds
        return max(seconds, key=seconds.__getitem__)

    def _repr_html_(self) -> str:
        """Shows the answer and the largest parts of the critical path in a notebook."""
        fields = (
            (
                f"{share.group}, rank {share.rank}",
                f"{_in_ms(share.seconds)}, {100 * share.share:.1f} %: {share.resource_name}",
            )
            for share in self.path[:_SHOWN_SHARES]
        )
        return fields_html(f"{_in_ms(self.iteration_time_s)}: {self.sentence}", fields)


@dataclass(frozen=True, slots=True)
class DifferenceStep:
    """One step of the way from one iteration time to another.

    Attributes:
        group: Operator group.
        resource: What takes the time.
        resource_name: Its name; both names where the machines differ in it.
        before_s: Time of the group and resource on the first critical path.
        after_s: The same on the second.
        change_s: The second less the first.
    """

    group: str
    resource: Resource
    resource_name: str
    before_s: float
    after_s: float
    change_s: float


@dataclass(frozen=True, slots=True)
class Difference:
    """Why one iteration takes longer than another.

    Time is attributed along the critical path of each iteration: a step's change is the group's
    time there afterwards less its time there before. Work off the path counts for nothing, so a
    step can shrink because its work became faster or because other work now hides it.

    Attributes:
        before_s: The first iteration time.
        after_s: The second one.
        steps: Their changes add up to the difference; largest change first.
    """

    before_s: float
    after_s: float
    steps: tuple[DifferenceStep, ...]

    @property
    def change_s(self) -> float:
        """The second iteration time less the first."""
        return self.after_s - self.before_s


def _in_ms(seconds: float) -> str:
    return f"{significant(1e3 * seconds, 4)} ms"
