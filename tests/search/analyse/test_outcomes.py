from __future__ import annotations

from dataclasses import replace

import pandas as pd

from dse.search._directory import StudyDirectory
from dse.search.analyse import front_outcomes
from dse.workload import Parameter
from tests.search.analyse.studies import study_of_trials, trial


def with_network(record, network):
    parameters = tuple({**dict(record.parameters), "network": network}.items())
    configuration = replace(record.configuration, parameters=parameters)
    return replace(record, parameters=parameters, configuration=configuration)


def twins():
    """Five trials, of which the first, the second and the last come to the same."""
    first = trial(0, 2e6, 0.5)
    other = replace(with_network(first, "fast"), number=1, equal_count=2)
    tie = trial(2, 2e6, 0.5, platform="b")
    slow = trial(3, 1e6, 0.6)
    rounded = first.prediction.iteration_time_s * (1 + 1e-12)
    last = replace(
        first,
        number=4,
        prediction=replace(first.prediction, iteration_time_s=rounded),
        equal_because=("world_size",),
    )
    return study_of_trials(first, other, tie, slow, last)


def test_the_first_of_equal_trials_stands_for_all():
    study = twins()
    assert [record.number for record in study.front] == [0, 2]
    first, tie = front_outcomes(study)
    assert first.record.number == 0
    assert first.equal == 4
    assert first.because == ("world_size", "network")
    # Other machines are another outcome, even where all figures agree.
    assert (tie.record.number, tie.equal, tie.because) == (2, 0, ())


def test_the_table_of_the_front_has_one_row_an_outcome(tmp_path):
    directory = StudyDirectory(tmp_path)
    directory.write_tables(twins(), [Parameter("network", ("default", "fast"))])
    front = pd.read_csv(directory.pareto)
    assert list(front["number"]) == [0, 2]
    assert list(front["equal_configurations"]) == [4, 0]
    assert list(pd.read_csv(directory.trials)["equal_configurations"]) == [0, 2, 0, 0, 0]
