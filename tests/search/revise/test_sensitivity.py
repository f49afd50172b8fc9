"""How much candidates depend on their inputs."""

from __future__ import annotations

import pytest

from dse.errors import ConfigError
from dse.search import RunOptions, TrialStatus, run
from dse.search.revise import SENSITIVITY_INPUTS, SensitivityInput, revise_study, sensitivity
from dse.workload import workload_kind
from tests.search.revise.studies import GPT_SPACE, SPACE, study_of
from tests.search.traces import write_job

#: More of these is never slower.
FASTER = ("link bandwidth", "network bandwidth", "memory bandwidth", "compute peak")


@pytest.fixture(scope="module", params=[SPACE, GPT_SPACE], ids=["dlrm", "gpt"])
def result(request):
    return study_of(request.param).result


def bars_of(result, record):
    return {bar.name: bar for bar in sensitivity(result, record.number)}


def test_bars_follow_physics(result):
    for record in result.front[:3]:
        bars = bars_of(result, record)
        assert list(bars) == [change.name for change in SENSITIVITY_INPUTS]
        now = record.prediction
        free = now.memory_headroom_fraction
        for name in FASTER:
            bar = bars[name]
            assert bar.steps == (-0.1, 0.1)
            low, high = bar.values("iteration_time_s")
            assert low >= now.iteration_time_s * (1 - 1e-9) >= high * (1 - 2e-9)
            # A tenth more of one part cannot save more than a tenth, or cost more than a ninth.
            assert high >= now.iteration_time_s / 1.1 * (1 - 1e-9)
            assert low <= now.iteration_time_s / 0.9 * (1 + 1e-9)
            assert bar.values("memory_headroom_fraction") == (free, free)
            assert bar.feasible == (True, True)
        for bar in bars.values():
            costs = zip(
                bar.values("iteration_time_s"),
                bar.values("throughput_samples_per_s"),
                bar.values("cost_usd_per_million_samples"),
                strict=True,
            )
            price = now.price_usd_per_hour
            for (time_s, throughput, cost), factor in zip(costs, (0.9, 1.1), strict=True):
                paid = price * factor if bar.name == "price" else price
                assert cost == pytest.approx(1e6 * paid / 3600 / throughput)
                if bar.name != "batch size":
                    batch = record.configuration.global_batch_size
                    assert throughput == pytest.approx(batch / time_s)


def test_a_price_moves_cost_alone(result):
    record = result.front[0]
    bar = bars_of(result, record)["price"]
    now = record.prediction
    times_s = bar.values("iteration_time_s")
    assert times_s == pytest.approx((now.iteration_time_s,) * 2, rel=1e-12)
    cost = now.cost_usd_per_million_samples
    assert bar.values("cost_usd_per_million_samples") == pytest.approx((0.9 * cost, 1.1 * cost))
    assert bar.values("speedup") is None


def test_a_batch_is_made_of_whole_samples(result):
    for record in result.front[:3]:
        bar = bars_of(result, record)["batch size"]
        low, high = bar.steps
        assert low < 0 < high
        batch = record.configuration.global_batch_size
        times_s, throughputs = (
            bar.values(name) for name in ("iteration_time_s", "throughput_samples_per_s")
        )
        assert bar.values("global_batch_size") == pytest.approx(
            tuple(batch * (1 + step) for step in bar.steps)
        )
        for step, time_s, throughput in zip(bar.steps, times_s, throughputs, strict=True):
            samples = throughput * time_s
            assert samples == pytest.approx(batch * (1 + step))
            assert samples == pytest.approx(round(samples))
            grain = workload_kind(result.kind).batch_grain(record.configuration)
            assert round(samples) % grain == 0
        assert times_s[0] <= times_s[1]
        free = bar.values("memory_headroom_fraction")
        assert free[0] >= free[1]


def test_bars_are_what_scoring_again_says():
    result = study_of(SPACE).result
    record = result.front[0]
    bar = bars_of(result, record)["memory bandwidth"]
    for text, time_s in zip(("-10%", "+10%"), bar.values("iteration_time_s"), strict=True):
        again = revise_study(result, [f"device.memory.bandwidth={text}"]).after
        (same,) = [one for one in again.records if one.number == record.number]
        assert same.prediction.iteration_time_s == pytest.approx(time_s, rel=1e-12)


def test_other_inputs_and_steps_can_be_asked_for():
    result = study_of(SPACE).result
    inputs = (SensitivityInput("launches", ("host.launch",)),)
    (bar,) = sensitivity(result, result.front[0].number, inputs, step=0.5)
    assert (bar.name, bar.steps) == ("launches", (-0.5, 0.5))
    low_s, high_s = bar.values("iteration_time_s")
    assert low_s <= high_s


def test_without_a_price_there_is_no_bar_of_it(tmp_path):
    space = tmp_path / "space.yaml"
    text = SPACE.replace("[a100_sxm_80, h100_sxm]", "[cpu]").replace("[1, 2, 8, 16]", "[1]")
    text = text.replace("  - {metric: cost_usd_per_million_samples, direction: minimize}\n", "")
    text = text.replace("constraints:\n  - {metric: price_usd_per_hour, at_most: 100 USD/h}\n", "")
    space.write_text(text)
    result = run(space, RunOptions(out=tmp_path / "study", trials=1)).result
    bars = sensitivity(result, result.front[0].number)
    assert "price" not in [bar.name for bar in bars]
    assert all(bar.values("cost_usd_per_million_samples") is None for bar in bars)


def test_wrong_questions(tmp_path):
    result = study_of(SPACE).result
    with pytest.raises(ConfigError, match="the study has no configuration 9999; on its front: "):
        sensitivity(result, 9999)
    rejected = next(r for r in result.records if r.status is TrialStatus.REJECTED)
    with pytest.raises(ConfigError, match="has no prediction: it is rejected"):
        sensitivity(result, rejected.number)
    with pytest.raises(ConfigError, match="between 0 and 1"):
        sensitivity(result, result.front[0].number, step=1.0)
    of_trace = run(write_job(tmp_path), RunOptions(out=tmp_path / "study")).result
    with pytest.raises(ConfigError, match="captured trace"):
        sensitivity(of_trace, of_trace.front[0].number)
