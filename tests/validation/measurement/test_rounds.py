"""The order of samples, the stopping rule and the budget, on fake ranks with a fake clock."""

from __future__ import annotations

from itertools import count, pairwise
import math

import pytest

from dse.sharding import ShardingType
from dse.validation import BudgetError, MeasureLimits
from dse.validation.measurement._rounds import Rounds
from dse.validation.measurement._worker import Build, Drop, Run, Span
from tests.validation.models import candidate, model

LIMITS = MeasureLimits(budget_s=1e9, sample_s=0.099, max_rounds=10)


class FakeRanks:
    """Two ranks that need given seconds an iteration; the second starts and ends later.

    Building a candidate takes `build_s`; nothing else but iterations takes time.
    """

    world_size = 2

    def __init__(self, *iteration_s, losses=(0.7, 0.7), build_s=0.0):
        self.commands = []
        self.now_s, self._build_s = 1000.0, build_s
        self._losses = losses
        self._iteration_s = [iter(one) for one in iteration_s]

    def ask(self, command):
        self.commands.append(command)
        if isinstance(command, Build):
            self.now_s += self._build_s
        if not isinstance(command, Run):
            return [None, None]
        iteration_s = next(self._iteration_s[command.number])
        seconds = command.iterations * iteration_s
        self.now_s += seconds + command.warm_up * iteration_s
        first, second = self._losses
        return [
            Span(5.0, 5.0 + seconds, 0.5 * seconds, first),
            Span(5.5, 5.5 + seconds, 0.25 * seconds, second),
        ]

    def runs(self):
        return [order for order in self.commands if isinstance(order, Run)]


def measured(
    ranks, limits=LIMITS, *, names="ab", resident=True, one_clock=True, seed=0, on_step=None
):
    made = [candidate(name, model(), 2, [(ShardingType.TABLE_WISE, (0,))] * 4) for name in names]
    return Rounds(
        ranks,
        tuple(made),
        limits,
        resident=resident,
        one_clock=one_clock,
        seed=seed,
        clock=lambda: ranks.now_s,
    ).run(on_step)


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


def long(budget_s):
    """Limits under which a sample is two iterations after a warm-up of one: 3 s at 1 s each."""
    return MeasureLimits(budget_s=budget_s, sample_s=0.1, warm_up=1, max_rounds=10)


def test_a_round_begins_only_if_the_last_one_would_fit_again():
    # Two candidates start in 6 s each (iterations of 1 + 1 and 1 + 3), a round takes 6 s.
    for budget_s, rounds in [(18.1, 1), (29.9, 2), (30.1, 3), (47.9, 5), (48.1, 6)]:
        ranks = FakeRanks(always(1.0), always(1.0))
        found = measured(ranks, long(budget_s))
        assert [len(one.samples) for one in found] == [rounds, rounds]
        assert ranks.now_s - 1000.0 <= budget_s
        assert all(math.isinf(one.low_s) == (rounds < 6) for one in found)
        assert all(one.converged == (rounds >= 6) for one in found)
        # 12 s to start and six rounds of 6 s, with a fifth more for safety.
        assert [one.needed_s for one in found] == pytest.approx([57.6, 57.6])


def test_a_budget_too_short_to_start_all_is_an_error_after_two_starts():
    ranks = FakeRanks(*(always(1.0) for _ in range(9)), build_s=4.0)
    with pytest.raises(BudgetError) as error:
        measured(ranks, long(60.0), names="abcdefghi")
    # A start takes 10 s, so nine take 90 s; a sample takes 3 s.
    assert (error.value.key, error.value.value) == ("budget_s", 60.0)
    assert error.value.share_s == error.value.budget_s == 60.0
    # What was compared: 20 s until now, 70 s for the others, 27 s for a round.
    assert [f"{seconds} s" in error.value.cause for seconds in (20, 70, 27)] == [True] * 3
    assert error.value.needed_s == error.value.limit == pytest.approx(1.2 * 9 * (10 + 6 * 3))
    assert ranks.now_s - 1000.0 == pytest.approx(20.0)


def test_a_start_that_takes_most_of_the_budget_is_the_last_one():
    ranks = FakeRanks(always(1.0), always(1.0), build_s=100.0)
    with pytest.raises(BudgetError):
        measured(ranks, long(150.0))
    assert [order.number for order in ranks.commands if isinstance(order, Build)] == [0]


def test_the_first_start_may_pay_for_what_all_share():
    class Slow(FakeRanks):
        def ask(self, command):
            if command == Build(0):
                self.now_s += 20.0
            return super().ask(command)

    # By the first start alone, 26 s, five would not fit.
    found = measured(Slow(*(always(1.0) for _ in range(5))), long(70.0), names="abcde")
    assert [len(one.samples) for one in found] == [1] * 5


def test_a_budget_without_room_for_a_round_is_an_error():
    with pytest.raises(BudgetError):
        measured(FakeRanks(always(1.0), always(1.0)), long(17.9))


def test_every_step_is_told_before_it_begins():
    ranks, told = FakeRanks(always(1.0), build_s=1.0), []
    measured(ranks, long(18.1), names="a", on_step=lambda words: told.append((words, ranks.now_s)))
    # A start of 7 s, then rounds of 3 s.
    assert told == [
        ("starting candidate 1 of 1", 1000.0),
        ("round 1", pytest.approx(1007.0)),
        ("round 2", pytest.approx(1010.0)),
        ("round 3", pytest.approx(1013.0)),
    ]


def test_times_of_ranks():
    (found,) = measured(FakeRanks(always(0.01)), names="a")
    assert found.rank_times_s == pytest.approx((0.01, 0.01))
    assert found.rank_processor_times_s == pytest.approx((0.005, 0.0025))


def test_candidates_that_do_not_fit_together_are_rebuilt_where_another_was():
    ranks, told = FakeRanks(always(0.01), always(0.02)), []
    measured(ranks, resident=False, on_step=told.append)
    held, built, runs = None, 0, []
    for order in ranks.commands:
        if isinstance(order, Build):
            assert held is None
            held, built = order.number, built + 1
        elif isinstance(order, Drop):
            assert order.number == held
            held = None
        else:
            assert order.number == held
            runs.append(order.number)
    # The short runs of the start, then rounds; the one that ends a round may begin the next.
    assert runs[:4] == [0, 0, 1, 1]
    changes = sum(one != other for one, other in pairwise(runs))
    assert built == 1 + changes < len(runs)
    assert sum("rebuilding" in words for words in told) == built - 2


def test_candidates_that_fit_together_are_built_once():
    kept = FakeRanks(always(0.01), always(0.02))
    measured(kept)
    assert [order.number for order in kept.commands if isinstance(order, Build)] == [0, 1]
    assert not any(isinstance(order, Drop) for order in kept.commands)


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


def test_the_share_of_a_budget_survives_another_process():
    error = BudgetError("starting 1 of 1 took 5 s", 8.0, 20.0, 4.0)
    kind, arguments = error.__reduce__()
    again = kind(*arguments)
    assert (str(again), again.share_s, again.value) == (str(error), 4.0, 8.0)
    assert "4 s" in str(error)
    assert BudgetError("starting 1 of 1 took 9 s", 8.0, 20.0).share_s == 8.0
