"""Evening out all loads of all ranks at once, where many ranks are nearly the most loaded.

With hundreds of ranks each load has its own most loaded ranks, and no single exchange lowers the
largest of them: many ranks stand at the same height. Instead of the largest of each load a smooth
function of all ranks is made small, `Σ w_k τ_k Σ_r exp((load_k(r) − m_k) / τ_k)`. Its slope at
the rank with the largest load `m_k` is what that load costs, and less by `e` for each `τ_k` below.
With smaller and smaller `τ_k` it turns into the cost of the largest loads.

The exponential of a sum is a product, so all exchanges of a rank's parts with all parts elsewhere
are one product of two thin matrices.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from dse.workload.dlrm.solver._balance import Balancer

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

#: Least gain of a step, as a share of what one rank adds to the sum on average.
_LEAST_SHARE = 1e-5

#: Least height of the most loaded rank above the mean that is looked at, as a share of the mean.
_LEAST_EXCESS = 1e-3

#: Best exchanges of a rank that are looked at one by one before all are checked.
_LIKELY = 4

#: Largest exponent, of a part that is far larger than what is left to even out; three of them are
#: multiplied.
_MOST = 150.0


class Evener(Balancer):
    """Balances parts by a smooth function of the loads; arguments are :class:`Balancer`'s."""

    def even(self, temperatures: Sequence[tuple[float, int]]) -> None:
        """Takes exchanges that lower the smooth sum; keeps what has the best largest loads.

        Args:
            temperatures: `τ` as a share of what the most loaded rank has above the mean, and the
                most exchanges that are looked for at it, one pair after the other.
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
        """Takes the best exchange of the rank that adds most, again and again."""
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
            # What a rank elsewhere adds once its part has left, before another one comes.
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
        """Takes the best exchange of one of a rank's parts; says whether one gains enough.

        Args:
            source: The rank.
            smooth: What each of its loads adds; shape `(terms,)`.
            factors: By which a part's coming and its leaving multiply that; shape
                `(terms, parts)`.
            without: Coming of each part to `source`, and what its own rank adds without it; shape
                `(2 · terms, parts)`.
            before: What the rank of each part adds; shape `(parts,)`.
            least: Gain from which on an exchange is taken.
        """
        gained, lost = factors
        here = np.flatnonzero(self.rank == source)
        mine = np.concatenate((smooth[:, None] * lost[:, here], gained[:, here]))
        change = mine.T @ without
        change -= smooth.sum() + before
        change[:, self.rank == source] = np.inf
        sources = np.full(len(here), source)
        # Most of the best ones are possible: all are looked at only where the first few are not.
        for attempt in range(_LIKELY + 1):
            if attempt == _LIKELY:
                change[~self._may_exchange(here, sources)] = np.inf
            index = int(np.argmin(change))
            if not change.flat[index] < -least:
                return False
            row, second = divmod(index, change.shape[1])
            one = slice(row, row + 1)
            if attempt == _LIKELY or self._may_exchange(here[one], sources[one], second)[0]:
                break
            change.flat[index] = np.inf
        target = int(self.rank[second])
        self._move(int(here[row]), target)
        self._move(second, source)
        return True
