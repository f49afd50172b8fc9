"""Training candidates on ranks of this machine or of ``torchrun``."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from dse._process.system import available_cores
from dse.calibration.microbench import default_threads
from dse.errors import ConfigError, OptionalDependencyError
from dse.launch import in_place, start_ranks, torchrun_environment
from dse.validation._types import TrainerOptions, TrainingResult
from dse.validation.measurement._worker import Build, Collect, Drop, Train, TrainingWorker
from dse.validation.trainer import find_trainer

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from numpy.typing import NDArray

    from dse.launch import RankGroup
    from dse.validation._protocol import RunCandidate, Trainer

_Result = TypeVar("_Result")

#: Backend of each device.
BACKENDS = {"cpu": "gloo", "cuda": "nccl"}

DEFAULT_TRAINER = "reference"


def train(
    candidates: Sequence[RunCandidate],
    steps: int,
    *,
    trainer: str = DEFAULT_TRAINER,
    device: str = "cpu",
    threads: int | None = None,
    options: TrainerOptions | None = None,
    timeout_s: float = 120.0,
) -> tuple[TrainingResult, ...]:
    """Trains candidates from their initial weights and returns losses and weights.

    The model has to fit into this process, which collects all weights in double precision.

    Args:
        candidates: Candidates to train, one after another on the same ranks.
        steps: Number of iterations.
        trainer: Name of what trains them.
        device: ``cpu`` (gloo) or ``cuda`` (NCCL).
        threads: CPU threads of each rank; its share of the cores by default.
        options: Seed, learning rates, batches.
        timeout_s: Time for the ranks to start, and for the steps of each candidate, in seconds.

    Raises:
        ConfigError: The trainer cannot run a candidate, or numbers of ranks differ.
        OptionalDependencyError: The trainer needs what is not installed.
        PlanError: A plan does not match its model and ranks.
        WorkerError: A rank failed; a note of the error has its traceback.
    """
    program = installed_trainer(trainer)
    checked = checked_together(program, candidates, device)

    def drive(group: RankGroup) -> tuple[TrainingResult, ...]:
        return tuple(_trained(group, number, steps) for number in range(len(checked)))

    options = options or TrainerOptions()
    return with_ranks(drive, program, checked, options, device, threads, timeout_s)


def _trained(group: RankGroup, number: int, steps: int) -> TrainingResult:
    group.ask(Build(number))
    losses = np.array(group.ask(Train(number, steps)))
    answers = group.ask(Collect(number))
    group.ask(Drop(number))
    weights: dict[str, NDArray[np.float64]] = {}
    for piece in (piece for pieces in answers for piece in pieces):
        whole = weights.setdefault(piece.name, np.zeros(piece.shape))
        ends = zip(piece.offset, piece.values.shape, strict=True)
        whole[tuple(slice(start, start + size) for start, size in ends)] = piece.values
    return TrainingResult(tuple(losses.mean(axis=0).tolist()), weights)


def installed_trainer(name: str) -> Trainer[Any]:
    """Returns a trainer that can be used here.

    Raises:
        ConfigError: There is none of this name.
        OptionalDependencyError: It needs what is not installed.
    """
    found = find_trainer(name)
    if missing := found.missing():
        raise OptionalDependencyError(
            f"trainer `{name}` needs {missing}, which is not installed here"
        )
    return found


def checked_together(
    trainer: Trainer[Any], candidates: Sequence[RunCandidate], device: str
) -> tuple[RunCandidate, ...]:
    """Returns checked candidates that can run on the same ranks.

    Args:
        trainer: What trains them.
        candidates: At least one.
        device: ``cpu`` or ``cuda``.

    Raises:
        ConfigError: There is no candidate, names are repeated, numbers of ranks differ, the
            device is unknown, or the trainer cannot run a candidate.
        PlanError: A plan does not match its model and ranks.
    """
    names = [candidate.name for candidate in candidates]
    sizes = {candidate.world_size for candidate in candidates}
    if not names:
        raise ConfigError("no candidates to run; name at least one")
    repeated = sorted({name for name in names if names.count(name) > 1})
    if repeated:
        raise ConfigError(f"two candidates are named `{repeated[0]}`; give different names")
    if len(sizes) > 1:
        raise ConfigError(
            f"candidates for {', '.join(map(str, sorted(sizes)))} ranks cannot run together; "
            "take those of one number of ranks at a time"
        )
    if device not in BACKENDS:
        raise ConfigError(f"device `{device}`; expected one of {', '.join(BACKENDS)}")
    return tuple(trainer.checked(candidate, device) for candidate in candidates)


def with_ranks(
    drive: Callable[[RankGroup], _Result],
    trainer: Trainer[Any],
    candidates: Sequence[RunCandidate],
    options: TrainerOptions,
    device: str,
    threads: int | None,
    timeout_s: float,
    *,
    own_cores: bool = False,
) -> _Result:
    """Runs `drive` with ranks that know the candidates, started here or by ``torchrun``.

    Args:
        drive: Sends commands to the ranks.
        trainer: What trains the candidates.
        candidates: At least one checked candidate, all for the same number of ranks.
        options: Seed, learning rates, batches.
        device: ``cpu`` or ``cuda``.
        threads: CPU threads of each rank; its share of the cores by default.
        timeout_s: Time for each reply, in seconds.
        own_cores: See :func:`dse.launch.start_ranks`; ignored under ``torchrun``.

    Raises:
        ConfigError: ``torchrun`` started another number of ranks.
        WorkerError: A rank failed.
    """
    world_size = candidates[0].world_size
    factory = partial(TrainingWorker, trainer, tuple(candidates), options)
    backend = BACKENDS[device]
    threads = threads or default_threads(available_cores(), world_size)
    environment = torchrun_environment()
    if environment is None:
        with start_ranks(
            factory,
            backend=backend,
            world_size=world_size,
            threads=threads,
            timeout_s=timeout_s,
            own_cores=own_cores,
        ) as group:
            return drive(group)
    if environment.world_size != world_size:
        raise ConfigError(
            f"torchrun started {environment.world_size} ranks, the candidates are for "
            f"{world_size}; start as many with --nproc-per-node and --nnodes"
        )
    return in_place(
        drive, factory, environment, backend=backend, threads=threads, timeout_s=timeout_s
    )
