"""CPU affinity of ranks."""

from __future__ import annotations

import os

from hypothesis import given
from hypothesis import strategies as st
import pytest

from dse.launch import start_ranks
from dse.launch._cores import partition_cores
from tests.launch.workers import bound_to

PATIENCE_S = 90.0

linux = pytest.mark.skipif(
    not hasattr(os, "sched_setaffinity"), reason="only Linux binds processes"
)


def machine(physical, sockets=1, siblings_far=True, **files):
    """Returns what reads the topology of a machine with two logical cores a physical one."""
    for core in range(2 * physical):
        of = core % physical if siblings_far else core // 2
        folder = f"sys/devices/system/cpu/cpu{core}/topology"
        files[f"{folder}/core_id"] = f"{of % (physical // sockets)}"
        files[f"{folder}/physical_package_id"] = f"{of // (physical // sockets)}"
    return lambda path: files.get(path, "")


@pytest.fixture
def cores(monkeypatch):
    def set_to(usable):
        monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(usable), raising=False)

    return set_to


def test_siblings_stay_together(cores):
    cores(range(8))
    assert partition_cores(2, machine(4)) == ((0, 4, 1, 5), (2, 6, 3, 7))
    assert partition_cores(4, machine(4, siblings_far=False)) == ((0, 1), (2, 3), (4, 5), (6, 7))


def test_a_rank_stays_on_a_socket(cores):
    cores(range(8))
    assert partition_cores(2, machine(4, sockets=2)) == ((0, 4, 1, 5), (2, 6, 3, 7))
    cores([1, 2, 3, 6])
    assert partition_cores(2, machine(4, sockets=2)) == ((1, 2), (6, 3))


def test_without_topology_cores_go_by_number(cores):
    cores([5, 2, 3])
    assert partition_cores(2, lambda path: "") == ((2,), (3, 5))


def test_too_many_ranks_are_not_bound(cores):
    cores([0, 1])
    assert partition_cores(3, machine(4)) == ()


@given(usable=st.sets(st.integers(0, 63), min_size=1), ranks=st.integers(1, 64))
def test_shares_are_even_and_none_is_given_twice(usable, ranks):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "sched_getaffinity", lambda _: usable, raising=False)
        shares = partition_cores(ranks, machine(32))
    if len(usable) < ranks:
        assert shares == ()
        return
    assert len(shares) == ranks
    assert sorted(core for share in shares for core in share) == sorted(usable)
    sizes = {len(share) for share in shares}
    assert max(sizes) - min(sizes) <= 1


@linux
@pytest.mark.slow
@pytest.mark.skipif(len(getattr(os, "sched_getaffinity", lambda _: [])(0)) < 2, reason="one core")
def test_ranks_have_cores_of_their_own():
    pytest.importorskip("torch")
    options = {"backend": "gloo", "world_size": 2, "threads": 1, "timeout_s": PATIENCE_S}
    usable = os.sched_getaffinity(0)
    with start_ranks(bound_to, **options, own_cores=True) as group:
        first, second = group.ask("which")
    assert first | second == usable
    assert not first & second
    with start_ranks(bound_to, **options) as group:
        assert group.ask("which") == [usable, usable]
