"""What a search chose is named in its answer."""

from __future__ import annotations

from dataclasses import replace

from dse.search.analyse import conclude, decide, searched_names, setting_texts
from dse.search.analyse._reasons import group_reasons
from dse.workload import Parameter
from tests.search.analyse.studies import study_of_trials, trial

CHOSEN = (
    ("platform", "a"),
    ("world_size", 8),
    ("network", "slow"),
    ("precision", "fp16"),
    ("communication_precision", "fp8"),
    ("overlap_dense_all_reduce", True),
    ("sharding_types", "table_wise+row_wise"),
    ("launch", "default"),
)


def test_values_in_words():
    record = trial(0, 1e6, 0.1, parameters=CHOSEN)
    assert setting_texts(record, [name for name, _ in CHOSEN]) == [
        "fp16",
        "fp8 on the wire",
        "overlap dense all reduce on",
        "TW+RW",
    ]
    assert setting_texts(record, ["precision"]) == ["fp16"]


def test_the_answer_names_what_was_searched_and_nothing_else():
    parameters = (
        Parameter("world_size", (8, 16)),
        Parameter("precision", ("fp16", "tf32")),
        Parameter("communication_precision", ("fp8",)),
        Parameter("sharding_types", ("table_wise", "table_wise+row_wise")),
    )
    study = replace(study_of_trials(trial(0, 1e6, 0.1, parameters=CHOSEN)), parameters=parameters)
    assert searched_names(study) == ["world_size", "precision", "sharding_types"]
    # The plan says how tables are sharded.
    assert decide(study).take.setup == "fp16"
    assert "fp16" in conclude(study)


def test_reasons_that_differ_in_figures_only_are_one_group():
    reasons = [f"free: {value} %, below the limit of 5 %" for value in (0.0464, 0.03, 4e-05)]
    records = [
        replace(trial(number, 1e6, 0.1), reason=text) for number, text in enumerate(reasons)
    ]
    assert [(group.example, group.count) for group in group_reasons(records)] == [(reasons[0], 3)]
