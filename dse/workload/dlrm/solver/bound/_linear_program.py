"""A linear program that is built row by row and solved by HiGHS."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from numpy.typing import NDArray

#: Status of `milp` for contradicting constraints.
_INFEASIBLE = 2


@dataclass(frozen=True, slots=True)
class Optimum:
    """Solution of a linear program: the least value, and a point that attains it."""

    value: float
    point: NDArray[np.float64]


class LinearProgram:
    """Minimizes one variable under linear constraints."""

    def __init__(self) -> None:
        self._low: list[float] = []
        self._high: list[float] = []
        self._terms: tuple[list[int], list[int], list[float]] = ([], [], [])
        self._limits: list[float] = []
        self._equal_terms: tuple[list[int], list[int], list[float]] = ([], [], [])
        self._equal: list[float] = []

    def variables(self, count: int, low: float = 0.0, high: float = np.inf) -> range:
        """Adds variables and returns their indices."""
        first = len(self._low)
        self._low += [low] * count
        self._high += [high] * count
        return range(first, first + count)

    def at_least(self, terms: Iterable[tuple[int, float]], limit: float) -> None:
        """Demands that a sum of variables times factors is not below a limit."""
        for variable, factor in terms:
            self._terms[0].append(len(self._limits))
            self._terms[1].append(variable)
            self._terms[2].append(-factor)
        self._limits.append(-limit)

    def at_least_each(
        self, variables: NDArray[np.int64], factors: Sequence[float], limits: NDArray[np.float64]
    ) -> None:
        """Demands for each row of variables that their sum times factors is not below a limit.

        Args:
            variables: Shape `(rows, terms)`; negative where a row has no such term.
            factors: Factor of each term, in all rows.
            limits: Limit of each row.
        """
        there = variables >= 0
        rows = np.arange(len(self._limits), len(self._limits) + len(variables))
        self._terms[0].extend(np.broadcast_to(rows[:, None], variables.shape)[there].tolist())
        self._terms[1].extend(variables[there].tolist())
        signed = np.broadcast_to(-np.asarray(factors), variables.shape)
        self._terms[2].extend(signed[there].tolist())
        self._limits.extend((-limits).tolist())

    def at_least_sum(
        self, variable: int, variables: NDArray[np.int64], factors: NDArray[np.float64]
    ) -> None:
        """Demands that a variable is not below a sum of other variables times factors."""
        row = len(self._limits)
        self._terms[0].extend([row] * (1 + len(variables)))
        self._terms[1].append(variable)
        self._terms[1].extend(variables.tolist())
        self._terms[2].append(-1.0)
        self._terms[2].extend(factors.tolist())
        self._limits.append(0.0)

    def equal(self, variables: Sequence[int], factors: Sequence[float], value: float) -> None:
        """Demands that a sum of variables times factors has a value."""
        self._equal_terms[0].extend([len(self._equal)] * len(variables))
        self._equal_terms[1].extend(variables)
        self._equal_terms[2].extend(factors)
        self._equal.append(value)

    def minimize(self, variable: int) -> Optimum | None:
        """Returns the least value of a variable, or None if the constraints contradict each other.

        If the solver gives up, the value is zero: all that is known is that it is not negative.
        """
        from scipy.optimize import Bounds, LinearConstraint, milp
        from scipy.sparse import csc_array

        size, limits = len(self._low), len(self._limits)
        cost = np.zeros(size)
        cost[variable] = 1.0
        (rows, columns, factors), equal = self._terms, self._equal_terms
        # Without integers this is a linear program, which `linprog` hands over more slowly.
        matrix = csc_array(
            (
                factors + equal[2],
                (rows + [limits + row for row in equal[0]], columns + equal[1]),
            ),
            shape=(limits + len(self._equal), size),
        )
        least = np.concatenate((np.full(limits, -np.inf), self._equal))
        found = milp(
            cost,
            bounds=Bounds(np.array(self._low), np.array(self._high)),
            constraints=LinearConstraint(matrix, least, np.array(self._limits + self._equal)),
            # Programs are small, and presolving them takes about as long as solving them.
            options={"presolve": False},
        )
        if found.status == _INFEASIBLE:
            return None
        if found.status != 0:
            return Optimum(0.0, np.zeros(size))
        return Optimum(float(found.fun), np.asarray(found.x))
