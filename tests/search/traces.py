"""A captured job of one or two ranks and a search space over it; lengths computed by hand."""

from __future__ import annotations

from tests.trace.helpers import call, kernel, operator, span, write

#: 64 MiB in values of four bytes.
_VALUES = 2**24
V100 = [{"id": 0, "name": "Tesla V100-SXM2-32GB"}]

#: Halving the backward GEMM of 200 µs: the reduction starts when the host has launched it, the
#: update when the host has; the host comes to its synchronisation at 620 µs, and the 20 µs after
#: it stay.
CAPTURED_S = 690e-6
HALVED_S = 640e-6

SPACE = """\
schema_version: 1
name: changed
workload: {trace: run, samples_per_step: 128}
parameters:
  network_factor: [0.5x, 1x, 2x]
  optimizations:
    - []
    - [halved.yaml]
    - [network=2x, halved.yaml]
    - [nothing.yaml]
objectives:
  - {metric: throughput_samples_per_s, direction: maximize}
  - {metric: cost_usd_per_million_samples, direction: minimize}
search: {sampler: nsga2, trials: 50, batch: 4}
"""
STEPS = """\
schema_version: 1
name: halved
steps:
  - {select: {name: "%s"}, scale: 50 %%}
"""


def rank_events(*, reduced=True):
    """A step of 690 µs: forward, backward with an all-reduce, optimizer, wait for the device."""
    ids = {"Collective name": "allreduce", "In msg nelems": _VALUES, "Out msg nelems": _VALUES}
    ids |= {"Group size": 2, "dtype": "Float", "Process Group Name": "0"}
    shapes = {"Input Dims": [[64], [8, 32], [32, 64]], "Input type": ["float", "float", "float"]}
    reduction = [
        operator("c10d::allreduce_", 320, 60),
        span("user_annotation", "nccl:all_reduce", 325, 40, pid=10, tid=11),
        span("cuda_runtime", "cudaStreamWaitEvent", 330, 2, pid=10, tid=11),
        call(340, 10, 3),
        kernel("ncclDevKernel_AllReduce_Sum", 420, 200, 3, stream=20, **ids),
    ]
    return [
        span("user_annotation", "ProfilerStep#1", 0, 690, pid=10, tid=11),
        operator("aten::linear", 0, 100, **{"Sequence number": 5, "Fwd thread id": 0}),
        operator("aten::addmm", 5, 90, **shapes),
        call(10, 10, 1),
        kernel("sgemm_fw", 20, 100, 1),
        operator(
            "autograd::engine::evaluate_function: AddmmBackward0",
            200,
            100,
            **{"Sequence number": 5, "Fwd thread id": 1},
        ),
        call(210, 10, 2),
        kernel("sgemm_bw", 220, 200, 2),
        *(reduction if reduced else ()),
        span("user_annotation", "Optimizer.step#SGD.step", 500, 100, pid=10, tid=11),
        operator("aten::_foreach_add_", 510, 80),
        call(520, 10, 4),
        kernel("multi_tensor_apply", 620, 50, 4),
        call(620, 60, 5, name="cudaDeviceSynchronize"),
    ]


def write_job(folder, *, ranks=2, devices=V100):
    """Writes `run/` with one trace a rank, two files of steps, and returns the path of a space."""
    run = folder / "run"
    run.mkdir(parents=True)
    for rank in range(ranks):
        write(
            run / f"rank{rank}.json",
            rank_events(reduced=ranks > 1),
            rank=rank,
            world_size=ranks,
            deviceProperties=devices,
        )
    (folder / "halved.yaml").write_text(STEPS % "sgemm_bw")
    (folder / "nothing.yaml").write_text(STEPS % "no such kernel")
    space = folder / "space.yaml"
    space.write_text(SPACE)
    return space
