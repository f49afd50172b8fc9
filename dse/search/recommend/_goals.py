"""Goals: a throughput, a deadline, or the most for some money.

Every goal has one form: at a given price it requires a throughput, and it ranks configurations
that reach it. More throughput at the same price never ranks worse and never misses what less would
reach, so a bound on the throughput of a configuration bounds how good it can be.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
import math
from typing import TYPE_CHECKING

from dse._text.digits import significant
from dse.config import UnitKind, format_quantity, parse_count, parse_quantity, parse_rate
from dse.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Callable

_SECONDS_PER_HOUR = 3600.0

#: Orders configurations; less is better.
Rank = tuple[float, ...]


@dataclass(frozen=True, slots=True)
class Goal(ABC):
    """What a configuration has to reach, and which of those that reach it is best."""

    @abstractmethod
    def required_per_s(self, price_usd_per_hour: float) -> float:
        """Returns the samples per second that a configuration of that price has to reach.

        Infinite where nothing of that price is good enough.
        """

    @abstractmethod
    def rank(self, throughput_per_s: float, price_usd_per_hour: float) -> tuple[float, float]:
        """Orders configurations that reach the goal; less is better."""

    @property
    @abstractmethod
    def text(self) -> str:
        """The goal as a clause: `the cheapest that …`."""

    @property
    @abstractmethod
    def counts_samples(self) -> bool:
        """Whether it was stated in samples, not in tokens or in money alone."""


@dataclass(frozen=True, slots=True)
class Target(Goal):
    """The cheapest machines that reach a throughput.

    Attributes:
        samples_per_s: The throughput.
        tokens_per_sample: Tokens of one sample where it was stated in tokens; else 0.
    """

    samples_per_s: float
    tokens_per_sample: int = 0

    def __post_init__(self) -> None:
        _check("target", self.samples_per_s)

    def required_per_s(self, price_usd_per_hour: float) -> float:
        """The target, at any price."""
        del price_usd_per_hour
        return self.samples_per_s

    def rank(self, throughput_per_s: float, price_usd_per_hour: float) -> tuple[float, float]:
        """By price, then by throughput."""
        return price_usd_per_hour, -throughput_per_s

    @property
    def text(self) -> str:
        """The goal as a clause."""
        rate = f"{_given_amount(self.samples_per_s, self.tokens_per_sample)}/s"
        return f"the cheapest that reaches {rate}"

    @property
    def counts_samples(self) -> bool:
        """Whether it was stated in samples."""
        return not self.tokens_per_sample


@dataclass(frozen=True, slots=True)
class Deadline(Goal):
    """The cheapest job that ends in time.

    Attributes:
        deadline_s: Seconds that it may take.
        samples: Samples of the whole job.
        tokens_per_sample: Tokens of one sample where it was stated in tokens; else 0.
    """

    deadline_s: float
    samples: float
    tokens_per_sample: int = 0

    def __post_init__(self) -> None:
        _check("deadline", self.deadline_s)
        _check("samples", self.samples)

    def required_per_s(self, price_usd_per_hour: float) -> float:
        """All samples in the time, at any price."""
        del price_usd_per_hour
        return self.samples / self.deadline_s

    def rank(self, throughput_per_s: float, price_usd_per_hour: float) -> tuple[float, float]:
        """By the cost of the job, then by throughput."""
        return (
            job_cost_usd(self.samples, throughput_per_s, price_usd_per_hour),
            -throughput_per_s,
        )

    @property
    def text(self) -> str:
        """The goal as a clause."""
        length, unit = _time_unit(self.deadline_s)
        return (
            f"the cheapest that trains {_given_amount(self.samples, self.tokens_per_sample)} in "
            f"{self.deadline_s / length:.3g} {unit}"
        )

    @property
    def counts_samples(self) -> bool:
        """Whether it was stated in samples."""
        return not self.tokens_per_sample


@dataclass(frozen=True, slots=True)
class Budget(Goal):
    """The fastest job for the money.

    Attributes:
        budget_usd: What it may cost.
        samples: Samples of the whole job.
        tokens_per_sample: Tokens of one sample where it was stated in tokens; else 0.
    """

    budget_usd: float
    samples: float
    tokens_per_sample: int = 0

    def __post_init__(self) -> None:
        _check("budget", self.budget_usd)
        _check("samples", self.samples)

    def required_per_s(self, price_usd_per_hour: float) -> float:
        """All samples before the money is gone."""
        return self.samples * price_usd_per_hour / (_SECONDS_PER_HOUR * self.budget_usd)

    def rank(self, throughput_per_s: float, price_usd_per_hour: float) -> tuple[float, float]:
        """By throughput, then by price."""
        return -throughput_per_s, price_usd_per_hour

    @property
    def text(self) -> str:
        """The goal as a clause."""
        return (
            f"the fastest that trains {_given_amount(self.samples, self.tokens_per_sample)} for "
            f"{format_quantity(self.budget_usd, UnitKind.MONEY)}"
        )

    @property
    def counts_samples(self) -> bool:
        """Whether it was stated in samples."""
        return not self.tokens_per_sample


@dataclass(frozen=True, slots=True)
class HourlyBudget(Goal):
    """The fastest machines that cost no more an hour.

    Attributes:
        usd_per_hour: What all of them together may cost an hour.
    """

    usd_per_hour: float

    def __post_init__(self) -> None:
        _check("budget", self.usd_per_hour)

    def required_per_s(self, price_usd_per_hour: float) -> float:
        """Anything, unless it costs more."""
        return 0.0 if price_usd_per_hour <= self.usd_per_hour else math.inf

    def rank(self, throughput_per_s: float, price_usd_per_hour: float) -> tuple[float, float]:
        """By throughput, then by price."""
        return -throughput_per_s, price_usd_per_hour

    @property
    def text(self) -> str:
        """The goal as a clause."""
        return f"the fastest for at most {format_quantity(self.usd_per_hour, UnitKind.PRICE)}"

    @property
    def counts_samples(self) -> bool:
        """It counts nothing."""
        return False


def job_cost_usd(samples: float, throughput_per_s: float, price_usd_per_hour: float) -> float:
    """Returns what a job costs by the second, without the start of its machines."""
    return price_usd_per_hour * samples / (_SECONDS_PER_HOUR * throughput_per_s)


def format_rate(samples_per_s: float, digits: int = 4, *, tokens_per_sample: int = 0) -> str:
    """Prints a throughput with a suffix.

    Args:
        samples_per_s: The throughput.
        digits: Significant digits.
        tokens_per_sample: Tokens of a sample, to print tokens; 0 to print samples.
    """
    count, unit = _in_units(samples_per_s, tokens_per_sample)
    return f"{significant(count, digits)} {unit}/s"


def _given_amount(samples: float, tokens_per_sample: int) -> str:
    """Prints a number of samples, or of their tokens, as it was asked for."""
    count, unit = _in_units(samples, tokens_per_sample)
    return f"{count:.4g} {unit}"


def _in_units(samples: float, tokens_per_sample: int) -> tuple[float, str]:
    """Returns a number of samples, or of their tokens, in its unit, which has a suffix."""
    noun, count = "samples", samples
    if tokens_per_sample:
        noun, count = "tokens", samples * tokens_per_sample
    for limit, suffix in ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k")):
        if count >= limit:
            return count / limit, f"{suffix} {noun}"
    return count, noun


def format_duration(seconds: float) -> str:
    """Prints a duration in the largest unit of which it has at least one."""
    length, unit = _time_unit(seconds)
    return f"{significant(seconds / length)} {unit}"


def _time_unit(seconds: float) -> tuple[float, str]:
    """Returns the largest unit of which a duration has at least one, and its name."""
    units = ((86400.0, "days"), (3600.0, "h"), (60.0, "min"))
    return next((each for each in units if seconds >= each[0]), (1.0, "s"))


def _check(name: str, value: float) -> None:
    if not (math.isfinite(value) and value > 0):
        raise ConfigError(f"{name} {value:g}; expected a finite number above 0")


def parse_goal(
    *,
    target: str = "",
    deadline: str = "",
    budget: str = "",
    samples: str = "",
    tokens_per_sample: int = 0,
) -> Goal:
    """Returns the goal that texts state.

    Args:
        target: Throughput, such as ``10M samples/s``, ``1M tokens/s`` or ``10B tokens/day``.
        deadline: Time for `samples`, such as ``3h``.
        budget: Money for `samples`, such as ``500USD``, or for an hour, ``100USD/h``.
        samples: Samples of the whole job, such as ``4.2G``, or its tokens: ``15T tokens``.
        tokens_per_sample: Tokens of one sample of the model; 0 if it has none.

    Raises:
        ConfigError: A text cannot be read, the texts do not state exactly one goal, or they count
            tokens of a model that has none.
    """
    if len([text for text in (target, deadline, budget) if text]) != 1:
        raise ConfigError(
            "give exactly one of target (`10M samples/s`), deadline (`3h`, with samples "
            "`4.2G`) and budget (`500USD` with samples, or `100USD/h`)"
        )
    hourly = "/" in budget
    if samples and (target or hourly):
        raise ConfigError("samples go with a deadline, or with a budget for the whole job")
    if not samples and not (target or hourly):
        name = "deadline" if deadline else "budget"
        raise ConfigError(f"{name}: say how much is trained, such as samples 4.2G")
    if target:
        return Target(*_counted("target", target, parse_rate, tokens_per_sample))
    if hourly:
        return HourlyBudget(
            _read("budget", budget, lambda text: parse_quantity(text, UnitKind.PRICE))
        )
    count = _counted("samples", samples, parse_count, tokens_per_sample)
    if deadline:
        seconds = _read("deadline", deadline, lambda text: parse_quantity(text, UnitKind.TIME))
        return Deadline(seconds, *count)
    return Budget(
        _read("budget", budget, lambda text: parse_quantity(text, UnitKind.MONEY)), *count
    )


def _counted(
    name: str, text: str, read: Callable[[str, str], float], tokens_per_sample: int
) -> tuple[float, int]:
    """Returns a number in samples, and the tokens of one if it was stated in tokens."""
    if "token" not in text:
        return _read(name, text, lambda given: read(given, "samples")), 0
    if not tokens_per_sample:
        raise ConfigError(f"{name}: samples of this model have no tokens; give it in samples")
    tokens = _read(name, text, lambda given: read(given, "tokens"))
    return tokens / tokens_per_sample, tokens_per_sample


def _read(name: str, text: str, read: Callable[[str], float]) -> float:
    try:
        return read(text)
    except ValueError as error:
        raise ConfigError(f"{name}: {error}") from error
