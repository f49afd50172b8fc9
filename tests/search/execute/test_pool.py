"""Pools of workers, with workers that die as a script says; no process is started."""

from __future__ import annotations

from collections import deque

import pytest

from dse.errors import WorkerError
from dse.search import TrialStatus
from dse.search.evaluate._judge import without_answer
from dse.search.execute._pool import Died, PoolExecutor, Worker
from dse.search.execute._worker import Answer, Started
from tests.search.evaluators import asked


class ScriptedPool(PoolExecutor[Worker]):
    """Workers answer one message a wait, in turn.

    Args:
        deadly: Evaluations of a proposal that kill their worker, by its number.
        problem: Why workers do not start; empty if they do.
        chunks_held: Chunks that a worker has at a time.
    """

    def __init__(self, deadly=None, problem="", chunks_held=1):
        super().__init__(None, 2, chunks_held)
        self.deadly = dict(deadly or {})
        self.problem = problem
        self.waiting = deque()
        self.begun = []
        self.started_count = 0

    def _start(self):
        self.started_count += 1
        worker = Worker()
        self.waiting.append((worker, None))
        return worker

    def _send(self, worker, chunk):
        self.waiting.append((worker, chunk))
        return True

    def _wait(self, *, block):
        if block:
            worker, chunk = self.waiting.popleft()
            yield worker, Started(self.problem) if chunk is None else self.evaluated(chunk)

    def evaluated(self, chunk):
        for proposal in chunk:
            self.begun.append(proposal.number)
            if self.deadly.get(proposal.number, 0) > 0:
                self.deadly[proposal.number] -= 1
                return Died("it was killed")
        records = (
            without_answer(each.number, TrialStatus.INFEASIBLE, "", dict(each.parameters))
            for each in chunk
        )
        return Answer(tuple(records), 0.01 * len(chunk))

    def _stop(self, workers):
        self.waiting = deque(each for each in self.waiting if each[0] not in workers)

    def _abandon(self):
        self._end([worker for worker in self._workers if worker.chunks])

    def _start_error(self, problem):
        return f"workers did not start: {problem}"

    def __exit__(self, *error):
        self._end(list(self._workers))


@pytest.mark.parametrize("chunks_held", [1, 2])
def test_what_a_dead_worker_held_is_evaluated_by_others(chunks_held):
    pool = ScriptedPool({7: 2}, chunks_held=chunks_held)
    records = list(pool.run(asked(20)))
    assert sorted(record.number for record in records) == list(range(20))
    assert all(record.status is TrialStatus.INFEASIBLE for record in records)
    assert pool.begun.count(7) == 3
    assert pool.started_count == 4


@pytest.mark.parametrize("chunks_held", [1, 2])
def test_what_kills_three_workers_fails_after_all_others(chunks_held):
    pool = ScriptedPool({2: 1000}, chunks_held=chunks_held)
    records = list(pool.run(asked(12)))
    assert sorted(record.number for record in records) == list(range(12))
    assert [record.number for record in records if record.status is TrialStatus.FAILED] == [2]
    assert records[-1].number == 2
    assert pool.begun.count(2) == 3


def test_a_round_ends_where_nothing_that_is_left_is_wanted():
    pool = ScriptedPool()
    assert len(list(pool.run(asked(2)))) == 2
    # All workers are idle now: to wait for one would be to wait forever.
    assert list(pool.run(asked(2), lambda _: False)) == []
    assert pool.begun == [0, 1]


def test_whether_a_proposal_is_wanted_is_asked_when_all_answers_so_far_are_taken():
    pool = ScriptedPool()
    taken, asked_with = [], []

    def wanted(proposal):
        asked_with.append((proposal.number, list(taken)))
        return proposal.number != 3

    for record in pool.run(asked(6), wanted):
        taken.append(record.number)
    assert taken == pool.begun == [0, 1, 2, 4, 5]
    # Two workers begin at once; each next proposal waits for an answer.
    assert asked_with == [
        (number, [each for each in range(number - 1) if each != 3]) for number in range(4)
    ] + [(4, [0, 1]), (5, [0, 1, 2])]


@pytest.mark.parametrize("chunks_held", [1, 2])
@pytest.mark.parametrize("deadly", [{}, {3: 2, 25: 1}])
def test_the_next_round_begins_before_the_last_answer_of_this_one(chunks_held, deadly):
    pool = ScriptedPool(deadly, chunks_held=chunks_held)
    everything = asked(40)
    ahead = [everything[start : start + 3] for start in range(20, 32, 3)]
    first = list(pool.run(everything[:20], ahead=lambda: ahead.pop(0) if ahead else ()))
    in_flight = bool(pool.waiting)
    second = list(pool.run(everything[32:]))
    assert {record.number for record in first} >= set(range(20))
    assert {record.number for record in first} <= set(range(32))
    # What was not answered in time follows, and nothing is answered twice.
    assert sorted(record.number for record in [*first, *second]) == list(range(40))
    assert all(record.status is TrialStatus.INFEASIBLE for record in [*first, *second])
    assert in_flight or deadly
    assert not list(pool.run(()))


def test_a_round_does_not_end_with_what_was_begun_ahead():
    pool = ScriptedPool()
    ahead = [asked(12)[2:]]
    answered = list(pool.run(asked(2), ahead=lambda: ahead.pop() if ahead else ()))
    assert {record.number for record in answered} >= {0, 1}
    assert len(answered) < 12
    assert len(answered) + len(list(pool.run(()))) == 12


def test_workers_get_work_before_all_records_of_others_are_taken():
    class EagerPool(ScriptedPool):
        def _wait(self, *, block):
            yield from super()._wait(block=bool(self.waiting))

    pool = EagerPool()
    pool._paces[asked(1)[0].effort].observe(1, 0.01)  # chunks of several
    run = pool.run(asked(20))
    taken = [next(run).number]
    begun = [len(pool.begun)]
    taken.append(next(run).number)
    begun.append(len(pool.begun))
    assert begun[1] > begun[0] > 2
    assert sorted(taken + [record.number for record in run]) == list(range(20))


def test_workers_that_never_start_end_the_run():
    pool = ScriptedPool(problem="No module named 'dse_plugin'")
    with pytest.raises(WorkerError, match=r"^3 workers.*dse_plugin"):
        list(pool.run(asked(1)))


def test_an_abandoned_round_leaves_no_answers():
    pool = ScriptedPool()
    begun_round = pool.run(asked(40))
    next(begun_round)
    begun_round.close()
    assert [record.number for record in pool.run(asked(1))] == [0]
