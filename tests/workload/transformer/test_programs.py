"""Training programs: what their host does for collectives, and how they divide layers."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st
import pytest

from dse.errors import ConfigError
from dse.machine import Precision
from dse.machine.platforms import load_platform
from dse.model import load_model
from dse.workload import IDEAL, LaunchMode, load_workload, predict_job
from dse.workload.transformer import (
    NANOTRON,
    TRANSFORMER_PROGRAMS,
    DataSharding,
    Parallelism,
    Recompute,
    TransformerJob,
    TransformerRuntime,
)
from tests.conftest import make_cluster

#: So small that launches bind it.
TINY = replace(
    load_model("gpt_22b"),
    layers=8,
    hidden=64,
    heads=4,
    kv_heads=4,
    head_dim=16,
    ffn_hidden=256,
    vocab=512,
    sequence_length=64,
)
SILENT = replace(NANOTRON, calls_per_collective=0.0, delay_beside_stages_s=0.0)


def step(software=NANOTRON, model=TINY, batch=8, per_node=8, **parallelism):
    spread = Parallelism(**parallelism)
    cluster = make_cluster(spread.world_size, min(per_node, spread.world_size))
    return TransformerJob(model, cluster, batch, Precision.BF16, spread, software)


def time_of(problem):
    return predict_job(problem).iteration_time_s


@pytest.mark.parametrize("program", TRANSFORMER_PROGRAMS.values(), ids=lambda found: found.name)
def test_fitted_values_are_those_of_the_runtime(program):
    softwares = (program.software, program.software_for(on_cpu=True))
    for fitted in program.fitted:
        assert fitted.value in [getattr(software, fitted.name) for software in softwares]


@pytest.mark.parametrize("spread", [{"tensor": 2}, {"data_sharding": "zero3"}], ids=str)
def test_calls_of_a_cpu_are_not_those_of_a_device_that_has_to_be_launched(spread):
    # Both train eagerly on the GPU, `pytorch` without rotary positions.
    chosen = {"world_size": 2, "global_batch_size": 4, **spread}
    workload = load_workload("llama3_8b")
    gpu, cpu = load_platform("h100_sxm"), load_platform("cpu")
    times_s = [
        time_of(workload.job(gpu, {**chosen, "program": program}))
        for program in ("pytorch", "torchtitan_eager")
    ]
    assert times_s[0] <= times_s[1] * 1.01
    job = workload.job(cpu, {**chosen, "program": "pytorch"})
    found = TRANSFORMER_PROGRAMS["pytorch"]
    assert job.software == found.software_for(on_cpu=True) != found.software


@pytest.mark.parametrize("name", ["megatron", "nemo", "megatron_bridge", "nanotron"])
def test_megatron_and_nanotron_repeat_whole_layers(name):
    # A third of the arithmetic of the layers: the head repeats nothing.
    found = predict_job(step(TRANSFORMER_PROGRAMS[name].software, recompute=Recompute.FULL))
    spent = found.metric("hardware_flops_utilization") / found.metric("model_flops_utilization")
    layers = 1 - TINY.head_flops_per_sample / TINY.forward_flops_per_sample
    assert spent == pytest.approx(1 + layers / 3)


@pytest.mark.parametrize("program", TRANSFORMER_PROGRAMS.values(), ids=lambda found: found.name)
def test_no_program_loses_more_between_nodes_than_nanotron(program):
    lost_s = [
        time_of(step(software, tensor=4, per_node=2)) - time_of(step(software, tensor=4))
        for software in (program.software, NANOTRON)
    ]
    assert lost_s[0] <= lost_s[1]


@pytest.mark.parametrize("tensor", [1, 4])
@pytest.mark.parametrize("program", TRANSFORMER_PROGRAMS.values(), ids=lambda found: found.name)
def test_no_program_is_faster_than_the_ideal_one(program, tensor):
    def time(software, batch):
        return time_of(step(software, batch=batch, data=8 // tensor, tensor=tensor))

    # Bound by launches, and by kernels.
    for batch in (8, 2**12):
        assert time(TRANSFORMER_PROGRAMS[IDEAL].software, batch) <= time(program.software, batch)


@pytest.mark.parametrize(
    ("pipeline", "expected"),
    [
        (1, (16,)),
        (2, (10, 6)),
        (3, (7, 7, 2)),
        (4, (5, 5, 5, 1)),
        (8, (3, 2, 3, 2, 3, 2, 1, 0)),
    ],
)
def test_stages_share_the_arithmetic_of_layers_and_logits(pipeline, expected):
    # The logits count as four layers: a stage of four is full with five of the twenty.
    model = replace(TINY, layers=16)
    model = replace(model, vocab=4 * model.layer_matrix_parameters // model.hidden)
    assert step(model=model, pipeline=pipeline).layers_by_chunk == expected


@given(st.integers(1, 40), st.integers(1, 16), st.integers(0, 4000))
def test_every_layer_is_on_one_stage(layers, pipeline, vocab):
    job = step(model=replace(TINY, layers=layers, vocab=64 + vocab), pipeline=pipeline)
    assert len(job.layers_by_chunk) == pipeline
    assert sum(job.layers_by_chunk) == layers


def test_a_stage_of_the_head_alone_has_memory_and_a_time():
    model = replace(TINY, vocab=8192)
    job = step(model=model, pipeline=4, data=2, data_sharding=DataSharding.OPTIMIZER)
    assert job.layers_by_chunk[-1] == 0
    prediction = predict_job(job)
    assert prediction.iteration_time_s > 0
    assert all(account.total_bytes > 0 for account in prediction.memory)


def test_more_stages_than_layers_are_refused():
    with pytest.raises(ConfigError):
        predict_job(step(pipeline=16, batch=16))


def test_the_host_calls_the_framework_for_collectives():
    # Two collectives in each direction of each layer, on a host that binds the step.
    silent, calling = (
        step(replace(SILENT, calls_per_collective=calls), tensor=2) for calls in (0.0, 10.0)
    )
    host = silent.cluster.host
    call_s = host.between_operators_s + host.before_launch_s + host.launch_s + host.after_launch_s
    extra_s = 8 * TINY.layers * 4 * 10 * call_s
    assert time_of(calling) - time_of(silent) == pytest.approx(extra_s, rel=0.01)


def test_delays_of_ranks_add_up_beside_stages_on_other_nodes():
    delayed = replace(SILENT, delay_beside_stages_s=1e-3)
    whole = {"tensor": 2, "pipeline": 2}
    assert time_of(step(delayed, **whole)) == time_of(step(SILENT, **whole))
    apart_s = time_of(step(delayed, per_node=2, **whole))
    extra_s = apart_s - time_of(step(SILENT, per_node=2, **whole))
    # Eight passes of four or five layers, and one or two more while the pipeline fills.
    layer_s = 4 * 2 * 1e-3
    assert 8 * 4 * layer_s < extra_s < 10 * 5 * layer_s


def test_delays_between_nodes_need_several_nodes():
    delayed = replace(SILENT, delay_between_nodes_s=1e-3)
    assert time_of(step(delayed, tensor=4)) == time_of(step(SILENT, tensor=4))
    apart_s, silent_s = (time_of(step(one, per_node=2, tensor=4)) for one in (delayed, SILENT))
    assert apart_s - silent_s == pytest.approx(8 * TINY.layers * 4 * 0.63e-3, rel=0.05)


@given(st.sampled_from([DataSharding.NONE, DataSharding.OPTIMIZER]), st.integers(1, 3))
def test_tensors_sent_apart_are_never_faster(sharding, exponent):
    apart, together = (
        step(
            replace(TransformerRuntime(), tensors_apart=tensors_apart),
            data=2**exponent,
            per_node=2,
            data_sharding=sharding,
        )
        for tensors_apart in (True, False)
    )
    assert time_of(apart) >= time_of(together) * (1 - 1e-12)


SHARDED = {"data": 4, "data_sharding": DataSharding.PARAMETERS}


def test_copies_of_gathered_parameters_take_the_time_of_their_bytes():
    software = replace(TRANSFORMER_PROGRAMS["torchtitan"].software, launch=LaunchMode.CUDA_GRAPHS)
    model = replace(TINY, hidden=2048, ffn_hidden=8192, heads=16, kv_heads=16, head_dim=128)
    # So long that no transfer binds.
    model = replace(model, sequence_length=16384)
    without, copied = (
        step(replace(software, copies_parameters=copies), model, **SHARDED)
        for copies in (False, True)
    )
    # 2 + 2 bytes after each gather, and 2 + 4 of a gradient; two micro-batches.
    moved_bytes = 2 * 14 * model.layers * model.layer_parameters
    least_s = moved_bytes / copied.cluster.device.memory_bandwidth_bytes_per_s
    assert least_s < time_of(copied) - time_of(without) < 2 * least_s


def test_what_is_not_sharded_is_not_copied():
    software = TRANSFORMER_PROGRAMS["torchtitan"].software
    times_s = {
        time_of(step(replace(software, copies_parameters=copies), data=4))
        for copies in (False, True)
    }
    assert len(times_s) == 1


def test_compiled_layers_are_never_slower_than_eager_ones():
    for model in (TINY, replace(TINY, hidden=1024, ffn_hidden=4096, heads=16, kv_heads=16)):
        compiled, eager = (
            step(TRANSFORMER_PROGRAMS[name].software, model, **SHARDED)
            for name in ("torchtitan", "torchtitan_eager")
        )
        assert time_of(compiled) < time_of(eager)
