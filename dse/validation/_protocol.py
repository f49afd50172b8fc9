"""What a trainer is: which candidates it can run, and one rank of one of them.

A :class:`Trainer` lives in the package `dse.validation.trainer`. It is asked in the main process
whether it is installed and what it can run (without torch), and on every rank for a
:class:`TrainerRank`, which trains. Everything around that, such as processes, rounds, intervals
and the comparison with predictions, is the same for all trainers.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Generic, Protocol, TypeVar

from dse.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy as np
    from numpy.typing import NDArray

    from dse.launch import RankContext
    from dse.validation._types import TrainerOptions
    from dse.workload import Job


class UnsupportedCandidateError(ConfigError):
    """A trainer cannot run a candidate; the message names candidate, part and a way out."""


class RunCandidate(Protocol):
    """One configuration to run, of any kind of workload; a frozen dataclass that can be pickled.

    Attributes:
        name: Name in results, unique within a run.
    """

    @property
    def name(self) -> str:
        """Name in results."""

    @property
    def world_size(self) -> int:
        """Number of ranks."""

    @property
    def global_batch_size(self) -> int:
        """Samples of an iteration on all ranks."""

    @property
    def resident_bytes(self) -> float:
        """Bytes that it keeps on all ranks between iterations, for the larger part."""

    def job(self) -> Job:
        """Returns the candidate as a job that can be predicted."""


_Candidate = TypeVar("_Candidate", bound=RunCandidate)


@dataclass(frozen=True, slots=True)
class WeightPiece:
    """A part of a weight that a rank holds.

    Attributes:
        name: Name of the weight; the same under every plan.
        shape: Shape of the whole weight.
        offset: Where the part begins in each dimension.
        values: The part.
    """

    name: str
    shape: tuple[int, ...]
    offset: tuple[int, ...]
    values: NDArray[np.float64]


class TrainerRank(Protocol):
    """One rank of one candidate, in the rank's process.

    All ranks make it, and call each method, together and in the same order. Several live side by
    side in a process and take turns.
    """

    def step(self) -> Any:
        """Trains one iteration; returns the mean loss of this rank's samples before the update.

        The loss is anything that `float` takes, and is not read between timed iterations.
        """

    def weights(self) -> Sequence[WeightPiece]:
        """Returns the parts of all weights on this rank; those that all ranks hold from rank 0."""

    def close(self) -> None:
        """Ends what outlives an iteration: pending collectives, process groups, hooks."""


class Trainer(ABC, Generic[_Candidate]):
    """A training program that real runs can use.

    Trainers have no state: they are made without arguments, and pickled to the ranks.

    Attributes:
        name: Name on the command line and in results.
        title: What sentences call it, with its article.
        kind: Kind of workload that it trains.
        program: Name of the training program that predicts it.
        keeps: Options of another program that it takes over, as words; "" for none.
        collects: Whether ranks return their weights.
    """

    name: ClassVar[str]
    title: ClassVar[str]
    kind: ClassVar[str]
    program: ClassVar[str]
    keeps: ClassVar[str] = ""
    collects: ClassVar[bool] = False

    def missing(self) -> str:
        """Returns what has to be installed besides torch to run it here; "" if nothing."""
        return ""

    def libraries(self) -> tuple[tuple[str, str], ...]:
        """Returns names and versions of what it uses besides torch."""
        return ()

    @abstractmethod
    def adopt(self, candidate: _Candidate) -> _Candidate:
        """Returns a candidate of any program as this trainer's, which is then predicted and run.

        Options that the trainer shares with the other program stay as they are.
        """

    @abstractmethod
    def checked(self, candidate: _Candidate, device: str) -> _Candidate:
        """Returns a candidate in the form in which ranks take it.

        Args:
            candidate: A candidate of this trainer's program.
            device: ``cpu`` or ``cuda``.

        Raises:
            UnsupportedCandidateError: The trainer cannot run it on the device.
            PlanError: The plan does not match the model and ranks.
        """

    @abstractmethod
    def rank(
        self, candidate: _Candidate, options: TrainerOptions, context: RankContext
    ) -> TrainerRank:
        """Builds one rank of a checked candidate; its weights depend on the seed only."""


class AloneTrainer(Trainer[_Candidate]):
    """A trainer of which one process can run all ranks in turn, without the others."""

    @abstractmethod
    def received(self, candidate: _Candidate, options: TrainerOptions) -> object:
        """Returns what the ranks of a checked candidate would receive from each other."""

    @abstractmethod
    def rank_alone(
        self,
        candidate: _Candidate,
        options: TrainerOptions,
        context: RankContext,
        received: Any,
    ) -> TrainerRank:
        """Builds one rank whose collectives take no time.

        Args:
            candidate: A checked candidate for more than one rank.
            options: Seed, learning rates, batches.
            context: The rank that it is, among the candidate's; the process has no others.
            received: The answer of :meth:`received`.
        """
