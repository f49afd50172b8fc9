"""Proposals: what is to be found out about a configuration, and how thoroughly."""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from dse.search._records import Params


class Effort(IntEnum):
    """How thoroughly a configuration is looked at; more effort takes longer and says more.

    ``OPTIMISTIC``: values that it cannot beat, in less than a millisecond. ``SHARED_BOUND``:
    closer ones of a configuration that is never slower, which many share; where plans are
    searched, the lower bound on all of them. ``OWN_BOUND``: closer ones of its own. ``QUICK``: its
    prediction, with a plan found quickly. ``THOROUGH``: its prediction with the plan that
    :func:`dse.shard` finds.
    """

    OPTIMISTIC = 0
    SHARED_BOUND = 1
    OWN_BOUND = 2
    QUICK = 3
    THOROUGH = 4


@dataclass(frozen=True, slots=True)
class Proposal:
    """One configuration to look at.

    Attributes:
        number: Position among all proposals and rejections of the study.
        parameters: Value of every outer parameter, in the space's order.
        effort: How thoroughly.
        incumbent_s: Time of the best plan known, towards which a bound of its own is refined as
            by :func:`dse.shard`; None for a quick bound.
    """

    number: int
    parameters: Params
    effort: Effort = Effort.QUICK
    incumbent_s: float | None = None


@dataclass(frozen=True, slots=True)
class Rejection:
    """One configuration that breaks a hard limit.

    Attributes:
        number: As in `Proposal`.
        parameters: As in `Proposal`.
        reason: Why.
    """

    number: int
    parameters: Params
    reason: str


@dataclass(frozen=True, slots=True)
class Batch:
    """Proposals of one round.

    Attributes:
        proposals: New configurations to evaluate, in the order of proposing.
        rejections: Configurations over a hard limit that were proposed as well.
        bounds: Configurations to bound before it is decided whether to evaluate them; numbered on
            their own.
    """

    proposals: tuple[Proposal, ...]
    rejections: tuple[Rejection, ...] = ()
    bounds: tuple[Proposal, ...] = ()
