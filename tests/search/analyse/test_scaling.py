from __future__ import annotations

import pytest

from dse.search import TrialStatus
from dse.search.analyse import scaling
from tests.search.analyse.studies import study_of_trials, trial


def test_the_fastest_of_each_place_and_its_efficiency():
    study = study_of_trials(
        trial(0, 1e6, 1.0, world_size=2, batch=100),
        trial(1, 2e6, 1.0, world_size=2, batch=200),
        trial(2, 1.5e6, 1.0, world_size=2, batch=200),
        trial(3, 3e6, 1.0, world_size=4, batch=200),
        trial(4, 9e6, 1.0, world_size=4, batch=200, status=TrialStatus.INFEASIBLE),
        trial(5, 9e6, 1.0, platform="b"),
    )
    (found,) = scaling(study)
    assert (found.platform, found.counts) == ("a", "samples")
    assert (found.world_sizes, found.batches) == ((2, 4), (100, 200))
    assert [point.number for point in found.points] == [0, 1, 3]
    # A rank does 1 M samples/s at best on two ranks.
    assert [point.efficiency for point in found.points] == pytest.approx([0.5, 1.0, 0.75])
    assert found.at(4, 100) is None
    assert found.at(4, 200).number == found.best(4).number == 3


def test_one_place_alone_does_not_scale():
    assert scaling(study_of_trials(trial(0, 1e6, 1.0), trial(1, 2e6, 2.0))) == ()
