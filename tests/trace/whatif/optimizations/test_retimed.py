"""Re-timing over hand-made ranks; expected times come from the kernel models by hand."""

from __future__ import annotations

import pytest

from dse.errors import ConfigError, DseError
from dse.machine import Precision
from dse.machine.collectives import CollectiveOp, collective_time_s
from dse.machine.platforms import load_platform
from dse.trace import COMPUTING, TaskRole, read_kineto
from dse.trace.whatif import Selector, captured_step, parse_optimization
from dse.trace.whatif.retime._kernels import precision_of_kernel
from tests.trace.helpers import call, kernel, operator, span, write

V100, H100 = "v100_dgx1", "h100_sxm"
_VALUES = 512 * 64


def shapes(*tensors, types=None):
    kinds = types or ["float" if tensor else "Scalar" for tensor in tensors]
    return {"Input Dims": list(tensors), "Input type": kinds}


def rank_events(*, shaped=True):
    """One step: a linear layer of 512 × 64 on 256 samples, its gradient, all-reduce, update."""

    def given(*tensors):
        return shapes(*tensors) if shaped else {}

    ids = {"Collective name": "allreduce", "In msg nelems": _VALUES, "Out msg nelems": _VALUES}
    ids |= {"Group size": 2, "dtype": "Float", "Process Group Name": "0"}
    sequence = {"Sequence number": 5, "Fwd thread id": 0}
    evaluate = "autograd::engine::evaluate_function: "
    return [
        span("user_annotation", "ProfilerStep#1", 0, 1000, pid=10, tid=11),
        operator("aten::copy_", 0, 20, **given([256, 512], [256, 512], [])),
        call(5, 5, 1, name="cudaMemcpyAsync"),
        kernel("Memcpy HtoD (Pinned -> Device)", 20, 60, 1, cat="gpu_memcpy", bytes=524288),
        operator("aten::addmm", 20, 40, **given([64], [256, 512], [512, 64], [], []), **sequence),
        call(22, 5, 2),
        kernel("volta_sgemm_128x64_tn", 80, 100, 2),
        call(40, 5, 3),
        kernel("splitKreduce_kernel", 180, 10, 3),
        operator("aten::relu", 60, 20, **given([256, 64])),
        call(62, 5, 4),
        kernel("elementwise_relu", 190, 20, 4),
        operator("aten::mystery", 80, 20),
        call(82, 5, 5),
        kernel("cutlass_hgemm_f16", 210, 30, 5),
        operator("aten::oddity", 100, 20),
        call(102, 5, 6),
        kernel("scatter_gather", 240, 40, 6),
        operator(evaluate + "AddmmBackward0", 120, 30, **{**sequence, "Fwd thread id": 1}),
        operator("aten::mm", 122, 20, **given([512, 256], [256, 64])),
        call(124, 5, 7),
        kernel("volta_sgemm_64x64_nt", 280, 80, 7),
        operator(evaluate + "torch::autograd::AccumulateGrad", 150, 60),
        operator("torch::autograd::AccumulateGrad", 152, 50, **given([512, 64])),
        operator("c10d::allreduce_", 160, 40),
        span("user_annotation", "nccl:all_reduce", 165, 30, pid=10, tid=11),
        call(170, 5, 8),
        kernel("ncclDevKernel_AllReduce_Sum", 360, 50, 8, stream=20, **ids),
        span("user_annotation", "Optimizer.step#SGD.step", 300, 60, pid=10, tid=11),
        operator("aten::addcmul_", 310, 20, **given([512, 64], [512, 64], [512, 64], [])),
        call(312, 5, 9),
        kernel("elementwise_addcmul", 420, 15, 9),
        call(500, 400, 10, name="cudaDeviceSynchronize"),
    ]


@pytest.fixture
def make(tmp_path):
    def made(*, platform=V100, **options):
        for rank in range(2):
            write(
                tmp_path / f"rank{rank}.json",
                rank_events(**options),
                rank=rank,
                deviceProperties=[{"id": 0, "name": "Tesla V100-SXM2-32GB"}],
            )
        return captured_step(read_kineto(tmp_path), platform=platform)

    return made


def after(captured, *texts):
    """Returns the editor after changes and its device times of rank 0 by name, in µs."""
    editor = captured.editor()
    for text in texts:
        parse_optimization(text).apply(editor)
    tasks = editor.select(Selector(rank=(0,), role=(*COMPUTING, TaskRole.COLLECTIVE)))
    return editor, {editor.name_of(task): editor.duration_of(task) * 1e6 for task in tasks}


def ratio(op, before, behind, **other):
    """Model's time behind over before; each side is a platform with sizes."""
    (first, old), (second, new) = before, behind
    numerator = load_platform(second).kernel_time(op, **{**other, **new})
    return float(numerator / load_platform(first).kernel_time(op, **{**other, **old}))


def test_gpu_by_hand(make):
    editor, times = after(make(), f"gpu={H100}")
    sizes = {"m": 256, "n": 64, "k": 512, "precision": "fp32"}
    product = ratio("gemm", (V100, sizes), (H100, sizes))
    assert times["volta_sgemm_128x64_tn"] == pytest.approx(100 * product)
    # Everything that an operator launched gets its ratio.
    assert times["splitKreduce_kernel"] == pytest.approx(10 * product)
    sizes = {"m": 512, "n": 64, "k": 256, "precision": "fp32"}
    assert times["volta_sgemm_64x64_nt"] == pytest.approx(
        80 * ratio("gemm", (V100, sizes), (H100, sizes))
    )
    sizes = {"traffic_bytes": 2 * 256 * 64 * 4}
    assert times["elementwise_relu"] == pytest.approx(
        20 * ratio("elementwise", (V100, sizes), (H100, sizes))
    )
    sizes = {"size_bytes": 524288}
    assert times["Memcpy HtoD (Pinned -> Device)"] == pytest.approx(
        60 * ratio("memcpy_h2d", (V100, sizes), (H100, sizes))
    )
    old, new = (load_platform(name).cluster(2) for name in (V100, H100))
    transfer = [collective_time_s(one, CollectiveOp.ALL_REDUCE, 4 * _VALUES) for one in (old, new)]
    assert times["ncclDevKernel_AllReduce_Sum"] == pytest.approx(
        50 * float(transfer[1] / transfer[0])
    )
    assert editor.machine.platform.name == H100


def test_gpu_without_shapes_goes_by_peak_rates(make):
    editor, times = after(make(), f"gpu={H100}")
    old, new = load_platform(V100).device, load_platform(H100).device
    floors = old.kernel_floor_s * 1e6, new.kernel_floor_s * 1e6
    arithmetic = old.peak.of(Precision.FP16) / new.peak.of(Precision.FP16)
    memory = old.memory_bandwidth_bytes_per_s / new.memory_bandwidth_bytes_per_s
    assert times["cutlass_hgemm_f16"] == pytest.approx((30 - floors[0]) * arithmetic + floors[1])
    assert times["scatter_gather"] == pytest.approx((40 - floors[0]) * memory + floors[1])
    assert any("4 of 16 kernels" in note for note in editor.notes)


def test_gpu_is_never_slower_where_the_models_say_so(make):
    captured = make()
    _, before = after(captured, f"gpu={V100}")
    _, times = after(captured, f"gpu={H100}")
    assert all(times[name] <= before[name] for name in times)


@pytest.mark.parametrize("name", ["gpu", "device"])
def test_the_same_platform_changes_nothing(make, name):
    captured = make()
    answer = captured.what_if([parse_optimization(f"{name}={V100}")])
    assert answer.after_s == pytest.approx(answer.before_s, rel=1e-12)
    _, times = after(captured, f"{name}={V100}")
    assert times["elementwise_relu"] == pytest.approx(20)


def test_gpu_there_and_back(make):
    _, times = after(make(), f"gpu={H100}", f"gpu={V100}")
    assert times["volta_sgemm_128x64_tn"] == pytest.approx(100)
    assert times["scatter_gather"] == pytest.approx(40)


def test_gpu_with_a_faster_host(make):
    captured = make()
    editor, _ = after(captured, f"gpu={V100},host=0.5x")
    old = captured.editor()
    calls = Selector(rank=(0,), role=(TaskRole.CALL, TaskRole.HOST_GAP, TaskRole.HOST_WORK))
    before = sum(map(old.duration_of, old.select(calls)))
    assert sum(map(editor.duration_of, editor.select(calls))) == pytest.approx(0.5 * before)


def test_a_step_without_work_of_a_device_has_none_to_run_elsewhere(tmp_path):
    events = [
        span("user_annotation", "ProfilerStep#1", 0, 100, pid=10, tid=11),
        operator("aten::view", 10, 20),
        span("user_annotation", "ProfilerStep#2", 100, 100, pid=10, tid=11),
        operator("aten::relu", 110, 20),
        call(115, 5, 1),
        kernel("relu", 125, 20, 1),
    ]
    traces = read_kineto(write(tmp_path / "t.json", events))
    idle, busy = (captured_step(traces, step=step, platform=V100) for step in (1, 2))
    with pytest.raises(ConfigError, match="no work of a device"):
        after(idle, f"gpu={H100}")
    assert after(busy, f"gpu={H100}")[0].machine.platform.name == H100


def test_gpu_needs_to_know_both_devices(make, tmp_path):
    with pytest.raises(DseError, match="no_such_gpu"):
        after(make(), "gpu=no_such_gpu")
    with pytest.raises(ConfigError, match="only another GPU"):
        after(make(), "gpu=cpu")
    with pytest.raises(ConfigError, match="options of `gpu`"):
        parse_optimization("gpu")


def test_cpu_operators_on_another_cpu(tmp_path):
    events = [
        span("user_annotation", "ProfilerStep#1", 0, 300, pid=10, tid=11),
        operator("aten::mm", 0, 200, **shapes([256, 512], [512, 64])),
    ]
    traces = read_kineto(write(tmp_path / "trace.json", events))
    captured = captured_step(traces, platform="cpu")
    editor = captured.editor()
    parse_optimization("device=cpu,host=0.5").apply(editor)
    (task,) = editor.select(Selector(name=("aten::mm",), role=COMPUTING))
    assert editor.duration_of(task) * 1e6 == pytest.approx(200)
    with pytest.raises(ConfigError, match="only another CPU"):
        parse_optimization(f"gpu={H100}").apply(captured.editor())
    with pytest.raises(ConfigError, match="name it with --platform"):
        parse_optimization("device=cpu").apply(captured_step(traces).editor())


def test_precision_by_hand(make):
    _, times = after(make(), "precision=fp16")
    sizes = {"m": 256, "n": 64, "k": 512}
    assert times["volta_sgemm_128x64_tn"] == pytest.approx(
        100 * ratio("gemm", (V100, {"precision": "fp32"}), (V100, {"precision": "fp16"}), **sizes)
    )
    wide, narrow = ({"traffic_bytes": 2 * 256 * 64 * width} for width in (4, 2))
    assert times["elementwise_relu"] == pytest.approx(
        20 * ratio("elementwise", (V100, wide), (V100, narrow))
    )
    # Copies from the host, master weights and gradients stay.
    assert times["Memcpy HtoD (Pinned -> Device)"] == pytest.approx(60)
    assert times["elementwise_addcmul"] == pytest.approx(15)
    assert times["ncclDevKernel_AllReduce_Sum"] == pytest.approx(50)


def test_precision_of_optimizer_and_collectives_on_demand(make):
    editor, times = after(make(), "precision=fp16,optimizer=true,communication=true")
    wide, narrow = ({"traffic_bytes": 4 * _VALUES * width} for width in (4, 2))
    assert times["elementwise_addcmul"] == pytest.approx(
        15 * ratio("elementwise", (V100, wide), (V100, narrow))
    )
    cluster = load_platform(V100).cluster(2)
    old, new = (
        collective_time_s(cluster, CollectiveOp.ALL_REDUCE, width * _VALUES) for width in (4, 2)
    )
    assert times["ncclDevKernel_AllReduce_Sum"] == pytest.approx(50 * float(new / old))
    (reduce,) = editor.select(Selector(role=(TaskRole.COLLECTIVE,), rank=(0,)))
    assert editor.size_of(reduce) == 2 * _VALUES


def test_precision_there_and_back(make):
    options = "optimizer=true,communication=true"
    _, before = after(make(), "precision=fp32")
    _, times = after(make(), f"precision=fp16,{options}", f"precision=fp32,{options}")
    shaped = set(times) - {"cutlass_hgemm_f16", "scatter_gather"}
    assert {name: times[name] for name in shaped} == pytest.approx(
        {name: before[name] for name in shaped}
    )


def test_precision_with_casts(make):
    captured = make()
    editor, _ = after(captured, "precision=fp16,casts=true")
    casts = editor.select(Selector(rank=(0,), name=("cast of*",)))
    expected = load_platform(V100).kernel_time("elementwise", traffic_bytes=_VALUES * (4 + 2))
    assert [editor.duration_of(task) for task in casts] == pytest.approx([float(expected)] * 2)
    row = [editor.name_of(task) for task in editor.tasks_on(0, editor.stream_of(casts[0]))]
    row = [name for name in row if name.startswith(("cast", "volta"))]
    assert row == [
        "cast of weights",
        "volta_sgemm_128x64_tn",
        "volta_sgemm_64x64_nt",
        "cast of gradients",
    ]
    assert captured.what_if([parse_optimization("precision=fp16,casts=true")]).after_s > 0


def test_precision_that_the_device_lacks_is_noted(make):
    editor, _ = after(make(), "precision=bf16")
    assert any("no bf16 arithmetic" in note for note in editor.notes)


def test_precision_without_anything_to_change(make):
    with pytest.raises(ConfigError, match="no operator whose precision could change"):
        after(make(), "precision=fp16,keep=*")
    with pytest.raises(ConfigError, match="fp32"):
        parse_optimization("precision=int3")


def test_resize_by_hand(make):
    editor, times = after(make(), "resize=64:128")
    sizes = {"m": 256, "k": 512, "precision": "fp32"}
    assert times["volta_sgemm_128x64_tn"] == pytest.approx(
        100 * ratio("gemm", (V100, {"n": 64}), (V100, {"n": 128}), **sizes)
    )
    old, new = ({"traffic_bytes": 4 * 512 * width * 4} for width in (64, 128))
    assert times["elementwise_addcmul"] == pytest.approx(
        15 * ratio("elementwise", (V100, old), (V100, new))
    )
    # The only parameter has twice as many values, and so has its all-reduce.
    cluster = load_platform(V100).cluster(2)
    reduce = [
        collective_time_s(cluster, CollectiveOp.ALL_REDUCE, 4 * 512 * width) for width in (64, 128)
    ]
    assert times["ncclDevKernel_AllReduce_Sum"] == pytest.approx(50 * float(reduce[1] / reduce[0]))
    assert times["Memcpy HtoD (Pinned -> Device)"] == pytest.approx(60)
    assert editor.work_factor == 1


def test_resize_of_the_batch(make):
    editor, times = after(make(), "resize=256:512,samples=true")
    assert editor.work_factor == 2
    old, new = {"size_bytes": 524288}, {"size_bytes": 2 * 524288}
    assert times["Memcpy HtoD (Pinned -> Device)"] == pytest.approx(
        60 * ratio("memcpy_h2d", (V100, old), (V100, new))
    )
    # Weights, their gradients and their update do not know of the batch.
    assert times["elementwise_addcmul"] == pytest.approx(15)
    assert times["ncclDevKernel_AllReduce_Sum"] == pytest.approx(50)
    answer = make().what_if([parse_optimization("resize=256:512,samples=true")])
    assert answer.speedup == pytest.approx(2 * answer.before_s / answer.after_s)


@pytest.mark.parametrize(
    "texts",
    [
        ("resize=64:128", "resize=128:64"),
        ("resize=256:1024", "resize=1024:256"),
    ],
)
def test_resize_there_and_back(make, texts):
    captured = make()
    _, before = after(captured, f"gpu={V100}")
    _, times = after(captured, *texts)
    assert times == pytest.approx(before)


def test_resize_of_products_and_collectives_by_option(make):
    _, times = after(make(), "resize=32:64,times=16;8")
    sizes = {"m": 256, "n": 64, "precision": "fp32"}
    # 512 is 32 · 16 and 256 is 32 · 8: both double.
    new = {"k": 1024, "m": 512}
    assert times["volta_sgemm_128x64_tn"] == pytest.approx(
        100 * ratio("gemm", (V100, {"k": 512}), (V100, new), **sizes)
    )
    editor, _ = after(make(), "resize=64:65,communication=3")
    (reduce,) = editor.select(Selector(role=(TaskRole.COLLECTIVE,), rank=(0,)))
    assert editor.size_of(reduce) == 3 * 4 * _VALUES


def test_flattened_products_that_stay_are_noted(make):
    # 256 and 512 are 16 and 32 times 16; all of the shaped work has one of them.
    editor, _ = after(make(), "resize=64:128")
    (note,) = [note for note in editor.notes if "multiples of 64" in note]
    kernels = editor.select(Selector(role=COMPUTING))
    old = make().editor()
    total = sum(map(old.duration_of, kernels))
    shaped = sum(old.duration_of(task) for task in kernels if old.inputs_of(task) is not None)
    assert note.startswith(f"{100 * shaped / total:.0f} % of the time works on")
    assert "256 = 64 · 4, 512 = 64 · 8; add times=4;8" in note
    # What was said to be a product, and what is one of the sizes, is no surprise.
    editor, _ = after(make(), "resize=64:128,times=4;8")
    assert not any("multiples" in note for note in editor.notes)
    editor, _ = after(make(), "resize=64:128;256:512;512:1024")
    assert not any("multiples" in note for note in editor.notes)
    editor, _ = after(make(), "resize=512:1024")
    assert not any("multiples" in note for note in editor.notes)


def test_later_changes_see_earlier_ones(make):
    """First wider, then another device: the second ratio is that of the wider layer."""
    _, times = after(make(), "resize=64:128", f"gpu={H100}")
    sizes = {"m": 256, "k": 512, "precision": "fp32"}
    expected = ratio("gemm", (V100, {"n": 64}), (H100, {"n": 128}), **sizes)
    assert times["volta_sgemm_128x64_tn"] == pytest.approx(100 * expected)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            "resize=77:78",
            "no operator has a dimension of 77; most of the time works on 256, 512, 64",
        ),
        ("resize=64:64", "all sizes stay"),
        ("resize=64", "512:1024"),
        ("resize=64:0", "at least 1"),
        ("resize=64:128;64:256", "given twice"),
        ("resize=64:128;256:300,samples=true", "different factors"),
    ],
)
def test_resize_explains_its_refusal(make, text, message):
    with pytest.raises(ConfigError, match=message):
        after(make(), text)


def test_resize_needs_shapes(make):
    with pytest.raises(ConfigError, match="record_shapes=True"):
        after(make(shaped=False), "resize=64:128")


@pytest.mark.parametrize(
    ("name", "precision"),
    [
        ("volta_sgemm_128x64_tn", "fp32"),
        ("volta_fp16_s884gemm_fp16_128x128", "fp16"),
        ("ampere_bf16_s16816gemm_bf16_128x256", "bf16"),
        ("sm80_xmma_gemm_f32f32_tf32f32_f32_nn", "tf32"),
        ("cutlass_80_tensorop_s1688gemm_128x256", "tf32"),
    ],
)
def test_arithmetic_in_names_of_kernels(name, precision):
    assert precision_of_kernel(name) == precision
