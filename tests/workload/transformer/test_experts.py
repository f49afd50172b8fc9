"""Mixtures of experts: work, memory and exchanges by hand."""

from __future__ import annotations

from dataclasses import replace
from statistics import NormalDist

from hypothesis import given
from hypothesis import strategies as st
import pytest

from dse.errors import ConfigError
from dse.machine import Precision
from dse.machine.collectives import CollectiveOp, Group, collective_estimate
from dse.machine.platforms import load_platform
from dse.model import MixtureOfExperts, load_model
from dse.workload import LaunchMode, predict_job
from dse.workload.transformer import (
    IDEAL_RUNTIME,
    MEGATRON_CORE,
    PYTORCH,
    DataSharding,
    ExpertDispatch,
    Offload,
    Parallelism,
    Recompute,
    RecomputeModule,
    TransformerJob,
)
from dse.workload.transformer.kernels._durations import KernelTimes
from dse.workload.transformer.kernels._experts import ExpertWork
from dse.workload.transformer.kernels._layer import LayerWork
from dse.workload.transformer.kernels._operators import Elementwise, Product
from dse.workload.transformer.kernels._routing import busiest_load
from dse.workload.transformer.step._costs import StepCosts
from dse.workload.transformer.step._structure import Role
from dse.workload.transformer.step._transfers import Transfers

MODEL = replace(load_model("mixtral_8x7b"), layers=2)
H100 = load_platform("h100_sxm")


def job(model=MODEL, gpus=8, batch=8, **spread):
    spread = {"data": gpus} | spread
    return TransformerJob(
        model, H100.cluster(gpus), batch, Precision.BF16, Parallelism(**spread), MEGATRON_CORE
    )


def time_s(*args, **kwargs):
    return predict_job(job(*args, **kwargs)).iteration_time_s


def memory(asked):
    return dict(asked.memory()[0].parts)


def exchange_s(asked, **switch):
    """Seconds that exchanges with experts add to a step."""
    none = replace(asked.cluster.link, bandwidth_bytes_per_s=1e18, latency_s=0.0, calibrations=())
    free = replace(asked, cluster=replace(asked.cluster, link=none))
    spread = replace(asked.parallelism, **switch)
    with_them, without = (
        predict_job(replace(one, parallelism=spread)).iteration_time_s for one in (asked, free)
    )
    return with_them - without


def test_exchanges_hide_but_for_the_first_and_the_last():
    """Four micro-batches make three pairs; a forward and a backward pass are alone."""
    spread = {"expert": 8, "expert_dispatch": ExpertDispatch.ALL_TO_ALL}
    asked = replace(job(batch=32, **spread), software=IDEAL_RUNTIME)
    hidden = replace(asked, parallelism=replace(asked.parallelism, expert_overlap=True))
    assert hidden.paired_share == pytest.approx(3 / 4)
    open_s, hidden_s = (exchange_s(asked, expert_overlap=switch) for switch in (False, True))
    # What is hidden costs the contention of kernels.
    assert open_s / 4 < hidden_s < 0.5 * open_s
    assert memory(hidden) == memory(replace(asked, parallelism=replace(asked.parallelism)))
    # Of three stages of two chunks, stages begin with 6, 4 and 2 passes, and one more.
    deep = job(
        replace(MODEL, layers=6),
        gpus=24,
        batch=48,
        **{"data": 8, "pipeline": 3, "interleave": 2, "expert": 8, "expert_overlap": True},
    )
    alone = sum(2 * (2 - stage) + 3 + 1 for stage in range(3))
    assert deep.paired_share == pytest.approx(1 - alone / (3 * 12))


@given(
    batch=st.sampled_from([16, 24, 64]),
    expert=st.sampled_from([2, 4, 8]),
    dispatch=st.sampled_from([ExpertDispatch.ALL_TO_ALL, ExpertDispatch.DEDUPLICATED]),
    software=st.sampled_from([IDEAL_RUNTIME, MEGATRON_CORE]),
)
def test_hidden_exchanges_are_never_slower(batch, expert, dispatch, software):
    spread = {"expert": expert, "expert_dispatch": dispatch}
    asked = replace(job(batch=batch, **spread), software=software)
    exposed_s, hidden_s, usual_s = (
        predict_job(
            replace(asked, parallelism=replace(asked.parallelism, expert_overlap=switch))
        ).iteration_time_s
        for switch in (False, True, None)
    )
    assert hidden_s <= exposed_s * (1 + 1e-9)
    assert usual_s == (hidden_s if software is IDEAL_RUNTIME else exposed_s)


@pytest.mark.parametrize(
    ("spread", "words"),
    [
        ({"expert": 1}, "expert > 1"),
        ({"batch": 8}, "several"),
        ({"expert_dispatch": ExpertDispatch.ALL_GATHER}, "allgather"),
        ({"recompute": Recompute.FULL}, "recompute less"),
        ({"data": 4, "pipeline": 2, "expert": 4}, "interleave > 1"),
    ],
)
def test_exchanges_hide_only_where_programs_can_hide_them(spread, words):
    asked = job(**{"batch": 32, "expert": 8, "expert_overlap": True} | spread)
    with pytest.raises(ConfigError, match=words):
        asked.check()
    # Where nobody asks for it, they do not hide.
    usual = replace(asked.parallelism, expert_overlap=None)
    assert not replace(asked, parallelism=usual, software=IDEAL_RUNTIME).expert_overlap


def test_a_model_without_experts_has_nothing_to_hide():
    with pytest.raises(ConfigError, match="has no experts"):
        job(load_model("llama3_8b"), batch=32, expert_overlap=True).check()


def test_grouped_products_have_the_rows_of_all_experts_of_a_rank():
    # 4,096 tokens visit two experts each; a rank has one expert of eight ranks' tokens.
    for expert in (1, 8):
        products = [
            kernel
            for kernel in LayerWork(job(expert=expert)).layer_forward()
            if isinstance(kernel, Product)
        ]
        assert [(*p[:3], p.experts) for p in products[2:]] == [
            (4096, 8, 4096, 1),
            (8192, 2 * 14336, 4096, 8 // expert),
            (8192, 4096, 14336, 8 // expert),
        ]


def test_every_gradient_does_the_arithmetic_of_its_product():
    def arithmetic(kernels):
        return sum(k.m * k.n * k.k for k in kernels if isinstance(k, Product) and k.experts > 1)

    work = ExpertWork(job())
    assert arithmetic(work.backward()) == pytest.approx(2 * arithmetic(work.forward()))


def test_experts_are_shared_by_ranks():
    alone, shared = memory(job()), memory(job(expert=8))
    experts = 2 * MODEL.layer_expert_parameters
    assert alone["weights"] - shared["weights"] == pytest.approx(2 * experts * 7 / 8)
    # Shards of the optimizer are as large either way: every replica of a weight has a part.
    sharded = [
        memory(job(expert=expert, data_sharding=DataSharding.OPTIMIZER))["optimizer state"]
        for expert in (1, 8)
    ]
    assert sharded[0] == pytest.approx(sharded[1])


def test_experts_elsewhere_cost_two_exchanges_a_layer_and_direction():
    asked, rows = job(expert=8, expert_dispatch=ExpertDispatch.ALL_TO_ALL), 2 * 4096
    exchange = Transfers(asked).experts()
    once = collective_estimate(
        asked.cluster, CollectiveOp.ALL_TO_ALL, 2.0 * rows * MODEL.hidden, Group(1, 8)
    )
    assert exchange.inside_s == pytest.approx(2 * float(once.time_s))
    assert Transfers(job()).experts().transfer_s == 0


def test_gathered_tokens_and_scattered_sums():
    asked = job(expert=8, expert_dispatch=ExpertDispatch.ALL_GATHER)
    size = 2.0 * 8 * 4096 * MODEL.hidden
    by_hand = sum(
        float(collective_estimate(asked.cluster, op, size, Group(1, 8)).time_s)
        for op in (CollectiveOp.ALL_GATHER, CollectiveOp.REDUCE_SCATTER)
    )
    assert Transfers(asked).experts().inside_s == pytest.approx(by_hand)


def test_gradients_of_experts_in_several_copies_by_hand():
    # Two copies of four shards each, and a rank has four of the eight experts: it scatters the
    # others' gradients over four ranks, those of its experts over two, and adds up both parts.
    asked = job(expert=2, data_sharding=DataSharding.PARAMETERS, sharding_degree=4)
    cluster, value = asked.cluster, asked.gradient_bytes
    rest, experts = 3e6, 8e6
    by_hand = sum(
        float(collective_estimate(cluster, op, value * count, group).time_s)
        for op, count, group in (
            (CollectiveOp.REDUCE_SCATTER, rest, Group(1, 4)),
            (CollectiveOp.REDUCE_SCATTER, experts, Group(1, 2)),
            (CollectiveOp.ALL_REDUCE, rest / 4 + experts / 2, Group(1, 2)),
        )
    )
    assert Transfers(asked).reduced(rest, experts).inside_s == pytest.approx(by_hand)


@pytest.mark.parametrize("gpus", [8, 16])
def test_a_token_is_sent_once_to_a_rank_and_once_to_a_node(gpus):
    many = replace(MODEL, experts=MixtureOfExperts(count=128, active=8, ffn_hidden=768))
    spread = {"gpus": gpus, "batch": gpus, "expert": gpus}
    exchanges = [
        Transfers(job(many, **spread, expert_dispatch=dispatch)).experts()
        for dispatch in (ExpertDispatch.DEDUPLICATED, ExpertDispatch.ALL_TO_ALL)
    ]
    assert exchanges[0].transfer_s < exchanges[1].transfer_s
    # Two nodes, of which a token needs 1.99, instead of eight rows.
    if gpus == 16:
        assert exchanges[0].network_s < 0.5 * exchanges[1].network_s


def test_experts_of_fewer_tensor_parallel_ranks_than_attention():
    folded = {"data": 4, "tensor": 2, "sequence_parallel": True, "expert": 8, "expert_tensor": 1}
    asked = job(**folded)
    asked.check()
    # Each rank has 2,048 tokens of its own, which visit two of eight whole experts.
    work = ExpertWork(asked)
    assert work.rows == 2 * 2048
    assert [k[:3] for k in work.forward() if isinstance(k, Product)][1:] == [
        (4096, 2 * 14336, 4096),
        (4096, 4096, 14336),
    ]
    # As many weights of experts on a rank as with halves of four experts' matrices on each.
    halves = job(**{**folded, "expert": 4, "expert_tensor": 2})
    halves.check()
    assert memory(asked)["weights"] == memory(halves)["weights"]
    # Only halves have to be gathered and summed.
    whole_s, halves_s = (Transfers(one).experts().transfer_s for one in (asked, halves))
    assert whole_s < halves_s


@pytest.mark.parametrize(
    ("spread", "expected"),
    [
        (
            {"expert_tensor": 3},
            "expert_tensor 3 does not divide the 14336 columns of an expert; 2 does",
        ),
        ({"tensor": 2, "data": 4, "expert_tensor": 1}, "sequence parallelism"),
        ({"expert_tensor": 0}, "at least 1"),
    ],
)
def test_degrees_of_expert_tensor_parallelism_that_cannot_be(spread, expected):
    with pytest.raises(ConfigError) as caught:
        job(**spread).check()
    assert expected in str(caught.value)


# --- kernels of the program ------------------------------------------------------------------


def launches(kernels):
    return sum(k.launches for k in kernels if isinstance(k, Elementwise))


def traffic(kernels):
    return sum(k.traffic_bytes for k in kernels if isinstance(k, Elementwise) and k.separate)


def test_biases_and_limits_of_experts_by_hand():
    one = MixtureOfExperts(8, 2, 1024, biases=True, limited=True)
    work = ExpertWork(job(replace(MODEL, experts=one)))
    rows, hidden, inner = 2 * 4096, 4096, 1024
    # Of bias and limit: each reads and writes both halves twice, in two bytes. Of the output's
    # bias: weight times bias 4, sum 2 + 4 + 4, put together 8, cast 6.
    assert traffic(work.forward()) == rows * (2 * 4 * 2 * 2 * inner + 28 * hidden)
    assert traffic(work.backward()) == rows * (8 * 2 * 2 * inner + 40 * hidden)


def test_the_gradient_of_an_activation_without_a_gate_by_hand():
    # It reads what went in and the gradient of what came out, and writes one of its own.
    work = ExpertWork(job(replace(MODEL, gated_ffn=False)))
    (largest, *_) = sorted(
        (k.traffic_bytes for k in work.backward() if isinstance(k, Elementwise)), reverse=True
    )
    assert largest == 3 * 2 * (2 * 4096) * 14336


@pytest.mark.parametrize(
    ("software", "gated", "values"),
    [(MEGATRON_CORE, True, 3), (PYTORCH, True, 5), (PYTORCH, False, 2)],
)
def test_values_that_an_activation_moves(software, gated, values):
    # One kernel reads gate and columns and writes their product; two read and write the activated
    # gate between them.
    asked = replace(job(replace(MODEL, gated_ffn=gated)), software=software)
    (kernel,) = ExpertWork(asked).activation()
    assert kernel.traffic_bytes == values * 2 * (2 * 4096) * 14336


def test_mxfp8_has_biases_and_limits_inside_its_products():
    one = replace(MODEL, experts=MixtureOfExperts(8, 2, 1024, biases=True, limited=True))
    asked = replace(job(one), precision=Precision.MXFP8)
    assert traffic(ExpertWork(asked).forward()) == 0
    assert traffic(ExpertWork(replace(asked, precision=Precision.FP8)).forward()) > 0


def test_ideal_experts_take_few_kernels():
    ideal = replace(job(), software=IDEAL_RUNTIME)
    assert launches(ExpertWork(ideal).forward()) < launches(ExpertWork(job()).forward()) - 40


def test_no_program_has_faster_experts_than_ideal():
    for expert in (1, 8):
        asked = job(expert=expert)
        ideal = predict_job(replace(asked, software=IDEAL_RUNTIME))
        assert ideal.iteration_time_s < predict_job(asked).iteration_time_s


# --- how uneven the routing is ---------------------------------------------------------------


def mixture(**changes):
    return replace(MixtureOfExperts(64, 4, 128), **changes)


def test_even_routing_loads_all_ranks_alike():
    assert busiest_load(mixture(), 8) == (1.0, 0.0)
    assert busiest_load(mixture(imbalance=1.3), 8).mean == 1.3


def test_two_experts_of_two_ranks_by_hand():
    # Shares 2/3 and 1/3: deviation of 1/3 around the mean; the larger of two draws of a normal
    # distribution is 0.59 of it above (Blom), below the most popular expert's 4/3.
    found = busiest_load(MixtureOfExperts(2, 1, 128, skew=1.0), 2)
    largest = NormalDist().inv_cdf(1.625 / 2.25)
    assert found.mean == pytest.approx(1 + largest / 3)


@given(st.floats(0, 2), st.floats(0, 2), st.sampled_from([1, 2, 8, 64]))
def test_more_skew_loads_the_busiest_rank_more(skew, more, group):
    first, second = (busiest_load(mixture(skew=s), group).mean for s in (skew, skew + more))
    assert 1.0 <= first <= second * (1 + 1e-9) <= group * (1 + 1e-6)


@given(st.floats(0, 2))
def test_fewer_experts_a_rank_are_more_uneven(skew):
    loads = [busiest_load(mixture(skew=skew), group).mean for group in (1, 2, 4, 8)]
    assert loads == sorted(loads)


def test_capacity_drops_rows_and_fills_up():
    dropping = mixture(imbalance=2.0, capacity_factor=1.25)
    assert busiest_load(dropping, 8).mean == 1.25
    assert busiest_load(mixture(capacity_factor=1.25), 8).mean == 1.0
    assert busiest_load(mixture(capacity_factor=1.25, pads_to_capacity=True), 8).mean == 1.25


def test_skew_widens_the_interval():
    widths = []
    for skew in (0.0, 1.0):
        model = replace(MODEL, experts=replace(MODEL.experts, skew=skew))
        found = predict_job(job(model, expert=8))
        widths.append(found.iteration_time_p95_s / found.iteration_time_p5_s)
    assert widths[1] > widths[0]


def test_uneven_routing_is_never_faster():
    times = [
        time_s(
            replace(MODEL, experts=MixtureOfExperts(8, 2, 14336, imbalance=imbalance)), expert=8
        )
        for imbalance in (1.0, 1.2, 2.0)
    ]
    assert times == sorted(times)
    assert times[2] > times[0]


@pytest.mark.parametrize(
    ("model", "expert", "expected"),
    [("llama3_8b", 2, "has no experts"), (MODEL, 3, "2 does"), (MODEL, 16, "8 does")],
)
def test_degrees_that_cannot_be(model, expert, expected):
    found = load_model(model) if isinstance(model, str) else model
    with pytest.raises(ConfigError) as caught:
        job(found, expert=expert).check()
    assert expected in str(caught.value)


# --- launches ------------------------------------------------------------------------------------


def test_experts_are_launched_kernel_by_kernel_beside_graphs():
    """Rows ordered and put back (two kernels each), two products, and the activation: seven."""
    asked = replace(job(), software=replace(MEGATRON_CORE, launch=LaunchMode.CUDA_GRAPHS))
    eager = replace(asked, software=MEGATRON_CORE)
    forward, launched = (
        StepCosts(one).of((Role.LAYER_FORWARD, 0, 0, 0)) for one in (asked, eager)
    )
    kernels = KernelTimes(asked.cluster.device, asked.precision, asked.software)
    all_of_them = kernels.measure([LayerWork(asked).layer_forward()])[0].launches
    each_s = launched.dispatch_s / all_of_them
    graph_s = asked.cluster.host.graph_launch_s
    assert forward.dispatch_s == pytest.approx(graph_s + 7 * each_s)
    assert forward.device_s == launched.device_s


@pytest.mark.parametrize(
    "spread",
    [
        {"recompute": Recompute.FULL},
        {"recompute": Recompute.SELECTIVE, "recompute_modules": (RecomputeModule.EXPERTS,)},
        {"offload": Offload.ACTIVATIONS},
    ],
)
def test_what_graphs_cannot_hold_is_refused(spread):
    eager = job(**spread)
    eager.check()
    captured = replace(eager, software=replace(MEGATRON_CORE, launch=LaunchMode.CUDA_GRAPHS))
    with pytest.raises(ConfigError, match="launch cuda_graphs"):
        captured.check()
