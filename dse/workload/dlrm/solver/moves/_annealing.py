"""Annealed balancing of all loads of all ranks at once, for many almost equally loaded ranks.

With hundreds of ranks, many are close to the largest of some load, and no single exchange lowers
that maximum. Instead of the maximum, a smooth function of all ranks is minimized,
`Σ w_k τ_k Σ_r exp((load_k(r) − m_k) / τ_k)`. Its slope at the rank with the largest load `m_k` is
the cost of that load, and smaller by a factor `e` for each `τ_k` below. As the temperatures `τ_k`
fall it turns into the cost of the largest loads.

The exponential of a sum is a product, so all exchanges of a rank's shards with all shards
elsewhere are one product of two thin matrices.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from dse.workload.dlrm.solver.moves._balance import Balancer

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

#: Least gain of a step, as a share of what one rank adds to the sum on average.
_LEAST_SHARE = 1e-5

#: Least excess of the most loaded rank over the mean that is considered, as a share of the mean.
_LEAST_EXCESS = 1e-3

#: Best exchanges of a rank that are checked one by one before all are checked.
_LIKELY = 4

#: Largest exponent, for a shard far larger than the remaining imbalance; three of them are
#: multiplied.
_MOST = 150.0


class AnnealingBalancer(Balancer):
    """Balances shards by a smooth function of the loads; has the arguments of `Balancer`."""

    def anneal(self, temperatures: Sequence[tuple[float, int]]) -> None:
        """Lowers the smooth sum by exchanges; keeps the places with the best objective.

        Args:
            temperatures: Pairs, in turn: `τ` as a share of the most loaded rank's excess over the
                mean, and the most exchanges to look for at that temperature.
        """
        if not self._count or self._ranks < 2 or not len(self._on):
            return
        best, value = self._save(), self.value()
        for share, steps in temperatures:
            self._descend_smooth(share, steps)
            found = self.value()
            if found < value:
                best, value = self._save(), found
        self._restore(best)

    def _descend_smooth(self, share: float, steps: int) -> None:
        """Applies the best exchange of the rank that adds most, again and again."""
        total = self._total[self._on]
        largest, mean = total.max(axis=1), total.mean(axis=1)
        excess = np.maximum(largest - mean, _LEAST_EXCESS * np.maximum(mean, 1e-300))
        scale = share * excess
        per_load = np.diff(np.append(self._starts, len(self._on)))
        weights = np.repeat(self._weights, per_load) * scale
        exponents = np.clip(self._counted / scale[:, None], -_MOST, _MOST)
        gained, lost = np.exp(exponents), np.exp(-exponents)
        left = steps
        while left > 0 and not self._stop():
            height = np.minimum((self._total[self._on] - largest[:, None]) / scale[:, None], _MOST)
            smooth = np.exp(height) * weights[:, None]
            by_rank = smooth.sum(axis=0)
            least = _LEAST_SHARE * float(by_rank.mean())
            # What another rank adds once its shard has left, before a new one arrives.
            without = np.concatenate((gained, smooth[:, self.rank] * lost))
            before = by_rank[self.rank]
            for source in np.argsort(-by_rank, kind="stable").tolist():
                left -= 1
                if self._take_best(
                    source, smooth[:, source], (gained, lost), without, before, least
                ):
                    break
                if left <= 0 or self._stop():
                    return
            else:
                return

    def _take_best(
        self,
        source: int,
        smooth: NDArray[np.float64],
        factors: tuple[NDArray[np.float64], NDArray[np.float64]],
        without: NDArray[np.float64],
        before: NDArray[np.float64],
        least: float,
    ) -> bool:
        """Applies the best exchange of one of a rank's shards, if it gains enough.

        Returns whether it did.

        Args:
            source: The rank.
            smooth: What each of its loads adds; shape `(terms,)`.
            factors: Factors on that when a shard arrives, and when it leaves; shape
                `(terms, shards)`.
            without: Factor of each shard arriving at `source`, and what its own rank adds without
                it; shape `(2 · terms, shards)`.
            before: What the rank of each shard adds; shape `(shards,)`.
            least: Smallest gain of an exchange.
        """
        gained, lost = factors
        here = np.flatnonzero(self.rank == source)
        mine = np.concatenate((smooth[:, None] * lost[:, here], gained[:, here]))
        change = mine.T @ without
        change -= smooth.sum() + before
        change[:, self.rank == source] = np.inf
        sources = np.full(len(here), source)
        # Most of the best exchanges are allowed, so all are checked only if the first few are not.
        for attempt in range(_LIKELY + 1):
            if attempt == _LIKELY:
                change[~self._may_exchange(here, sources)] = np.inf
            index = int(np.argmin(change))
            if not change.flat[index] < -least:
                return False
            row, second = divmod(index, change.shape[1])
            first = slice(row, row + 1)
            if attempt == _LIKELY or self._may_exchange(here[first], sources[first], second)[0]:
                break
            change.flat[index] = np.inf
        target = int(self.rank[second])
        self._move(int(here[row]), target)
        self._move(second, source)
        return True
