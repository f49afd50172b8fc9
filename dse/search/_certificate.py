"""Certificate of a front: how much of it can be missing."""

from __future__ import annotations

from dataclasses import dataclass
import math
from typing import Annotated

from pydantic import Field


@dataclass(frozen=True, slots=True)
class Certificate:
    """What a search has proven about its front.

    Attributes:
        complete: Whether no outcome of the space can be added to the front, but for ties.
        distinct: Distinct outcomes of the space; 0 where they were not enumerated.
        evaluated: Outcomes that were evaluated because they could have been on the front.
        proven_dominated: Outcomes that need no evaluation, since even their optimistic figures are
            dominated. Other sizes of the recommended configuration are evaluated for comparison
            all the same.
        proven_infeasible: Outcomes that no plan makes feasible.
        hypervolume_missing_at_most: What the front can still gain, as a share of the hypervolume
            that it would have then; 0 where it is complete, NaN where it is not known.
        tied: Outcomes that were not evaluated either, since their optimistic figures lead one
            point of the front by less than 0.01 % at most.
    """

    complete: bool
    distinct: int
    evaluated: int
    proven_dominated: int
    proven_infeasible: int
    hypervolume_missing_at_most: Annotated[float, Field(allow_inf_nan=True)]
    tied: int = 0


def stronger(former: Certificate | None, found: Certificate | None) -> Certificate | None:
    """Returns the certificate of one study that proves more, the later one where both prove it.

    What was proven remains so while no trial is lost: a front only grows.

    Args:
        former: What earlier runs have proven.
        found: What the last run has proven, which may have been cut short before it got there.
    """
    if former is None or found is None:
        return found
    return former if _missing(former) < _missing(found) else found


def _missing(certificate: Certificate) -> float:
    """Returns what can be missing, in the order of certificates; unknown shares come last."""
    if certificate.complete:
        return -1.0
    share = certificate.hypervolume_missing_at_most
    return math.inf if math.isnan(share) else share
