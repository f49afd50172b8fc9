"""Captured steps made by hand: a tape of operators on one thread, kernels on one stream."""

from __future__ import annotations

import itertools
import json

from dse.trace import read_kineto
from dse.trace.whatif import captured_step, parse_optimization
from tests.trace.helpers import call, document, kernel, operator, span, write

EVALUATE = "autograd::engine::evaluate_function: "
ACCUMULATE = "torch::autograd::AccumulateGrad"

#: Length of an operator on the host, of its launch, and where in it the launch begins, in µs.
OPERATOR_US, LAUNCH_US, BEFORE_US = 8, 4, 2


class Tape:
    """Records a step as a profiler would; times are in µs.

    Operators follow each other without gaps. Each kernel starts when its launch has ended and the
    stream is free.
    """

    def __init__(self):
        self.events = []
        self.now = 0
        self.free = 0
        self._correlation = itertools.count(1)
        self._sequence = itertools.count(1)

    def op(self, name, *durations, kernels=(), shapes=None, types=None, around=(), **args):
        """An operator that launches kernels of some durations; names of kernels may be given."""
        names = kernels or [name.rpartition("::")[2] + "_kernel"] * len(durations)
        start, length = self.now, max(1, len(durations)) * OPERATOR_US
        recorded = {}
        if shapes is not None:
            types = types or ["float" if shape else "Scalar" for shape in shapes]
            recorded = {"Input Dims": shapes, "Input type": types}
        for depth, outer in enumerate(around):
            inside = (start + depth / 4, length - depth / 2)
            self.events.append(operator(outer, *inside, **args))
        inside = (start + len(around) / 4, length - len(around) / 2)
        self.events.append(operator(name, *inside, **recorded, **({} if around else args)))
        for place, (title, duration) in enumerate(zip(names, durations, strict=True)):
            at = start + place * OPERATOR_US + BEFORE_US
            number = next(self._correlation)
            self.events.append(call(at, LAUNCH_US, number))
            begin = max(at + LAUNCH_US, self.free)
            self.events.append(kernel(title, begin, duration, number))
            self.free = begin + duration
        self.now += length
        return self

    def forward(self, name, *durations, **options):
        """A forward operator; returns the number that its backward node is given."""
        number = next(self._sequence)
        self.op(name, *durations, **{"Sequence number": number, "Fwd thread id": 0}, **options)
        return number

    def backward(self, node, number, name, *durations, **options):
        """A node of autograd with an operator inside."""
        args = {"Sequence number": number, "Fwd thread id": 1}
        return self.op(name, *durations, around=(EVALUATE + node, node), **args, **options)

    def gradient(self, shape=None):
        """A gradient is handed over, without work of the device."""
        return self.op(
            ACCUMULATE, shapes=None if shape is None else [shape], around=(EVALUATE + ACCUMULATE,)
        )

    def optimizer(self, name, *operators):
        """An optimizer step of operators: name, duration of the kernel or None, shapes."""
        start = self.now
        for title, duration, shapes in operators:
            self.op(title, *([] if duration is None else [duration]), shapes=shapes)
        title = f"Optimizer.step#{name}.step"
        self.events.append(span("user_annotation", title, start, self.now - start, pid=10, tid=11))
        return self

    def capture(self, tmp_path, platform="a100_sxm_40", rank=None):
        """Writes and reads the trace; returns the captured step."""
        path = tmp_path / "trace.json"
        end = self.now
        whole = span("user_annotation", "ProfilerStep#1", 0, end, pid=10, tid=11)
        write(path, [whole, *self.events], rank=rank)
        return captured_step(tuple(read_kineto(path)), platform=platform)


def apply(captured, *texts):
    """Applies optimizations as the command line does."""
    return captured.what_if([parse_optimization(text) for text in texts])


def starts(answer, name):
    """Starts of the tasks of a name in µs, in order."""
    return sorted(float(start) for start, _ in _times(answer, name))


def ends(answer, name):
    """Ends of the tasks of a name in µs, in order."""
    return sorted(float(end) for _, end in _times(answer, name))


def _times(answer, name):
    times, graph = answer.timeline, answer.graph.graph
    return [
        (1e6 * times.start_s[task], 1e6 * times.end_s[task])
        for task, title in enumerate(graph.names)
        if title == name
    ]


def two_ranks(tmp_path, size_values, *, platform="v100_dgx1", groups=2):
    """Two traced ranks of a group with one all-reduce between backward and an update, 300 µs.

    On stream 7 backward from 20 to 120 and the update from 420 to 470, on stream 20 the
    all-reduce from 120 to 420.
    """
    traces = []
    for rank in (0, 1):
        ids = {"Collective name": "allreduce", "In msg nelems": size_values}
        ids |= {"Out msg nelems": size_values, "Group size": groups, "dtype": "Float"}
        ids |= {"Process Group Name": "0"}
        events = [
            span("user_annotation", "ProfilerStep#1", 0, 500, pid=10, tid=11),
            operator(EVALUATE + "MmBackward0", 0, 30, **{"Fwd thread id": 1}),
            call(10, 10, 1),
            kernel("gemm", 20, 100, 1),
            operator("c10d::allreduce_", 40, 40),
            span("cuda_runtime", "cudaStreamWaitEvent", 45, 2, pid=10, tid=11),
            call(50, 10, 3),
            kernel("ncclDevKernel_AllReduce_Sum", 120, 300, 3, stream=20, **ids),
            span("user_annotation", "Optimizer.step#SGD.step", 90, 40, pid=10, tid=11),
            operator("aten::_foreach_add_", 90, 40),
            call(100, 10, 4),
            kernel("update", 420, 50, 4),
            call(490, 10, 5, name="cudaDeviceSynchronize"),
        ]
        path = tmp_path / f"rank_{rank}.json"
        path.write_text(json.dumps(document(events, rank=rank, world_size=groups)))
        traces += read_kineto(path)
    return captured_step(tuple(traces), platform=platform)


#: 64 MiB in 16,777,216 values of four bytes.
VALUES = 2**24
REDUCED_BYTES = 4 * VALUES


def rank_events(late=0):
    """One step of 690 µs: forward, backward with an all-reduce, optimizer, wait for the device.

    On stream 7: a GEMM of 100 µs from 20, another of 200 µs from 220, an update of 50 µs from 620;
    on stream 20 an all-reduce until 620.
    """
    ids = {"Collective name": "allreduce", "In msg nelems": VALUES, "Out msg nelems": VALUES}
    ids |= {"Group size": 2, "dtype": "Float", "Process Group Name": "0"}
    return [
        span("user_annotation", "ProfilerStep#1", 0, 690, pid=10, tid=11),
        operator("aten::linear", 0, 100, **{"Sequence number": 5, "Fwd thread id": 0}),
        operator("aten::addmm", 5, 90, **{"Input Dims": [[64], [8, 32]], "Input type": ["float"]}),
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
        operator("c10d::allreduce_", 320, 60),
        span("user_annotation", "nccl:all_reduce", 325, 40, pid=10, tid=11),
        span("cuda_runtime", "cudaStreamWaitEvent", 330, 2, pid=10, tid=11),
        call(340, 10, 3),
        kernel("ncclDevKernel_AllReduce_Sum", 420 + late, 200 - late, 3, stream=20, **ids),
        span("user_annotation", "Optimizer.step#SGD.step", 500, 100, pid=10, tid=11),
        operator("aten::_foreach_add_", 510, 80),
        call(520, 10, 4),
        kernel("multi_tensor_apply", 620, 50, 4),
        call(620, 60, 5, name="cudaDeviceSynchronize"),
    ]
