"""Distinct configurations of a space: those with the same answer taken together.

Which configurations have the same answer is what the workload says of its jobs: the network makes
no difference inside one node, for example.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from itertools import product
from typing import TYPE_CHECKING

from dse.errors import DseError

if TYPE_CHECKING:
    from collections.abc import Hashable

    from dse.search._records import Params
    from dse.search.evaluate._evaluator import Evaluator
    from dse.search.space import SearchSpace

#: Outcomes that are remembered; bounds memory.
_OUTCOMES_KEPT = 20_000


@dataclass(frozen=True, slots=True)
class DistinctConfiguration:
    """A configuration that stands for all with the same answer.

    Attributes:
        parameters: Those of the first in the order of the space.
        equal_count: How many others have the same answer.
        equal_because: Parameters in which they differ, so that these make no difference.
    """

    parameters: Params
    equal_count: int
    equal_because: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Impossible:
    """A configuration that cannot be asked for.

    Attributes:
        parameters: Its parameters.
        reason: Why.
    """

    parameters: Params
    reason: str


@dataclass(frozen=True, slots=True)
class EnumeratedSpace:
    """A space, enumerated.

    Attributes:
        distinct: Every answer once, in the order of the space.
        impossible: Configurations that have no answer.
    """

    distinct: tuple[DistinctConfiguration, ...]
    impossible: tuple[Impossible, ...]


def enumerate_space(space: SearchSpace, evaluator: Evaluator) -> EnumeratedSpace:
    """Looks at every configuration of a space once.

    Args:
        space: A space of at most some hundred thousand configurations.
        evaluator: Says which have the same answer.
    """
    names = [parameter.name for parameter in space.parameters]
    first: dict[Hashable, int] = {}
    members: list[list[Params]] = []
    impossible: list[Impossible] = []
    for chosen in product(*(parameter.choices for parameter in space.parameters)):
        parameters = tuple(zip(names, chosen, strict=True))
        try:
            found = evaluator.outcome(dict(parameters))
        except DseError as error:
            impossible.append(Impossible(parameters, str(error)))
            continue
        except Exception:  # one candidate must not end a study; evaluating it keeps the traceback
            found = parameters
        place = first.setdefault(found, len(members))
        if place == len(members):
            members.append([])
        members[place].append(parameters)
    distinct = tuple(
        DistinctConfiguration(equal[0], len(equal) - 1, _differing(equal)) for equal in members
    )
    return EnumeratedSpace(distinct, tuple(impossible))


def _differing(equal: list[Params]) -> tuple[str, ...]:
    """Returns the names of the parameters that have several values."""
    if len(equal) == 1:
        return ()
    return tuple(
        pairs[0][0] for pairs in zip(*equal, strict=True) if any(p != pairs[0] for p in pairs)
    )


class Canonical:
    """Maps configurations to the one that stands for all with the same answer.

    For spaces that are too large to enumerate: each parameter takes its first choice that leaves
    the answer the same.

    Args:
        space: The space.
        evaluator: Says which configurations have the same answer.
    """

    def __init__(self, space: SearchSpace, evaluator: Evaluator) -> None:
        self._parameters = space.parameters
        self._evaluator = evaluator
        # Samplers come back to the neighbourhood of what is good.
        self._outcome = lru_cache(_OUTCOMES_KEPT)(self._outcome_of)

    def __call__(self, parameters: Params) -> Params:
        """Returns the configuration that stands for this one; itself if it is impossible."""
        chosen = dict(parameters)
        wanted = self._outcome(parameters)
        if wanted is None:
            return parameters
        for parameter in self._parameters:
            name, own = parameter.name, chosen[parameter.name]
            for choice in parameter.choices:
                if choice == own:
                    break
                other = {**chosen, name: choice}
                if self._outcome(tuple(other.items())) == wanted:
                    chosen = other
                    break
        return tuple(chosen.items())

    def _outcome_of(self, parameters: Params) -> Hashable | None:
        try:
            return self._evaluator.outcome(dict(parameters))
        except Exception:  # one candidate must not end a study
            return None
