"""Jobs: a workload on a machine under one choice of parameters, run by a program."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from dse.errors import ConfigError, PlanError

if TYPE_CHECKING:
    from collections.abc import Hashable, Iterable, Sequence
    from os import PathLike

    import numpy as np
    from numpy.typing import NDArray

    from dse.machine import Cluster
    from dse.machine.platforms import Platform
    from dse.sharding import ShardingPlan, TableConstraints
    from dse.workload._explain import AttributedGraph
    from dse.workload._iteration import Iteration, SimulatedStep
    from dse.workload._prediction import Effect, MemoryAccount
    from dse.workload.dlrm.solver import ShardingSolution


@dataclass(frozen=True, slots=True)
class PlanEffort:
    """How much to search for a plan.

    Equal jobs with equal efforts have equal plans, in every command.

    Attributes:
        seed: Seed of everything that is drawn.
        planners: Baseline planners that start the search; empty for all of them.
        improvement_rounds: Rounds of local search from each start, 0 for the best baseline plan;
            None for the default.
        quick: Search a fraction of the plans, as studies do with thousands of configurations. A
            thorough search begins with a quick one, so its plan is never slower.
        headroom: Share of the usable memory that the plan should leave free if it can.
        time_limit_s: Seconds after which the search stops, between two moves; the result then
            depends on the speed of the machine. None for no limit: the same seed then gives the
            same plan on every machine.
    """

    seed: int = 0
    planners: tuple[str, ...] = ()
    improvement_rounds: int | None = None
    quick: bool = False
    headroom: float = 0.0
    time_limit_s: float | None = None

    def __post_init__(self) -> None:
        """Raises ConfigError if the time limit is not positive."""
        if self.time_limit_s is not None and not self.time_limit_s > 0:
            raise ConfigError(
                f"time limit {self.time_limit_s} s; expected a positive number of seconds, or "
                "none for no limit"
            )


class Job(ABC):
    """What is predicted; each kind of workload has one implementation.

    :func:`dse.workload.predict_job` turns a job into a prediction, for every kind alike.

    Attributes:
        cluster: Where the job runs; None if that is not known.
        program: Name of the training program; empty where none is named.
        rank_word: What one entry of the breakdown and of the memory stands for.
    """

    __slots__ = ()

    rank_word: ClassVar[str] = "rank"

    if TYPE_CHECKING:

        @property
        def cluster(self) -> Cluster | None:
            """Where the job runs."""

        @property
        def program(self) -> str:
            """Name of the training program."""

    else:
        # Dataclasses take it for the default of a field of this name.
        program = ""

    @property
    def represented(self) -> Cluster | None:
        """The ranks that breakdown and memory list; those of the job unless some stand for all."""
        return self.cluster

    @property
    def world_size(self) -> int:
        """Number of ranks."""
        return 0 if self.cluster is None else self.cluster.world_size

    @property
    @abstractmethod
    def samples_per_iteration(self) -> float:
        """Samples of one iteration over all ranks."""

    @abstractmethod
    def check(self) -> None:
        """Checks that the job is possible.

        Raises:
            ConfigError: It is not; the message gives value, limit and what to change.
        """

    def check_parameters(self) -> None:
        """Checks what can be checked before the plan is found and anything is simulated.

        Raises:
            ConfigError: The job is impossible.
        """
        self.check()

    @property
    def platform(self) -> Platform | None:
        """The platform that a captured step brings; None for other workloads."""
        return None

    def optimistic_time_s(self, *, closer: bool = False) -> float:
        """Returns a time that the step cannot beat, whatever is left open.

        Zero where nothing is known, infinite where it is certain that nothing fits.

        Args:
            closer: Take some milliseconds for a closer one; about one tenth of one otherwise.
        """
        del closer
        return 0.0

    def least_memory(self) -> tuple[MemoryAccount, ...]:
        """Returns what ranks hold at least, whatever is left open; empty if that is not known."""
        return ()

    @abstractmethod
    def iteration(self) -> Iteration:
        """Returns the graph of one training step with its durations and their errors."""

    @abstractmethod
    def memory(self) -> tuple[MemoryAccount, ...]:
        """Returns what each rank's memory holds."""

    @abstractmethod
    def attributed(self) -> AttributedGraph:
        """Returns the graph of the step with what each task is for and what takes its time."""

    def distinct(self) -> AttributedGraph:
        """Returns the same of ranks that differ, for explanations: equal ones once.

        Of workloads that tell which ranks are equal; otherwise all of :meth:`attributed`.
        """
        return self.attributed()

    def simulated(self) -> SimulatedStep:
        """Returns the time of the step, where each rank's time goes, and what binds it."""
        return self.iteration().run()

    def sample_times_s(self) -> NDArray[np.float64]:
        """Draws times of the step; see :meth:`Iteration.sample_times_s`."""
        return self.iteration().sample_times_s()

    def effects(self) -> tuple[Effect, ...]:
        """Returns what each change of a captured step did; empty for other workloads."""
        return ()

    def notes(self) -> tuple[str, ...]:
        """Returns what was assumed."""
        return ()

    @property
    def plan(self) -> ShardingPlan | None:
        """The sharding plan; None before it is found, and for workloads that have none."""
        return None

    @property
    def planner(self) -> str:
        """How the plan was found; empty without a plan."""
        return ""

    def with_plan(self, plan: ShardingPlan, planner: str = "") -> Job:
        """Returns the job with a sharding plan.

        Args:
            plan: The plan.
            planner: How it was found.

        Raises:
            ConfigError: This workload has no sharding plan.
            PlanError: The plan is for another model or another number of ranks.
        """
        del plan, planner
        raise ConfigError("this workload has no sharding plan; leave the plan out")

    def read_plan(self, path: str | PathLike[str]) -> ShardingPlan:
        """Reads a plan for this job from a file in our own form or TorchRec's.

        Raises:
            ConfigError: The file is missing or wrong, or this workload has no sharding plan.
            PlanError: The plan is for other tables.
        """
        raise ConfigError(f"{path}: this workload has no sharding plan; leave the plan out")

    def with_plan_of(self, path: str | PathLike[str]) -> Job:
        """Returns the job with the plan of a file, whose name is in the message of every problem.

        Raises:
            ConfigError: The file is missing or wrong, or this workload has no sharding plan.
            PlanError: The plan is for another model or another number of ranks.
        """
        plan = self.read_plan(path)
        try:
            return self.with_plan(plan, str(path))
        except PlanError as error:
            raise PlanError(f"{path}: {error}") from error

    def solve(
        self,
        *,
        allowed_types: Iterable[str] | None = None,
        constraints: Sequence[TableConstraints] = (),
        allow_uvm: bool = False,
        time_limit_s: float | None = None,
        seed: int = 0,
    ) -> ShardingSolution:
        """Searches a sharding plan thoroughly, with a bound that no plan beats.

        Without constraints and host memory it is the plan that :meth:`planned` finds with the
        effort `PlanEffort(seed=seed, time_limit_s=time_limit_s)`.

        Args:
            allowed_types: Names of sharding types that may be used; all by default.
            constraints: What is demanded of single tables.
            allow_uvm: Whether tables may live in host memory.
            time_limit_s: Stop looking for better plans after this many seconds.
            seed: Seed of everything that is drawn.

        Raises:
            ConfigError: This workload has no sharding plan, or constraints exclude each other.
            InfeasibleError: No plan fits; says what is missing and what would help.
        """
        raise ConfigError("this workload has no embedding tables to shard")

    def key(self) -> Hashable:
        """Returns what decides the prediction; None if that is all of the parameters.

        Jobs with equal keys have equal plans and predictions, whatever else their parameters say.
        Where the workload brings its machine, they also run on equal platforms.
        """
        return None

    def planned(self, effort: PlanEffort) -> Job:
        """Returns the job with everything decided that the parameters leave open.

        Args:
            effort: How much to search.

        Raises:
            ConfigError: The parameters ask for something that this job does not allow.
        """
        del effort
        return self

    def with_plans_of(self, others: Sequence[Job], most_s: float) -> tuple[Job, ...]:
        """Returns the job with each of other jobs' plans that may be used, fits and is fast.

        Args:
            others: Jobs whose plans have been found.
            most_s: Time of an iteration that plans have to beat.
        """
        del others, most_s
        return ()

    def cannot_fit(self) -> str:
        """Returns why nothing that is left open can make the job fit; empty if it may."""
        return ""

    def lower_bound_s(self, incumbent_s: float | None = None) -> float | None:
        """Returns a time that no plan of this job that fits beats; None if there is no plan.

        Infinite where it is certain that no plan fits.

        Args:
            incumbent_s: Refine the bound until it exceeds this time; None for a quick one.
        """
        del incumbent_s
        return None

    def metrics(self, iteration_time_s: float) -> tuple[tuple[str, float], ...]:
        """Returns the values of metrics that do not follow from the common figures.

        Those are the ones among :attr:`Workload.metrics` without a `value` of their own.

        Args:
            iteration_time_s: Predicted time of one iteration.
        """
        del iteration_time_s
        return ()

    def setup(self) -> str:
        """Returns one line on how the job is set up, such as its plan or its parallelism."""
        return ""

    def document(self) -> dict[str, object]:
        """Returns the fields of the JSON output that only this kind of workload has."""
        return {}

    def memory_advice(self, fullest: MemoryAccount) -> str:
        """Returns what to try if a rank does not fit; empty if nothing general can be said.

        Args:
            fullest: Account of the fullest rank.
        """
        del fullest
        return ""
