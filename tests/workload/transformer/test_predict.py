"""Whole steps: the graph's answer, and what physics demands."""

from __future__ import annotations

from dataclasses import astuple, replace
import math

from hypothesis import given
from hypothesis import strategies as st
import numpy as np
import pytest

from dse.errors import ConfigError, UnknownNameError
from dse.graph import TaskKind
from dse.machine import Precision, Quote
from dse.model import load_model
from dse.simulate import breakdown, simulate
from dse.workload import LaunchMode, predict_job
from dse.workload.transformer import (
    COMPOSER,
    MEGATRON,
    MEGATRON_CORE,
    NANOTRON,
    Capture,
    DataSharding,
    Parallelism,
    Recompute,
    Schedule,
    TransformerJob,
    TransformerRuntime,
)
from dse.workload.transformer.step._costs import StepCosts
from dse.workload.transformer.step._structure import Role
from tests.conftest import make_cluster

SMALL = replace(
    load_model("gpt_22b"), layers=8, hidden=1024, heads=16, kv_heads=16, ffn_hidden=4096
)


def step(model=SMALL, batch=32, software=MEGATRON, cluster=None, **parallelism):
    spread = Parallelism(**parallelism)
    found = cluster or make_cluster(spread.world_size, min(8, spread.world_size))
    return TransformerJob(model, found, batch, Precision.FP16, spread, software)


PROBLEMS = [
    step(),
    step(tensor=4, pipeline=2, data=2, recompute=Recompute.FULL),
    step(
        tensor=2, pipeline=4, interleave=2, sequence_parallel=True, software=TransformerRuntime()
    ),
    step(pipeline=2, data=8, data_sharding=DataSharding.OPTIMIZER, software=TransformerRuntime()),
    step(data=16, data_sharding=DataSharding.PARAMETERS, software=COMPOSER),
    step(data=8, data_sharding=DataSharding.GRADIENTS, software=TransformerRuntime()),
    step(tensor=2, context=4, data=2, data_sharding=DataSharding.PARAMETERS),
]


@pytest.mark.parametrize("problem", PROBLEMS, ids=range(len(PROBLEMS)))
def test_the_prediction_is_the_simulation_of_the_graph(problem):
    prediction, iteration = predict_job(problem), problem.iteration()
    timeline = simulate(iteration.ranks.graph)
    assert timeline.makespan_s == pytest.approx(prediction.iteration_time_s, rel=1e-9)
    assert breakdown(timeline) == prediction.breakdown
    assert len(prediction.breakdown) == problem.parallelism.pipeline == len(prediction.memory)


@pytest.mark.parametrize("problem", PROBLEMS, ids=range(len(PROBLEMS)))
def test_the_median_of_samples_is_a_tenth_of_their_spread_above_the_prediction(problem):
    iteration = problem.iteration()
    spread = math.hypot(float(iteration.kernel_errors().std()), iteration.program_errors.scale)
    median_s = float(np.median(iteration.sample_times_s()))
    log_error = math.log(median_s / predict_job(problem).iteration_time_s)
    assert log_error == pytest.approx(0.1 * spread, rel=0.02)


def test_a_step_has_its_figures():
    problem = PROBLEMS[1]
    prediction = predict_job(problem, Quote(36.0))
    seconds = prediction.iteration_time_s
    assert prediction.iteration_time_p5_s < seconds < prediction.iteration_time_p95_s
    assert prediction.throughput_samples_per_s == pytest.approx(32 / seconds)
    assert prediction.metric("speedup", None) is None
    for name, words in (
        ("speedup", "throughput_tokens_per_s"),
        ("throughput_token_per_s", "did you mean `throughput_tokens_per_s`"),
        ("iteration_time_s", "`prediction.iteration_time_s`"),
    ):
        with pytest.raises(UnknownNameError, match=words):
            prediction.metric(name)
    assert prediction.metric("throughput_tokens_per_s") == pytest.approx(32 * 2048 / seconds)
    assert prediction.cost_usd_per_million_samples == pytest.approx(0.01 * seconds / 32 * 1e6)
    done = 32 * SMALL.model_flops_per_sample
    peak = 16 * problem.cluster.device.peak.of(Precision.FP16)
    assert prediction.metric("model_flops_utilization") == pytest.approx(done / (seconds * peak))
    assert predict_job(problem).cost_usd_per_million_samples is None


def test_conventions_of_utilization_by_hand():
    # 2,048 tokens see 1,024.5 others each; scores and values are 4 operations a column.
    plain, repeated = step(), step(recompute=Recompute.FULL)
    prediction = predict_job(plain)
    full, causal, hardware = (
        prediction.metric(name)
        for name in (
            "model_flops_utilization",
            "model_flops_utilization_causal",
            "hardware_flops_utilization",
        )
    )
    scores = SMALL.layers * 4.0 * 2048**2 * SMALL.attention_width
    hidden = 3 * scores * (1 - 1024.5 / 2048) / SMALL.model_flops_per_sample
    assert causal == pytest.approx(full * (1 - hidden))
    assert hardware == full
    again = predict_job(repeated)
    layers = SMALL.layers * SMALL.layer_flops_per_sample / SMALL.model_flops_per_sample
    assert again.metric("hardware_flops_utilization") == pytest.approx(
        again.metric("model_flops_utilization") * (1 + layers)
    )


def test_the_bound_counts_visible_scores():
    long = replace(load_model("llama3_8b"), layers=1, sequence_length=2**19)
    asked = step(long, batch=1, software=TransformerRuntime())
    peak = asked.cluster.device.peak.of(Precision.FP16)
    bound_s = asked.optimistic_time_s()
    assert bound_s == pytest.approx(long.model_flops_per_sample_causal / peak)
    assert bound_s < predict_job(asked).iteration_time_s


def test_an_optimizer_that_moves_more_bytes_takes_longer_by_what_they_take():
    runtime = TransformerRuntime()
    light, heavy = (
        step(software=replace(runtime, optimizer_traffic_bytes=traffic))
        for traffic in (40.0, 80.0)
    )
    more_bytes = 40.0 * SMALL.parameter_count
    least_s = more_bytes / light.cluster.device.memory_bandwidth_bytes_per_s
    extra_s = predict_job(heavy).iteration_time_s - predict_job(light).iteration_time_s
    assert least_s <= extra_s <= 2 * least_s


def test_the_graph_has_one_rank_of_each_stage_and_all_passes():
    graph = step(pipeline=4, data=2, batch=16).iteration().ranks.graph
    assert {stream.rank for stream in graph.streams} == {0, 1, 2, 3}
    names = [name for name, kind in zip(graph.names, graph.kind, strict=True) if kind == 0]
    assert names.count("forward") == names.count("backward") == 4 * 8
    assert int(np.sum(graph.kind == TaskKind.COLLECTIVE)) > 0


@pytest.mark.parametrize("sharding", DataSharding)
def test_thousands_of_micro_batches_take_as_much_longer_as_there_are_more(sharding):
    def predicted(micro_batches):
        spread = {"tensor": 2, "data": 8, "data_sharding": sharding}
        return predict_job(step(batch=8 * micro_batches, software=COMPOSER, **spread))

    few, more, many = (predicted(count) for count in (32, 64, 2048))

    def longer(value):
        return value(more) + (2048 - 64) / 32 * (value(more) - value(few))

    for value in (
        lambda found: found.iteration_time_s,
        lambda found: found.breakdown[0].compute_s,
    ):
        assert value(many) == pytest.approx(longer(value), rel=2e-3)
    job = step(batch=8 * 2048, software=COMPOSER, tensor=2, data=8, data_sharding=sharding)
    assert simulate(job.attributed().graph).makespan_s == pytest.approx(many.iteration_time_s)
    assert len(job.iteration().row) < 20_000


def test_impossible_steps_are_refused():
    with pytest.raises(ConfigError, match="does not divide the 16 attention heads"):
        predict_job(step(tensor=3))
    with pytest.raises(ConfigError, match="no multiple"):
        predict_job(step(data=8, batch=12))


parallelisms = st.sampled_from([problem.parallelism for problem in PROBLEMS])
softwares = st.sampled_from([MEGATRON, COMPOSER, NANOTRON, TransformerRuntime()])


def time_of(problem):
    return predict_job(problem).iteration_time_s


@given(parallelisms, softwares, st.floats(1.0, 8.0))
def test_more_bandwidth_is_never_slower(parallelism, software, factor):
    nodes = make_cluster(parallelism.world_size, min(4, parallelism.world_size))
    quick = replace(
        nodes,
        link=replace(nodes.link, bandwidth_bytes_per_s=300e9 * factor),
        network=replace(nodes.network, nic_bandwidth_bytes_per_s=25e9 * factor),
    )
    slow_s, quick_s = (
        time_of(TransformerJob(SMALL, cluster, 32, Precision.FP16, parallelism, software))
        for cluster in (nodes, quick)
    )
    assert quick_s <= slow_s * (1 + 1e-12)


@given(parallelisms, softwares)
def test_recomputation_trades_time_for_memory(parallelism, software):
    cluster = make_cluster(parallelism.world_size, min(8, parallelism.world_size))
    predictions = [
        predict_job(
            TransformerJob(
                SMALL,
                cluster,
                32,
                Precision.FP16,
                replace(parallelism, recompute=recompute),
                software,
            ),
            None,
        )
        for recompute in (Recompute.NONE, Recompute.SELECTIVE, Recompute.FULL)
    ]
    times = [prediction.iteration_time_s for prediction in predictions]
    memory = [prediction.memory[0].total_bytes for prediction in predictions]
    assert times == sorted(times)
    assert times[2] > times[0]
    assert memory == sorted(memory, reverse=True)


@given(parallelisms, softwares)
def test_overlap_never_takes_longer(parallelism, software):
    cluster = make_cluster(parallelism.world_size, min(4, parallelism.world_size))
    with_s, without_s = (
        time_of(
            TransformerJob(
                SMALL,
                cluster,
                32,
                Precision.FP16,
                parallelism,
                replace(
                    software,
                    prefetch_parameters=beside,
                    overlap_tensor=beside,
                    overlap_tensor_products=beside,
                ),
            )
        )
        for beside in (True, False)
    )
    assert with_s <= without_s * (1 + 1e-9)


def test_products_on_parts_hide_gathers_of_sequence_parallelism():
    whole = replace(MEGATRON, launch=LaunchMode.CUDA_GRAPHS, captures=Capture.EVERYTHING)
    parts = replace(whole, overlap_tensor_products=True)
    shared = [
        time_of(step(software=program, tensor=8, sequence_parallel=True))
        for program in (parts, whole)
    ]
    assert shared[0] < shared[1]
    # Without sequence parallelism the sums have nothing to gather or to scatter.
    plain = [time_of(step(software=program, tensor=8)) for program in (parts, whole)]
    assert plain[0] == plain[1]


def test_only_transfers_inside_a_domain_hide_behind_products_on_parts():
    whole = replace(MEGATRON, launch=LaunchMode.CUDA_GRAPHS, captures=Capture.EVERYTHING)
    parts = replace(whole, overlap_tensor_products=True)
    for ranks_per_node, hidden in ((4, False), (8, True)):
        inside = make_cluster(8, ranks_per_node)
        with_s, without_s = (
            time_of(step(software=software, cluster=inside, tensor=8, sequence_parallel=True))
            for software in (parts, whole)
        )
        assert (with_s < without_s) is hidden


def test_gradients_reduced_beside_the_backward_pass_are_hidden():
    # Many small sums cost more latency than a large one, so this holds for large layers only.
    software = replace(MEGATRON, overlap_gradients=True)
    model = replace(load_model("gpt_22b"), layers=8)
    beside, after = (step(model, data=8, software=program) for program in (software, MEGATRON))
    assert time_of(beside) < time_of(after)


@given(parallelisms, st.integers(1, 3))
def test_more_work_takes_longer(parallelism, times):
    cluster = make_cluster(parallelism.world_size, min(8, parallelism.world_size))
    steps = [
        time_of(TransformerJob(SMALL, cluster, batch, Precision.FP16, parallelism, MEGATRON))
        for batch in (32 * times, 32 * (times + 1))
    ]
    assert steps[0] < steps[1]
    # A larger batch spreads what is paid once, so that a sample never costs more.
    assert steps[1] / (times + 1) <= steps[0] / times * (1 + 1e-9)


def test_sharding_saves_memory_in_order():
    kept = [
        predict_job(step(data=8, data_sharding=sharding)).memory[0].total_bytes
        for sharding in (DataSharding.NONE, DataSharding.OPTIMIZER, DataSharding.GRADIENTS)
    ]
    assert kept == sorted(kept, reverse=True)


def test_interleaving_shrinks_the_bubble():
    plain, chunked = (
        predict_job(step(pipeline=4, batch=8, interleave=chunks)) for chunks in (1, 2)
    )
    assert chunked.iteration_time_s < plain.iteration_time_s
    assert chunked.breakdown[0].idle_s < plain.breakdown[0].idle_s


def test_tensor_parallelism_is_best_inside_a_node():
    model = replace(load_model("gpt_22b"), layers=8)
    inside = step(model, tensor=8, data=2, cluster=make_cluster(16, 8))
    across = step(model, tensor=8, data=2, cluster=make_cluster(16, 2))
    assert time_of(inside) < time_of(across)


TINY = replace(
    SMALL, hidden=128, heads=4, kv_heads=4, ffn_hidden=512, vocab=1024, sequence_length=128
)


def test_small_steps_wait_for_the_host():
    prediction = predict_job(step(model=TINY, batch=1))
    assert prediction.breakdown[0].host_s > prediction.breakdown[0].compute_s
    large = predict_job(step(batch=8, micro_batch_size=8))
    assert large.breakdown[0].host_s < 0.01 * large.breakdown[0].compute_s


def test_cuda_graphs_are_never_slower_than_eager_launches():
    captured = replace(MEGATRON, launch=LaunchMode.CUDA_GRAPHS, captures=Capture.LAYERS)
    for model in (TINY, SMALL):
        eager_s, captured_s = (
            time_of(step(model, batch=8, software=software)) for software in (MEGATRON, captured)
        )
        assert captured_s <= eager_s


def test_a_captured_pass_of_a_layer_takes_one_launch():
    host = make_cluster(1, 1).host
    forward, backward = (
        {
            launch: StepCosts(
                step(TINY, batch=1, software=replace(MEGATRON_CORE, launch=launch))
            ).of((role, 0, 0, 0))
            for launch in LaunchMode
        }
        for role in (Role.LAYER_FORWARD, Role.LAYER_BACKWARD)
    )
    for passes in (forward, backward):
        assert passes[LaunchMode.CUDA_GRAPHS].dispatch_s == host.graph_launch_s
        assert passes[LaunchMode.EAGER].dispatch_s > 5 * host.graph_launch_s
        assert passes[LaunchMode.EAGER].device_s == passes[LaunchMode.CUDA_GRAPHS].device_s


def test_a_host_that_runs_ahead_hides_launches_behind_earlier_kernels():
    # Two stages that synchronise with the host in every pass launch later than two that do not.
    waits, runs_ahead = (
        time_of(
            step(
                TINY,
                32,
                replace(TransformerRuntime(), host_waits_for_stages=synchronises),
                pipeline=4,
            )
        )
        for synchronises in (True, False)
    )
    assert runs_ahead < waits


@pytest.mark.parametrize(
    "spread",
    [
        {},
        {"interleave": 2, "sequence_parallel": True, "tensor": 2},
        {"schedule": Schedule.GPIPE},
        {"schedule": Schedule.ZERO_BUBBLE},
        {"data": 2, "data_sharding": DataSharding.PARAMETERS, "reshard_after_forward": False},
    ],
    ids=["1f1b", "interleaved", "gpipe", "zero bubble", "sharded"],
)
@pytest.mark.parametrize("software", [MEGATRON, TransformerRuntime()])
def test_rounds_of_a_pipeline_repeat_each_other(spread, software):
    spread = {"pipeline": 4, "tensor": 1, "data": 1} | spread
    for model in (TINY, SMALL):
        many = step(model, batch=200 * spread["data"], software=software, **spread)
        whole, found = many.iteration().run(), many.simulated()
        assert found.time_s == pytest.approx(whole.time_s, rel=1e-9)
        assert found.bound_by == whole.bound_by
    # Of the small steps, the host binds several stages at once.
    for one, other in zip(found.breakdown, whole.breakdown, strict=True):
        assert astuple(one) == pytest.approx(astuple(other), abs=1e-9 * whole.time_s)
    prediction = predict_job(many)
    assert prediction.iteration_time_s == found.time_s
    assert prediction.iteration_time_p5_s < found.time_s < prediction.iteration_time_p95_s
    assert any("micro-batches are simulated" in note for note in prediction.notes)
