"""Options of a replay."""

from __future__ import annotations

from dataclasses import dataclass, field
import math

from dse._text.suggest import hint
from dse.errors import ConfigError
from dse.indices import IndexDistribution, Uniform, Zipf

#: Handling of collectives; `auto` runs them if all ranks are there and mocks them if not.
COLLECTIVE_MODES = ("auto", "run", "mock", "skip")
#: Replayed part: everything, all but collectives, or collectives only.
PARTS = ("all", "compute", "communication")
DEVICES = ("cpu", "cuda")

_ZIPF_ALPHA = 1.05


@dataclass(frozen=True, slots=True)
class ReplayOptions:
    """How traces are replayed.

    Attributes:
        device: `cpu` or `cuda`; tensors of every recorded device live there, or on the CPU if
            they did so when they were recorded.
        iterations: Timed repetitions of the whole range.
        warm_up: Repetitions ahead of them, whose time does not count. Ahead of these, one more
            finds out what can be replayed.
        part: `all`, `compute` (collectives are left out) or `communication` (all else is).
        collectives: `run` over a process group of as many local processes as there are traces,
            `mock` (a local copy takes their place), `skip`, or `auto`: `run` if
            all ranks of all groups are there, else `mock`.
        begin: Annotation with whose first occurrence the range begins; the first node by default.
        end: Annotation with whose end the range ends: the first at or after the beginning; the
            last node by default.
        scale_batch: Factor on the leading size of tensors in which it is the batch.
        batch: Samples of a recorded step; found in the trace by default. Only used for scaling.
        indices: Distribution of indices that are not computed in the trace.
        memory_limit_bytes: Memory that tensors may take at any time, in bytes; what the device
            has left by default.
        threads: Threads of one rank; torch's own choice by default, an equal share of the cores
            if there are several ranks.
        timeout_s: Time after which a rank or a collective that does not answer is an error.
        seed: Seed of what tensors are filled with.
    """

    device: str = "cpu"
    iterations: int = 10
    warm_up: int = 3
    part: str = "all"
    collectives: str = "auto"
    begin: str = ""
    end: str = ""
    scale_batch: float = 1.0
    batch: int | None = None
    indices: IndexDistribution = field(default_factory=Uniform)
    memory_limit_bytes: int | None = None
    threads: int | None = None
    timeout_s: float = 600.0
    seed: int = 0

    def __post_init__(self) -> None:
        for name, value, known in (
            ("device", self.device, DEVICES),
            ("part", self.part, PARTS),
            ("collectives", self.collectives, COLLECTIVE_MODES),
        ):
            if value not in known:
                raise ConfigError(f"{name}: `{value}` is not known; {hint(value, known)}")
        for name, number, least in (
            ("iterations", self.iterations, 1),
            ("warm_up", self.warm_up, 0),
            ("batch", 1 if self.batch is None else self.batch, 1),
            ("threads", 1 if self.threads is None else self.threads, 1),
        ):
            if number < least:
                raise ConfigError(f"{name}: {number} is less than {least}")
        if not (math.isfinite(self.scale_batch) and self.scale_batch > 0):
            raise ConfigError(f"scale_batch: {self.scale_batch} is not a factor above 0")
        if self.memory_limit_bytes is not None and self.memory_limit_bytes <= 0:
            raise ConfigError(f"memory_limit_bytes: {self.memory_limit_bytes} is not above 0")


def parse_indices(text: str) -> IndexDistribution:
    """Returns the distribution that `uniform`, `zipf` or `zipf:1.2` names.

    Raises:
        ConfigError: The text is none of these.
    """
    name, colon, number = text.partition(":")
    if name == "uniform" and not colon:
        return Uniform()
    if name == "zipf":
        try:
            alpha = float(number) if colon else _ZIPF_ALPHA
        except ValueError:
            alpha = math.nan
        if math.isfinite(alpha) and alpha > 0:
            return Zipf(alpha)
    raise ConfigError(f"indices: `{text}` is neither uniform nor zipf[:alpha], such as zipf:1.05")
