"""Validating a study: choice, modes, factors, interrupts, and what the folder keeps.

Times come from a rule in place of processes; real ones run in `tests/cli/study/test_validate.py`.
"""

from __future__ import annotations

from dataclasses import replace

import pytest

from dse.calibration.microbench import MachineInfo
from dse.errors import ConfigError
from dse.report import build_view, render_report
from dse.search import RunOptions, ValidationMode, load_study, run, stored_workload
from dse.validation import BudgetError, ValidateOptions, validate_study
from dse.validation.study._choose import choose, feasible_trials
from dse.validation.study._options import chosen_mode, predicting_platform
from dse.validation.study.runs._dlrm import DlrmRuns
from dse.validation.trainer.torchrec import TorchRecTrainer
from dse.workload import predict_job
from tests.validation.studies import Oracle, make_study

pytest.importorskip("torch")

OPTIONS = ValidateOptions(top=3, device="cpu", ranks=2)


@pytest.fixture(scope="module")
def study(tmp_path_factory):
    return make_study(tmp_path_factory.mktemp("here"))


@pytest.fixture(scope="module")
def elsewhere(tmp_path_factory):
    """A study of machines that are not here."""
    folder = tmp_path_factory.mktemp("elsewhere")
    return make_study(folder, platform="[h100_sxm]", world_size="[2, 8]", program="torchrec")


@pytest.fixture
def oracle(monkeypatch):
    """Puts a rule in place of processes; every run takes three times its prediction."""

    def install(time_of=None, **how):
        made = Oracle(time_of or (lambda one: 3 * predicted_s(one)), **how)
        monkeypatch.setattr("dse.validation.study._session.measure", made)
        return made

    return install


def predicted_s(candidate):
    return predict_job(candidate.job()).iteration_time_s


def best(study, count):
    return [record.number for record in feasible_trials(study.result)[:count]]


def test_what_is_here_runs_as_it_is(study, oracle):
    asked = oracle().asked
    found = validate_study(study.result, OPTIONS)
    ((candidates, how),) = asked
    assert [one.name for one in candidates] == [str(number) for number in best(study, 3)]
    assert (how["device"], how["threads"]) == ("cpu", 1)
    assert found.setting.mode is ValidationMode.REAL
    assert found.setting.platform == "cpu"
    assert found.setting.left_out == ()
    by_number = {record.number: record for record in study.result.records}
    for one in found.candidates:
        record = by_number[one.number]
        assert one.predicted_s == one.study_time_s == record.prediction.iteration_time_s
        assert one.measured_s == pytest.approx(3 * one.predicted_s)
        assert (one.run_world_size, one.run_batch_size) == (
            2,
            record.configuration.global_batch_size,
        )
    assert found.agreement.kendall_tau == pytest.approx(1.0)
    assert found.agreement.success
    (factor,) = found.factors
    assert (factor.platform, factor.mode, factor.candidates) == ("cpu", ValidationMode.REAL, 3)
    assert factor.factor == pytest.approx(3.0)
    assert factor.spread == pytest.approx(1.0)


def test_studies_of_other_machines_run_scaled_and_folded(elsewhere, oracle):
    asked = oracle().asked
    found = validate_study(elsewhere.result, replace(OPTIONS, top=20))
    assert found.setting.mode is ValidationMode.SCALED
    assert found.setting.platform == "cpu"
    ((candidates, _),) = asked
    for one in candidates:
        assert one.world_size == one.plan.world_size == 2
        assert one.problem.cluster.name == "cpu"
    # Plans that fold to the same are run once; together they stand for every feasible trial.
    numbers = [number for one in found.candidates for number in (one.number, *one.same)]
    assert sorted(numbers) == sorted(best(elsewhere, 100))
    assert any(one.same for one in found.candidates)
    assert len({(one.problem, one.plan) for one in candidates}) == len(candidates)
    words = " ".join(found.setting.words)
    assert "8 ranks → 2" in words
    assert "different world sizes" in words


def test_batches_shrink_until_the_budget_has_room(oracle, tmp_path):
    asked = oracle().asked
    # 17 lookups of 32 bytes a sample: 9 MB and 18 MB; at the least they are half a megabyte.
    batches = (16_384, 32_768)
    study = make_study(
        tmp_path,
        platform="[h100_sxm]",
        world_size="[2, 8]",
        program="torchrec",
        global_batch_size=str(list(batches)),
    )
    for budget_s in (600.0, 0.01):
        validate_study(study.result, replace(OPTIONS, budget_s=budget_s))
    large, small = (
        [one.problem.global_batch_size for one in candidates] for candidates, _ in asked
    )
    assert set(large) <= set(batches)
    assert 0.49e6 < max(small) * 17 * 32 <= 0.5e6
    factor = max(large) / max(small)
    assert [one / factor for one in large] == pytest.approx(small, rel=0.01)
    before = stored_workload(study.result).model
    model = asked[1][0][0].model
    assert [one.dim for one in model.tables] == [one.dim for one in before.tables]


def test_others_are_drawn_by_the_seed(study, oracle):
    oracle()

    def drawn(seed):
        options = replace(OPTIONS, top=2, random=2, seed=seed)
        found = validate_study(study.result, options).candidates
        return {one.number for one in found if one.chosen == "random"}

    assert drawn(0) == drawn(0)
    assert len(drawn(0)) == 2
    assert not drawn(0) & set(best(study, 2))
    assert len({frozenset(drawn(seed)) for seed in range(8)}) > 1


def test_what_cannot_be_run_is_replaced_by_the_next(study):
    records = feasible_trials(study.result)

    def run_of(record):
        if record is records[0]:
            raise ConfigError("no such kernel")
        return 0 if record in records[1:3] else record.number

    chosen = choose(records, 2, 0, 0, run_of)
    assert chosen.left_out == ((records[0].number, "no such kernel"),)
    first, second = chosen.runs
    assert (first[0], first[1]) == (records[1], (records[2].number,))
    assert second[0] is records[3]


def test_an_earlier_factor_is_applied_and_kept(study, oracle, tmp_path):
    oracle()
    with pytest.raises(ConfigError, match="in mode real by the trainer `reference` yet"):
        validate_study(study.result, replace(OPTIONS, calibrated=True))
    first = validate_study(study.result, OPTIONS)
    scaled = validate_study(
        replace(study.result, validation=first), replace(OPTIONS, mode=ValidationMode.SCALED)
    )
    assert [one.mode.value for one in scaled.factors] == ["scaled", "real"]
    validated = replace(study.result, validation=scaled)
    found = validate_study(validated, replace(OPTIONS, calibrated=True))
    assert found.setting.applied_factor == pytest.approx(3.0)
    for one, plain in zip(found.candidates, first.candidates, strict=True):
        assert one.number == plain.number
        assert one.predicted_s == pytest.approx(3 * plain.predicted_s)
        assert one.predicted_low_s == pytest.approx(3 * plain.predicted_low_s)
        assert one.error == pytest.approx(0.0, abs=1e-9)
        assert one.inside
    assert [one.mode.value for one in found.factors] == ["real", "scaled"]
    # The factor is always that of predictions without any.
    assert found.factors[0].factor == pytest.approx(3.0)


def test_training_that_diverged_is_told(study, oracle, monkeypatch):
    made = oracle()
    assert not any(
        "diverged" in word for word in validate_study(study.result, OPTIONS).setting.words
    )
    lost = best(study, 3)[1]

    def diverging(candidates, **how):
        found = made(candidates, **how)
        return tuple(replace(one, diverged=one.name == str(lost)) for one in found)

    monkeypatch.setattr("dse.validation.study._session.measure", diverging)
    *_, said = validate_study(study.result, OPTIONS).setting.words
    assert f"candidate {lost} diverged" in said


def test_an_interrupt_keeps_what_was_measured(study, oracle):
    oracle(stop_after=2)
    found = validate_study(study.result, OPTIONS)
    assert found.setting.interrupted
    for one in found.candidates:
        assert len(one.samples_s) == 2
        assert (one.measured_low_s, one.measured_high_s) == (None, None)


def test_an_interrupt_before_the_first_round_is_passed_on(study, monkeypatch):
    def stop(*_, **__):
        raise KeyboardInterrupt

    monkeypatch.setattr("dse.validation.study._session.measure", stop)
    with pytest.raises(KeyboardInterrupt):
        validate_study(study.result, OPTIONS)


@pytest.mark.parametrize(("kind", "title"), [("trace", "a trace")])
def test_other_workloads_are_refused(study, kind, title):
    with pytest.raises(ConfigError, match=f"is of {title}.*; only studies of `kind: dlrm`"):
        validate_study(replace(study.result, kind=kind), OPTIONS)


def test_nothing_to_run_is_refused(study, elsewhere, monkeypatch):
    with pytest.raises(ConfigError, match="no feasible candidate"):
        validate_study(replace(study.result, records=()), OPTIONS)
    eight = [one for one in elsewhere.result.records if dict(one.parameters)["world_size"] == 8]
    with pytest.raises(ConfigError, match=r"8 ranks are more than the 2 of this run"):
        validate_study(
            replace(elsewhere.result, records=tuple(eight)),
            replace(OPTIONS, mode=ValidationMode.REAL),
        )
    small = replace(machine("cpu", 1), memory_bytes=10_000)
    with monkeypatch.context() as patch:
        patch.setattr("dse.validation.study._validate.describe_machine", lambda _: small)
        for mode in (ValidationMode.REAL, ValidationMode.RANK_SERIAL):
            with pytest.raises(ConfigError, match=r"need.*choose --mode scaled"):
                validate_study(study.result, replace(OPTIONS, mode=mode))
    with pytest.raises(ConfigError, match="--platform h100_sxm is a gpu, the runs are on cpu"):
        validate_study(study.result, replace(OPTIONS, platform="h100_sxm"))
    with pytest.raises(ConfigError, match="--device tpu: expected cpu or cuda"):
        validate_study(study.result, replace(OPTIONS, device="tpu"))


def machine(device, count):
    return MachineInfo(
        device=device, device_name="", device_count=count, compute_units=1, driver="", cores=2,
        memory_bytes=2**34, last_level_cache_bytes=0, operating_system="", libraries=(),
    )  # fmt: skip


def test_the_mode_follows_what_is_there(study, elsewhere):
    def mode(of, device, count=1, **changes):
        options = replace(ValidateOptions(), **changes)
        records = feasible_trials(of.result)
        weight_bytes = DlrmRuns.weight_bytes(stored_workload(of.result))
        return chosen_mode(of.result, weight_bytes, records, options, machine(device, count))

    assert mode(study, "cpu") is ValidationMode.REAL
    assert mode(study, "cpu", ranks=1) is ValidationMode.SCALED
    assert mode(elsewhere, "cpu") is ValidationMode.SCALED
    assert mode(elsewhere, "cuda", 8) is ValidationMode.REAL
    assert mode(elsewhere, "cuda", 1) is ValidationMode.RANK_SERIAL
    assert mode(elsewhere, "cuda", 8, ranks=2) is ValidationMode.RANK_SERIAL
    assert mode(study, "cpu", mode=ValidationMode.RANK_SERIAL) is ValidationMode.RANK_SERIAL
    with pytest.raises(ConfigError, match="scaled runs on processes of the CPU"):
        mode(elsewhere, "cuda", 8, mode=ValidationMode.SCALED)


def test_predictions_are_of_the_kind_of_device_that_runs(study, elsewhere):
    def platform(of, mode, device, **changes):
        options = replace(ValidateOptions(), **changes)
        record = feasible_trials(of.result)[0]
        found = predicting_platform(of.result, record, mode, options, machine(device, 8))
        return None if found is None else found.name

    real, scaled = ValidationMode.REAL, ValidationMode.SCALED
    assert platform(study, real, "cpu") is None
    assert platform(elsewhere, real, "cuda") is None
    assert platform(elsewhere, scaled, "cpu") == "cpu"
    assert platform(elsewhere, real, "cuda", platform="a100_sxm_80") == "a100_sxm_80"
    with pytest.raises(ConfigError, match="name the platform of these GPUs by --platform"):
        platform(study, real, "cuda")


def test_the_folder_keeps_a_validation(oracle, tmp_path):
    study = make_study(tmp_path)
    space = tmp_path / "space.yaml"
    assert load_study(study.directory.root).result.validation is None
    assert build_view(study.result).validation is None
    oracle()
    found = validate_study(study.result, OPTIONS)
    study.directory.write_validation(found)
    loaded = load_study(study.directory.root).result
    assert loaded.validation == found
    page = render_report(loaded)
    assert found.sentence in page
    assert "Run for real" in page
    assert "Run for real" not in render_report(study.result)
    view = build_view(loaded).validation
    assert [row.number for row in view.rows] == [one.number for one in found.candidates]
    assert view.rows[0].measured[1] == pytest.approx(
        1e3 * found.candidates[0].measured_s, rel=1e-4
    )
    resumed = run(space, RunOptions(out=study.directory.root, resume=True))
    assert resumed.result.validation == found
    text = study.directory.validation.read_text()
    assert str(tmp_path) not in text
    study.directory.validation.write_text(text.replace('"success"', '"succes"'))
    with pytest.raises(ConfigError, match=r"validation\.json"):
        load_study(study.directory.root)


def test_a_trainer_that_is_missing_is_replaced(study, oracle, monkeypatch):
    monkeypatch.setattr(TorchRecTrainer, "missing", lambda _: "torchrec")
    asked = oracle().asked
    found = validate_study(study.result, replace(OPTIONS, trainer="torchrec"))
    assert asked[0][1]["trainer"] == found.setting.trainer == "reference"
    assert "torchrec" in found.setting.words[0]
    with pytest.raises(ConfigError, match="trainer `nobody`"):
        validate_study(study.result, replace(OPTIONS, trainer="nobody"))


def test_every_trainer_has_factors_of_its_own(study, oracle, monkeypatch):
    monkeypatch.setattr(TorchRecTrainer, "missing", lambda _: "")
    asked = oracle().asked
    first = validate_study(study.result, OPTIONS)
    validated = replace(study.result, validation=first)
    found = validate_study(validated, replace(OPTIONS, trainer="torchrec"))
    assert [one.trainer for one in found.factors] == ["torchrec", "reference"]
    candidates, how = asked[1]
    assert how["trainer"] == found.setting.trainer == "torchrec"
    for one in candidates:
        assert one.problem.software.handling.batch_s > 0
    # Row-wise tables run as TorchRec cuts them.
    kinds = {table.sharding_type.value for one in candidates for table in one.plan.tables}
    assert kinds <= {"table_wise", "row_wise", "data_parallel"}
    with pytest.raises(ConfigError, match="by the trainer `torchrec` yet"):
        validate_study(validated, replace(OPTIONS, trainer="torchrec", calibrated=True))


def test_a_budget_is_advised_for_candidates_of_all_numbers_of_ranks(study, tmp_path, monkeypatch):
    both = make_study(tmp_path, world_size="[1, 2]")
    groups = []

    def slow(candidates, *, limits, **how):
        groups.append((len(candidates), limits.budget_s))
        raise BudgetError("starting 1 took 30 s", limits.budget_s, 90.0)

    monkeypatch.setattr("dse.validation.study._session.measure", slow)
    with pytest.raises(BudgetError) as error:
        validate_study(both.result, replace(OPTIONS, top=100, budget_s=20.0))
    ((count, budget_s),) = groups
    total = len(feasible_trials(both.result))
    assert 0 < count < total
    assert error.value.value == error.value.budget_s == 20.0
    assert error.value.share_s == budget_s
    assert f"{budget_s:.3g} s" in str(error.value)
    # The first group has its share of the budget, and needs its share of the advised one.
    assert budget_s == pytest.approx(20.0 * count / total, rel=0.01)
    assert error.value.needed_s == pytest.approx(90.0 * total / count)
    # Candidates of one number of ranks have all of it.
    with pytest.raises(BudgetError) as error:
        validate_study(study.result, replace(OPTIONS, top=1, budget_s=20.0))
    assert error.value.share_s == 20.0
