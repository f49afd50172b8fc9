"""The front as a table of words."""

from __future__ import annotations

from dataclasses import replace

from dse.report import front_table
from dse.workload import Parameter
from tests.search.analyse.studies import study_of_trials, trial


def test_choices_among_several_have_a_column():
    batch = ("global_batch_size", 65_536)
    records = [
        replace(one, parameters=(("sequence_parallel", answer), batch))
        for one, answer in ((trial(0, 2e6, 0.5), True), (trial(1, 1e6, 0.25), False))
    ]
    study = replace(
        study_of_trials(*records),
        parameters=(
            Parameter("sequence_parallel", (False, True)),
            Parameter("global_batch_size", (65_536,)),
        ),
    )
    heads, rows = front_table(study)
    assert (heads[0], heads[-1]) == ("#", "Sequence parallel")
    assert {row[0]: row[-1] for row in rows} == {"0": "yes", "1": "no"}
