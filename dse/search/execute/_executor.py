"""Executors: evaluations in this process, in worker processes, or on Ray.

Every executor gives the same records for the same proposals; only the order in which they come
back differs. One process proposes; executors only evaluate.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
import logging
import os
from typing import TYPE_CHECKING

from dse._process.system import available_cores
from dse.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from dse.search._proposals import Proposal
    from dse.search._records import TrialRecord
    from dse.search.evaluate._evaluator import EvaluationContext

    #: Whether a proposal is still to be evaluated.
    Wanted = Callable[[Proposal], bool]

    #: Returns proposals of the next round, as far as they are known.
    Ahead = Callable[[], Sequence[Proposal]]


_LOGGER = logging.getLogger("dse.search")

#: Executors by their names on the command line.
EXECUTORS = ("process", "serial", "ray")


def check_executor(name: str, jobs: int, address: str) -> None:
    """Checks settings before anything is written.

    Args:
        name: One of :data:`EXECUTORS`.
        jobs: Number of workers.
        address: Of a Ray cluster, or empty.

    Raises:
        ConfigError: The settings do not exist or do not fit together.
        OptionalDependencyError: Ray is chosen and is not installed.
    """
    if jobs < 1:
        raise ConfigError(f"--jobs must be at least 1, found {jobs}")
    if name not in EXECUTORS:
        raise ConfigError(f"unknown executor `{name}`; expected one of {', '.join(EXECUTORS)}")
    if name == "ray":
        from dse.search.execute._ray_cluster import require_ray

        require_ray()
    elif address:
        raise ConfigError(f"--address {address}: only --executor ray takes an address")


def useful_jobs(name: str, jobs: int, address: str, at_once: int) -> int:
    """Returns how many workers to start; logs a warning if that is less than wanted.

    More workers than configurations at once have nothing to do, and evaluations use a core each.

    Args:
        name: One of :data:`EXECUTORS`.
        jobs: Number of workers that is wanted.
        address: Of a Ray cluster, whose cores are not known here; empty for a local Ray.
        at_once: Configurations that are evaluated at the same time.
    """
    if name == "serial":
        return jobs
    limit, reason = at_once, "configurations are evaluated at once"
    cluster = name == "ray" and (address or os.environ.get("RAY_ADDRESS", "")) not in ("", "local")
    cores = available_cores()
    if not cluster and cores < limit:
        limit, reason = cores, "cores are here"
    if jobs > limit:
        _LOGGER.warning(
            "--jobs %d: only %d workers start, since %d %s", jobs, limit, limit, reason
        )
    return min(jobs, limit)


def make_executor(name: str, context: EvaluationContext, jobs: int, address: str = "") -> Executor:
    """Returns the executor of that name.

    Args:
        name: One of :data:`EXECUTORS`.
        context: What evaluations need besides the parameters.
        jobs: Number of workers.
        address: Of a Ray cluster; empty for a local Ray.
    """
    if name == "ray":
        from dse.search.execute._ray import RayExecutor

        return RayExecutor(context, jobs, address)
    if name == "process" and jobs > 1:
        from dse.search.execute._process import ProcessExecutor

        return ProcessExecutor(context, jobs)
    return SerialExecutor(context)


class Executor(ABC):
    """Evaluates proposals of one study; a context manager that frees its workers."""

    @abstractmethod
    def run(
        self,
        proposals: Sequence[Proposal],
        wanted: Wanted | None = None,
        ahead: Ahead | None = None,
    ) -> Iterator[TrialRecord]:
        """Evaluates proposals and yields their records as they finish, in any order.

        A proposal that raises, or that no worker survives, gives a failed record. It ends when
        these proposals are answered, and those that `ahead` gave in the last call.

        Args:
            proposals: What to evaluate, in the order in which it is begun.
            wanted: Asked about each proposal right before it is begun, when the caller has taken
                all records so far; one that is not wanted gives no record. None if all are.
            ahead: Asked for proposals of the next round while workers are busy, so that none of
                them has to wait for the others. Their records are yielded in this call or, if they
                take longer, in the next one. None if nothing is known of the next round.

        Raises:
            WorkerError: Workers do not start.
        """

    def __enter__(self) -> Executor:
        return self

    @abstractmethod
    def __exit__(self, *raised: object) -> None:
        """Ends the workers; at once if an exception was raised."""


class SerialExecutor(Executor):
    """Evaluates in the calling process.

    Args:
        context: What evaluations need besides the parameters.
    """

    def __init__(self, context: EvaluationContext) -> None:
        self._evaluator = context.make_evaluator()

    def run(
        self,
        proposals: Sequence[Proposal],
        wanted: Wanted | None = None,
        ahead: Ahead | None = None,
    ) -> Iterator[TrialRecord]:
        """Evaluates one after the other, and nothing ahead."""
        for proposal in proposals:
            if wanted is None or wanted(proposal):
                yield self._evaluator.answer(proposal)

    def __exit__(self, *raised: object) -> None:
        """Nothing to free."""
