from __future__ import annotations

import pytest

from dse.search import TrialStatus
from dse.search._proposals import Proposal
from dse.search.execute._chunks import ChunkQueue, Pace, given_up


def proposals(count):
    return [Proposal(number, (("world_size", 2**number),)) for number in range(count)]


def numbers(chunk):
    return [proposal.number for proposal in chunk]


def taken(queue):
    """All that waits, chunk by chunk."""
    chunks = []
    while queue:
        chunks.append(numbers(queue.take(all_answered=False)))
    return chunks


def pace_of(duration_s):
    pace = Pace()
    pace.observe(4, 4 * duration_s)
    return pace


@pytest.mark.parametrize(
    ("duration_s", "waiting", "workers", "size"),
    [
        (0.1, 1000, 2, 5),  # 0.5 s of work
        (0.03, 1000, 2, 16),
        (2.0, 1000, 2, 1),  # one alone takes longer
        (0.1, 16, 2, 4),  # half of a worker's eight
        (0.1, 3, 2, 1),
        (0.002, 100, 2, 25),  # half of a worker's fifty
        (0.002, 9, 2, 5),  # all of its share: sending it takes as long
        (0.0, 40, 2, 20),  # nothing that a clock could see
    ],
)
def test_chunks_fill_half_a_second_or_half_a_share(duration_s, waiting, workers, size):
    assert pace_of(duration_s).chunk_size(waiting, workers) == size


def test_the_first_chunks_are_single():
    assert Pace().chunk_size(1000, 2) == 1


def test_a_queue_hands_out_everything_once_in_order():
    queue = ChunkQueue(proposals(16), pace_of(0.1), 2)
    chunks = taken(queue)
    assert [number for chunk in chunks for number in chunk] == list(range(16))
    # Halves of a share of what is left: 16 / 4, 12 / 4, 9 // 4, 7 // 4, then one by one.
    assert [len(chunk) for chunk in chunks] == [4, 3, 2, 1, 1, 1, 1, 1, 1, 1]
    assert queue.take(all_answered=True) == ()


def test_what_was_not_begun_comes_next_and_suspects_come_last_and_alone():
    queue = ChunkQueue(proposals(16), pace_of(0.1), 2)
    begun, waiting = queue.take(all_answered=True), queue.take(all_answered=False)
    queue.put_back(waiting)
    queue.put_back_after_death(begun)
    assert len(queue) == 16
    order = taken(queue)
    assert [number for chunk in order for number in chunk] == [*range(4, 16), *range(4)]
    assert order[-4:] == [[0], [1], [2], [3]]


def test_what_may_have_been_begun_is_handed_out_alone_and_no_death_counts_against_it():
    queue = ChunkQueue(proposals(16), pace_of(0.1), 2)
    first, behind = queue.take(all_answered=True), queue.take(idle=False, all_answered=False)
    assert queue.put_back_after_death(first, behind) == ()
    order = taken(queue)
    assert [number for chunk in order for number in chunk] == [*range(7, 16), *range(7)]
    assert order[-7:] == [[number] for number in range(7)]
    # Two deaths later the first chunk has its last attempts left, the other is not there yet.
    for _ in range(2):
        for one in proposals(7)[4:]:
            assert queue.put_back_after_death([one]) == ()
            assert queue.take(idle=False, all_answered=True) == ()
            assert queue.take(all_answered=True) == (one,)
    assert queue.put_back_after_death(proposals(7)[4:5]) == tuple(proposals(7)[4:5])


def test_what_kills_every_worker_is_given_up_by_name_after_all_others():
    queue = ChunkQueue(proposals(3), Pace(), 2)
    assert queue.put_back_after_death(queue.take(all_answered=True)) == ()
    order = [queue.take(all_answered=False) for _ in range(3)]
    assert [numbers(chunk) for chunk in order] == [[1], [2], [0]]
    queue.put_back_after_death(order[-1])
    assert len(queue) == 1
    assert queue.take(all_answered=False) == ()
    last = queue.take(all_answered=True)
    assert queue.put_back_after_death(last) == last
    assert len(queue) == 0
    record = given_up(*last)
    assert record.status is TrialStatus.FAILED
    assert record.parameters == (("world_size", 1),)
    assert record.reason.startswith("3 workers died, each while evaluating it")
