"""Jobs and studies by name, as `import dse` offers them."""

from __future__ import annotations

import math
import pickle
import re
import sys
from typing import TYPE_CHECKING, Any

import pytest
import yaml

import dse
from dse.errors import ConfigError, OptionalDependencyError, StudyError, UnknownNameError
from dse.sharding import ShardingPlan, ShardingType, TablePlan, plan_to_json
from tests.conftest import ROOT
from tests.search.traces import CAPTURED_S, HALVED_S, write_job

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

SPACE = {
    "schema_version": 1,
    "name": "tiny",
    "workload": {"model": "dlrm_tiny"},
    "parameters": {
        "platform": ["a100_sxm_80", "h100_sxm"],
        "world_size": [2, 4],
        "global_batch_size": [1024, 2048, 4096],
    },
    "objectives": [
        {"metric": "throughput_samples_per_s", "direction": "maximize"},
        {"metric": "price_usd_per_hour", "direction": "minimize"},
    ],
    "search": {"sampler": "random", "trials": 4},
}


SIZE = {"world_size": 2, "global_batch_size": 4096}


def linear(parameters: Mapping[str, object]) -> float:
    """A cost model: every rank handles a million samples a second."""
    return int(str(parameters["global_batch_size"])) / (1e6 * int(str(parameters["world_size"])))


def study_of(tmp_path: Path, **settings: str) -> dse.Study:
    return dse.create_study(SPACE, out=tmp_path / "study", executor="serial", seed=0, **settings)


def measured(parameters: Mapping[str, object]) -> dict[str, float]:
    """Returns a throughput that does not follow from the iteration time."""
    return {"iteration_time_s": 0.5, "throughput_samples_per_s": 7.0}


def misnamed(parameters: Mapping[str, object]) -> dict[str, float]:
    return {"iteration_time_s": 0.5, "speed": 7.0}


def test_a_job_is_predicted_explained_and_weighed_from_names() -> None:
    job = dse.Job("dlrm_tiny", "h100_sxm", world_size=2, global_batch_size=4096)
    prediction = job.predict()
    assert prediction.feasible
    assert prediction.throughput_samples_per_s == pytest.approx(4096 / prediction.iteration_time_s)
    assert job.explain().iteration_time_s == pytest.approx(prediction.iteration_time_s)
    assert job.memory() == prediction.memory
    assert job.graph().graph.task_count > 0


def test_a_job_takes_the_parameters_of_its_kind() -> None:
    one = dse.Job("gpt_1_7b", "a100_sxm_80", world_size=8, global_batch_size=64)
    split = dse.Job("gpt_1_7b", "a100_sxm_80", world_size=8, global_batch_size=64, tensor=8)
    assert one.predict().iteration_time_s != split.predict().iteration_time_s


def test_a_plan_that_was_searched_can_be_predicted() -> None:
    job = dse.Job("dlrm_tiny", "h100_sxm", world_size=2, global_batch_size=4096)
    solution = job.shard()
    assert job.predict(solution.plan).feasible
    assert job.predict(solution) == job.predict(solution.plan)
    with pytest.raises(ConfigError, match="not of type dict"):
        job.predict({"tables": {}})


def test_values_are_those_of_search_spaces() -> None:
    """A switch is one by its name too, and one value may be a mapping or a list."""
    size = {"world_size": 2, "global_batch_size": 8, "tensor": 2}

    def seconds(switch: object) -> float:
        choice = dse.Job("llama3_8b", "h100_sxm", **size, sequence_parallel=switch)
        return choice.predict().iteration_time_s

    assert seconds(True) == seconds("true") != seconds(False) == seconds("false")
    for wrong in ("banana", [True, False]):
        with pytest.raises(ConfigError):
            seconds(wrong)
    parameters = {
        "communication_precision": {"forward": "fp16", "backward": "bf16"},
        "compute_kernels": ["fused", "fused_uvm"],
    }
    job = dse.Job("dlrm_tiny", "h100_sxm", world_size=2.0, global_batch_size=4096, **parameters)
    assert job.parameters["communication_precision"] == "fp16/bf16"
    assert job.parameters["compute_kernels"] == "fused+fused_uvm"
    assert job.parameters["world_size"] == 2
    with pytest.raises(ConfigError, match="exactly one of"):
        dse.Job("dlrm_tiny", "h100_sxm", **SIZE, local_batch_size=2048)


def test_what_cannot_be_is_refused_by_name() -> None:
    job = dse.Job("dlrm_tiny", "h100_sxm", world_size=2, global_batch_size=4096)
    for types in (["tablewise"], "tablewise"):
        with pytest.raises(UnknownNameError):
            job.shard(allowed_types=types)
    with pytest.raises(ConfigError, match="list of plans"):
        dse.rank("plan.json", "dlrm_tiny", "h100_sxm", global_batch_size=4096)
    for goal in ({"target": 1e6}, {"deadline": "3h", "samples": 4.2e9}):
        with pytest.raises(ConfigError, match="expected a text"):
            dse.recommend("dlrm_tiny", **goal)
    size = {"world_size": 2, "global_batch_size": 4096}
    with pytest.raises(UnknownNameError, match="basis"):
        dse.predict("dlrm_tiny", "h100_sxm", **size, price_basis="nope")
    machine = dse.load_platform("h100_sxm")
    for sizes, ranks in ((float("nan"), 8), (-1.0, 8), ([1.0, float("inf")], 8), (1e6, 2.5)):
        with pytest.raises(ConfigError):
            machine.collective_time("all_reduce", sizes, ranks)
    with pytest.raises(ConfigError):
        dse.collective("all_reduce", "h100_sxm", size=float("inf"), world_size=8)
    for trials in (0, -1):
        with pytest.raises(ConfigError):
            dse.create_study(SPACE).optimize(trials)
        with pytest.raises(ConfigError):
            dse.run(SPACE, trials=trials)


def test_the_functions_answer_as_jobs_do() -> None:
    choice = {"world_size": 2, "global_batch_size": 4096}
    job = dse.Job("dlrm_tiny", "h100_sxm", **choice)
    assert dse.predict("dlrm_tiny", "h100_sxm", **choice) == job.predict()
    assert dse.shard("dlrm_tiny", "h100_sxm", **choice).plan == job.shard().plan


@pytest.mark.parametrize(
    ("workload", "parameters"),
    [
        ("dlrm_tiny", {"tensor": 8}),
        ("gpt_1_7b", {"tensr": 8}),
        ("dlrm_tiny", {"precision": "fp7"}),
        ("dlrm_tiy", {}),
    ],
)
def test_names_that_do_not_exist_are_refused(workload: str, parameters: dict[str, int]) -> None:
    with pytest.raises(ConfigError):
        dse.Job(workload, "h100_sxm", world_size=2, global_batch_size=4096, **parameters)


@pytest.fixture(scope="module")
def captured(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of two ranks' traces with a file of steps beside it."""
    folder = tmp_path_factory.mktemp("captured")
    write_job(folder)
    return folder / "run"


@pytest.mark.parametrize("wrong", [3, None, [], object()])
def test_what_is_neither_a_name_nor_an_object_of_that_kind_is_refused(wrong: Any) -> None:
    for call in (
        lambda: dse.Job(wrong, "h100_sxm", **SIZE),
        lambda: dse.Job("dlrm_tiny", wrong or 0, **SIZE),
        lambda: dse.run(wrong),
    ):
        with pytest.raises(ConfigError) as found:
            call()
        assert not isinstance(found.value, UnknownNameError)


def test_a_job_is_not_a_workload() -> None:
    job = dse.Job("dlrm_tiny", "h100_sxm", **SIZE)
    with pytest.raises(ConfigError, match=r"call its own predict\(\)"):
        dse.predict(job, "h100_sxm", **SIZE)  # type: ignore[arg-type]


def test_a_captured_step_is_a_workload_with_a_machine_and_ranks_of_its_own(captured: Path) -> None:
    job = dse.Job(captured)
    assert job.platform is not None
    assert job.platform.name == "v100_dgx1"
    prediction = job.predict()
    assert prediction.iteration_time_s == pytest.approx(CAPTURED_S)
    # Two of eight devices are a whole node to rent.
    assert prediction.price_usd_per_hour == pytest.approx(31.212)
    assert job.explain().iteration_time_s == pytest.approx(CAPTURED_S)
    # Neither an interval nor samples are known.
    assert repr(prediction) == "Prediction(0.6900 ms, feasible)"
    assert dse.predict(str(captured)).iteration_time_s == prediction.iteration_time_s
    with pytest.raises(ConfigError):
        job.shard()


def test_a_captured_step_is_changed_by_the_parameters_of_search_spaces(captured: Path) -> None:
    steps = str(captured.parent / "halved.yaml")
    job = dse.Job({"trace": str(captured), "samples_per_step": 128}, optimizations=[steps])
    prediction = job.predict()
    assert prediction.iteration_time_s == pytest.approx(HALVED_S)
    assert prediction.throughput_samples_per_s == pytest.approx(128 / HALVED_S)
    assert repr(prediction) == "Prediction(0.6400 ms, 200,000 samples/s, feasible)"
    assert repr(job) == f"Job(run on v100_dgx1, optimizations={steps})"


def test_a_captured_step_moves_to_a_platform_by_name_path_mapping_or_object(
    captured: Path,
) -> None:
    ways = ("h100_sxm", ROOT / "platforms" / "h100_sxm.yaml", dse.load_platform("h100_sxm"))
    found = {
        (prediction.iteration_time_s, prediction.price_usd_per_hour)
        for prediction in (dse.predict(captured, way) for way in ways)
    }
    ((moved_s, price),) = found
    assert moved_s < CAPTURED_S
    assert price == pytest.approx(55.04)
    cheap = {"from": "h100_sxm", "price": "2 USD/GPU/h"}
    assert dse.predict(captured, cheap).price_usd_per_hour == pytest.approx(2 * 2)
    with pytest.raises(ConfigError, match="captured step can move to"):
        dse.Job(captured, dse.load_platform(cheap))


@pytest.mark.parametrize("optimizations", [[], ["network=2x"]])
def test_the_platform_of_a_captured_step_may_be_named(
    captured: Path, optimizations: list[str]
) -> None:
    same = dse.predict(captured, optimizations=optimizations)
    for way in ("v100_dgx1", ROOT / "platforms" / "v100_dgx1.yaml"):
        named = dse.predict(captured, way, optimizations=optimizations)
        assert repr(named) == repr(same)
        assert named.effects == same.effects
        assert named.price_usd_per_hour == same.price_usd_per_hour
    # The same machine at another price.
    cheap = dse.predict(captured, {"from": "v100_dgx1", "price": "2 USD/GPU/h"})
    assert cheap.iteration_time_s == pytest.approx(CAPTURED_S)
    assert cheap.price_usd_per_hour == pytest.approx(2 * 2)


@pytest.mark.parametrize(
    "given",
    [{"global_batch_size": 8}, {"program": "torchrec"}, {"tensor": 2}, {"optimizations": "fastr"}],
)
def test_a_captured_step_has_parameters_of_its_own(
    captured: Path, given: dict[str, object]
) -> None:
    with pytest.raises(ConfigError):
        dse.Job(captured, **given)


def test_a_job_without_a_batch_has_that_of_the_recipe() -> None:
    job = dse.Job("dlrm_tiny", "h100_sxm", world_size=2)
    assert job.parameters["global_batch_size"] == dse.load_model("dlrm_tiny").global_batch_size
    for missing in ({"platform": "h100_sxm"}, {"world_size": 2}):
        with pytest.raises(ConfigError, match=next(iter({"platform", "world_size"} - {*missing}))):
            dse.Job("dlrm_tiny", **missing)


def test_a_transformer_has_no_tables_to_shard() -> None:
    job = dse.Job("gpt_1_7b", "a100_sxm_80", world_size=8, global_batch_size=64)
    with pytest.raises(ConfigError):
        job.shard()


def test_a_study_without_trials_has_no_result(tmp_path: Path) -> None:
    with pytest.raises(StudyError):
        _ = study_of(tmp_path).best_trials


def test_a_study_goes_on_where_it_ended(tmp_path: Path) -> None:
    study = study_of(tmp_path).optimize(3)
    first = study.trials
    assert len(first) == 3
    study.optimize(2)
    assert len(study.trials) == 5
    assert [trial.parameters for trial in study.trials[:3]] == [
        trial.parameters for trial in first
    ]
    assert [trial.values for trial in dse.load_study(study.folder).trials] == [
        trial.values for trial in study.trials
    ]


def test_a_study_shows_its_trials_as_a_table_and_a_page(tmp_path: Path) -> None:
    study = study_of(tmp_path).optimize(3)
    frame = study.to_dataframe()
    assert list(frame["number"]) == [0, 1, 2]
    assert study.recommended in study.best_trials
    taken = study.recommended
    assert taken.params["world_size"] == taken.configuration.world_size
    assert list(taken.params) == [name for name, _ in taken.parameters]
    taken.params["world_size"] = 0  # a mapping of the caller's own
    assert taken == pickle.loads(pickle.dumps(taken))
    assert hash(taken.parameters) == hash(tuple(taken.params.items()))
    assert study.report().read_text().startswith("<!doctype html>")


def test_a_candidate_is_exported_as_the_plan_that_was_found(tmp_path: Path) -> None:
    study = study_of(tmp_path).optimize(2)
    best = study.best_trials[0]
    file = tmp_path / "plan.json"
    file.write_text(study.export(best.number))
    chosen = {name: best.params[name] for name in ("world_size", "global_batch_size")}
    again = dse.predict("dlrm_tiny", best.params["platform"], plan=file, **chosen)
    assert again.iteration_time_s == pytest.approx(best.prediction.iteration_time_s)
    with pytest.raises(ConfigError):
        study.export(99)
    with pytest.raises(ConfigError):
        study.export(best.number, "megatron")


def test_a_study_is_scored_again_under_other_prices(tmp_path: Path) -> None:
    study = study_of(tmp_path).optimize(3)
    revision = study.whatif("price=+100%")
    assert revision.repriced == 3
    before, after = (
        {r.number: r.values for r in each.records} for each in (study.result, revision.after)
    )
    for number, (throughput, price) in before.items():
        assert after[number] == pytest.approx((throughput, 2 * price))
    assert "price=+100%" in repr(revision)
    assert len(repr(revision)) < 500
    assert "Price" in revision._repr_html_()
    with pytest.raises(ConfigError):
        study.whatif()
    for wrong in (["price=+20%"], {"price": "+20%"}):
        with pytest.raises(ConfigError, match=type(wrong).__name__):
            study.whatif(wrong)


def test_a_study_of_a_space_that_is_an_object_is_scored_again(tmp_path: Path) -> None:
    space = dse.load_space(SPACE)
    study = dse.create_study(space, out=tmp_path / "study", executor="serial", seed=0).optimize(2)
    assert study.whatif("price=+100%").repriced == 2


def test_only_dataframes_need_the_packages_for_tables(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("pandas", "pyarrow"):
        monkeypatch.setitem(sys.modules, name, None)
    study = study_of(tmp_path).optimize(2)
    assert study.report().is_file()
    assert (study.folder / "trials.csv").is_file()
    assert (study.folder / "trials.parquet").is_file()
    assert "<table" in study._repr_html_()
    with pytest.raises(OptionalDependencyError, match=r"'\.\[tables\]'"):
        study.to_dataframe()


def test_another_cost_model_can_answer(tmp_path: Path) -> None:
    study = dse.create_study(SPACE, linear, out=tmp_path / "study", executor="serial", seed=0)
    study.optimize(4)
    for trial in study.trials:
        ranks = dict(trial.parameters)["world_size"]
        assert trial.values[0] == pytest.approx(1e6 * int(ranks))
    assert study.result.cost_model is not None
    assert study.result.cost_model.endswith("linear")
    assert study.report().is_file()


def test_metrics_that_a_cost_model_names_count(tmp_path: Path) -> None:
    study = dse.create_study(SPACE, measured, out=tmp_path / "study", executor="serial", seed=0)
    for trial in study.optimize(2).trials:
        assert trial.values[0] == trial.metrics["throughput_samples_per_s"] == 7.0
        # What it does not name follows from its iteration time.
        assert trial.prediction is not None
        assert trial.metrics["iteration_time_s"] == trial.prediction.iteration_time_s == 0.5
    study = dse.create_study(SPACE, misnamed, out=tmp_path / "other", executor="serial", seed=0)
    (trial,) = study.optimize(1).trials
    assert "speed" in trial.reason
    assert "throughput_samples_per_s" in trial.reason


@pytest.mark.parametrize("seconds", [0.0, -1.0, math.inf, math.nan])
def test_a_cost_model_without_a_time_fails_its_trial(tmp_path: Path, seconds: float) -> None:
    study = dse.create_study(
        SPACE, lambda _: seconds, out=tmp_path / "study", executor="serial", seed=0
    )
    (trial,) = study.optimize(1).trials
    assert trial.status.value == "failed"
    assert study.report().is_file()


def test_workers_need_a_cost_model_that_they_can_import(tmp_path: Path) -> None:
    study = dse.create_study(SPACE, lambda _: 1.0, out=tmp_path / "study", jobs=2, seed=0)
    with pytest.raises(ConfigError, match="top level of a module"):
        study.optimize(4)


def test_a_study_is_not_continued_with_another_cost_model(tmp_path: Path) -> None:
    dse.create_study(SPACE, linear, out=tmp_path / "study", executor="serial", seed=0).optimize(2)
    with pytest.raises(StudyError):
        dse.load_study(tmp_path / "study").optimize(1)


def test_every_public_name_exists() -> None:
    assert all(getattr(dse, name) is not None for name in dse.__all__)


def test_what_is_shown_is_short(tmp_path: Path) -> None:
    study = study_of(tmp_path).optimize(2)
    for shown in (study, study.result, study.trials[0], study.trials[0].prediction):
        assert len(repr(shown)) < 400
    shown = study._repr_html_()
    assert "<th>Throughput (M samples/s)</th>" in shown
    assert "throughput_samples_per_s" not in shown


def test_the_axis_of_a_picture_has_round_numbers(tmp_path: Path) -> None:
    study = dse.create_study(SPACE, measured, out=tmp_path / "study", executor="serial", seed=0)
    shown = study.optimize(1)._repr_html_()
    # Seven samples a second, in millions.
    labels = re.findall(r'text-anchor="end"[^>]*>([^<]*)<', shown)
    assert labels == ["0", "2e-06", "4e-06", "6e-06"]


def test_a_platform_may_be_a_mapping():
    own = {"from": "h100_sxm", "price": "2.10 USD/GPU/h"}
    size = {"world_size": 8, "global_batch_size": 16384}
    listed = dse.predict("dlrm_tiny", "h100_sxm", **size)
    priced = dse.predict("dlrm_tiny", own, **size)
    assert priced.price_usd_per_hour == pytest.approx(16.80)
    assert priced.iteration_time_s == listed.iteration_time_s
    rate = priced.throughput_samples_per_s
    assert priced.cost_usd_per_million_samples == pytest.approx(16.80 / 3600 / rate * 1e6)
    job = dse.Job("dlrm_tiny", {**own, "name": "mine"}, **size)
    assert (job.platform.name, job.parameters["platform"]) == ("mine", "mine")
    with pytest.raises(ConfigError, match="price"):
        dse.Job("dlrm_tiny", {"from": "h100_sxm", "prise": "2 USD/h"}, **size)


def test_machines_of_ones_own_are_recommended():
    found = dse.recommend(
        "dlrm_tiny",
        target="1M samples/s",
        platforms=["h100_sxm", {"from": "h100_sxm", "price": "1 USD/GPU/h", "name": "mine"}],
        world_sizes=8,
        confidence="50 %",
    )
    assert found.answer is not None
    assert found.answer.option.platform == "mine"
    assert found.answer.option.price_usd_per_hour == 8


def test_plans_are_ranked_from_objects_and_from_files(tmp_path):
    best = dse.shard("dlrm_tiny", "h100_sxm", world_size=2, global_batch_size=65536).plan
    path = tmp_path / "plan.json"
    path.write_text(plan_to_json(best, "dlrm_tiny"))
    names = [table.table for table in best.tables]
    one_rank = tuple(TablePlan(name, ShardingType.TABLE_WISE, (0,)) for name in names)
    slow = ShardingPlan(2, one_rank)
    ranked = dse.rank([slow, best, path], "dlrm_tiny", "h100_sxm", global_batch_size=65536)
    assert [plan for plan, _ in ranked] == [best, path, slow]
    times_s = [prediction.iteration_time_s for _, prediction in ranked]
    assert times_s[0] == times_s[1] < times_s[2]


def test_what_is_loaded_is_taken_as_it_is():
    for load, name in (
        (dse.load_model, "dlrm_tiny"),
        (dse.load_model, "llama3_8b"),
        (dse.load_platform, "h100_sxm"),
        (dse.load_space, "dlrm_sharding"),
    ):
        found = load(name)
        assert load(found) is found
    assert dse.load_model("dlrm_dcnv2").tables[0].pooling == (3.0,)


def test_models_and_spaces_may_be_mappings():
    """With the content of the file that they stand for."""
    model = yaml.safe_load((ROOT / "models/dlrm_tiny.yaml").read_text())
    model = {**model, "tables": ({"name": "clicks", "rows": 1000, "dim": 16, "pooling": [2]},)}
    loaded = dse.load_model(model)
    assert [table.rows for table in loaded.tables] == [1000]
    size = {"world_size": 2, "global_batch_size": 4096}
    assert dse.predict(model, "h100_sxm", **size) == dse.predict(loaded, "h100_sxm", **size)
    assert dse.load_space(SPACE).name == "tiny"
    for load, wrong in ((dse.load_model, {**model, "tables": 3}), (dse.load_space, {"name": 3})):
        with pytest.raises(ConfigError) as found:
            load(wrong)
        assert all(problem.file == "<mapping>" for problem in found.value.diagnostics)
