"""The order of samples and the stopping rule, on fake ranks."""

from __future__ import annotations

from itertools import count

import pytest

from dse.sharding import ShardingType
from dse.validation import MeasureLimits
from dse.validation.measurement._rounds import Rounds
from dse.validation.measurement._worker import Build, Drop, Run, Span
from tests.validation.models import candidate, model

LIMITS = MeasureLimits(budget_s=1e9, sample_s=0.099, max_rounds=10)


class FakeRanks:
    """Two ranks that need given seconds an iteration; the second starts and ends later."""

    world_size = 2

    def __init__(self, *iteration_s, losses=(0.7, 0.7)):
        self.commands = []
        self._losses = losses
        self._iteration_s = [iter(one) for one in iteration_s]

    def ask(self, command):
        self.commands.append(command)
        if not isinstance(command, Run):
            return [None, None]
        seconds = command.iterations * next(self._iteration_s[command.number])
        first, second = self._losses
        return [
            Span(5.0, 5.0 + seconds, 0.5 * seconds, first),
            Span(5.5, 5.5 + seconds, 0.25 * seconds, second),
        ]

    def runs(self):
        return [order for order in self.commands if isinstance(order, Run)]


def measured(ranks, limits=LIMITS, *, names="ab", resident=True, one_clock=True, seed=0):
    made = [candidate(name, model(), 2, [(ShardingType.TABLE_WISE, (0,))] * 4) for name in names]
    return Rounds(
        ranks, tuple(made), limits, resident=resident, one_clock=one_clock, seed=seed
    ).run(None)


def always(seconds):
    return (seconds for _ in count())


def test_every_round_has_every_candidate_once_in_changing_order():
    ranks = FakeRanks(always(0.01), always(0.02), always(0.05))
    found = measured(ranks, names="abc")
    assert [one.iteration_time_s for one in found] == pytest.approx([0.01, 0.02, 0.05])
    # Two short runs of each tell how many iterations last 99 ms; steady times settle at once.
    assert [one.iterations_per_sample for one in found] == [10, 5, 2]
    runs = ranks.runs()
    assert [(run.number, run.iterations) for run in runs[:6]] == [
        (number, iterations) for number in range(3) for iterations in (1, 3)
    ]
    rounds = [tuple(run.number for run in runs[start : start + 3]) for start in range(6, 24, 3)]
    assert len(runs) == 24
    assert all(sorted(one) == [0, 1, 2] for one in rounds)
    assert len(set(rounds)) > 1
    assert all(one.converged for one in found)
    assert {run.warm_up for run in runs} == {LIMITS.warm_up}


def test_noise_is_measured_until_the_last_round():
    noisy = iter([0.01, 0.01, *(0.01 * (1 + number % 5) for number in range(10))])
    found = measured(FakeRanks(noisy, always(0.02)))
    assert [len(one.samples) for one in found] == [10, 10]
    assert [one.converged for one in found] == [False, True]
    # Of ten samples the second smallest and the second largest enclose the median.
    assert (found[0].low_s, found[0].high_s) == pytest.approx((0.01, 0.05))
    assert found[0].half_width == pytest.approx(0.02 / 0.03)


def test_a_used_up_budget_ends_after_six_rounds():
    noisy = iter([0.01, 0.01, *(0.01 * (1 + number % 5) for number in range(10))])
    found = measured(FakeRanks(noisy), MeasureLimits(budget_s=0.0), names="a")
    assert len(found[0].samples) == 6


def test_times_of_ranks():
    (found,) = measured(FakeRanks(always(0.01)), names="a")
    assert found.rank_times_s == pytest.approx((0.01, 0.01))
    assert found.rank_processor_times_s == pytest.approx((0.005, 0.0025))


def test_candidates_that_do_not_fit_together_are_rebuilt():
    ranks = FakeRanks(always(0.01), always(0.02))
    measured(ranks, resident=False)
    kinds = [type(order) for order in ranks.commands]
    assert kinds == [Build, Run, Drop] * (len(kinds) // 3)
    held = [order.number for order in ranks.commands]
    assert held[0::3] == held[1::3] == held[2::3]
    kept = FakeRanks(always(0.01), always(0.02))
    measured(kept)
    assert [order.number for order in kept.commands if isinstance(order, Build)] == [0, 1]


def test_without_a_common_clock_the_slowest_rank_counts():
    class Skewed(FakeRanks):
        def ask(self, command):
            replies = super().ask(command)
            if not isinstance(command, Run):
                return replies
            first, second = replies
            # Another machine's clock, and a rank that needs longer.
            return [first, Span(900.0, 900.0 + 2 * (second.end_s - second.start_s), 0.0, 0.7)]

    (found,) = measured(Skewed(always(0.01)), names="a", one_clock=False)
    assert found.iteration_time_s == pytest.approx(0.02)


@pytest.mark.parametrize("loss", [float("nan"), float("inf")])
def test_a_loss_that_is_no_finite_number_on_any_rank_is_told(loss):
    (found,) = measured(FakeRanks(always(0.01), losses=(0.7, loss)), names="a")
    assert found.diverged
    (found,) = measured(FakeRanks(always(0.01)), names="a")
    assert not found.diverged
