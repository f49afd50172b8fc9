"""Training candidates on ranks of this machine or of ``torchrun``."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, TypeVar

import numpy as np

from dse.calibration.microbench import available_cores, default_threads
from dse.errors import ConfigError
from dse.launch import in_place, start_ranks, torchrun_environment
from dse.validation._types import TrainerOptions, TrainingResult
from dse.validation.measurement._worker import Build, Collect, Drop, Train, training_worker

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from dse.launch import RankGroup
    from dse.validation._types import Candidate

_Result = TypeVar("_Result")

#: Backend of each device.
BACKENDS = {"cpu": "gloo", "cuda": "nccl"}


def train(
    candidates: Sequence[Candidate],
    steps: int,
    *,
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
        device: ``cpu`` (gloo) or ``cuda`` (NCCL).
        threads: CPU threads of each rank; its share of the cores by default.
        options: Seed, learning rates, batches.
        timeout_s: Time for the ranks to start, and for the steps of each candidate, in seconds.

    Raises:
        ConfigError: The trainer cannot run a candidate, or numbers of ranks differ.
        PlanError: A plan does not match its model and ranks.
        WorkerError: A rank failed; the message contains its traceback.
    """
    checked = checked_together(candidates)

    def drive(group: RankGroup) -> tuple[TrainingResult, ...]:
        return tuple(
            _trained(group, number, candidate, steps) for number, candidate in enumerate(checked)
        )

    return with_ranks(drive, checked, options or TrainerOptions(), device, threads, timeout_s)


def _trained(group: RankGroup, number: int, candidate: Candidate, steps: int) -> TrainingResult:
    group.ask(Build(number))
    losses = np.array(group.ask(Train(number, steps)))
    answers = group.ask(Collect(number))
    group.ask(Drop(number))
    tables = [np.zeros((table.rows, table.dim)) for table in candidate.model.tables]
    for pieces, _ in answers:
        for table, row, column, weights in pieces:
            rows, columns = weights.shape
            tables[table][row : row + rows, column : column + columns] = weights
    means = tuple(float(loss) for loss in losses.mean(axis=0))
    return TrainingResult(means, tuple(tables), tuple(answers[0][1]))


def checked_together(candidates: Sequence[Candidate]) -> tuple[Candidate, ...]:
    """Returns checked candidates that can run on the same ranks.

    Raises:
        ConfigError: There is no candidate, names are repeated, numbers of ranks differ, or the
            trainer cannot run a candidate.
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
    return tuple(candidate.checked() for candidate in candidates)


def with_ranks(
    drive: Callable[[RankGroup], _Result],
    candidates: Sequence[Candidate],
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
        candidates: At least one checked candidate, all for the same number of ranks.
        options: Seed, learning rates, batches.
        device: ``cpu`` or ``cuda``.
        threads: CPU threads of each rank; its share of the cores by default.
        timeout_s: Time for each reply, in seconds.
        own_cores: See :func:`dse.launch.start_ranks`; ignored under ``torchrun``.

    Raises:
        ConfigError: The device is unknown, or ``torchrun`` started another number of ranks.
        WorkerError: A rank failed.
    """
    if device not in BACKENDS:
        raise ConfigError(f"device `{device}`; expected one of {', '.join(BACKENDS)}")
    world_size = candidates[0].world_size
    factory = partial(training_worker, tuple(candidates), options)
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
