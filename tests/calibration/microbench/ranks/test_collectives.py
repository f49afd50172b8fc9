"""Collectives over local ranks; those with real processes are in test_machine."""

from __future__ import annotations

import pytest

from dse.calibration.microbench import MeasureSettings, Purpose
from dse.calibration.microbench.plan import CollectivePoint
from dse.calibration.microbench.ranks import LocalRanks, RefusedCollectiveError
from dse.calibration.microbench.ranks._collectives import Prepare, Refusal, Repeat

SETTINGS = MeasureSettings(min_repeats=12, max_repeats=12, warm_up_s=0.0)
POINT = CollectivePoint("broadcast", 2, 64, Purpose.FIT)


class MadeUpRanks:
    """Two ranks: the first waits for the second, which starts and ends last."""

    def __init__(self, refusal=None):
        self.orders = []
        self._refusal = refusal

    def ask(self, order):
        self.orders.append(order)
        if isinstance(order, Repeat):
            return [[(1.0, 1.75)] * order.count, [(1.5, 2.0)] * order.count]
        return [self._refusal, self._refusal]


def test_a_repeat_lasts_from_the_last_start_to_the_last_end():
    ranks = MadeUpRanks()
    sample = LocalRanks(ranks).measure(POINT, SETTINGS)
    assert (sample.time_s, sample.half_width_s, sample.repeats) == (0.5, 0.0, 12)
    assert ranks.orders[0] == Prepare("broadcast", 64)


def test_a_refusal_is_an_error_with_its_reason():
    with pytest.raises(RefusedCollectiveError, match="no memory"):
        LocalRanks(MadeUpRanks(Refusal("no memory"))).measure(POINT, SETTINGS)
