"""Host time per operator and launch.

The five times of the TPDS'24 model are taken from the durations of four calls, each issued many
times in a row without waiting for the device:

* ``V``: an operator without kernel, ``tensor.view``;
* ``O``: an operator with one tiny kernel, an in-place addition to one value;
* ``L``: on CUDA a bare launch, of a kernel that spins for one cycle;
* ``P``: ``matrix_power(x, 16)`` less ``matrix_power(x, 2)`` over three, for a 2 × 2 matrix. Both
  are one operator; the former multiplies four times, the latter once.

===================== ================================== ====================================
field                 CUDA                               CPU
===================== ================================== ====================================
between_operators_s   a call of ``torch.nn.Identity``    the same
before_launch_s       V                                  V
launch_s              L                                  O − V: the tiny kernel itself
after_launch_s        O − V − L                          0: part of V
between_launches_s    P − L                              P − (O − V)
graph_launch_s        replay of a captured graph with    none
                      one tiny kernel
===================== ================================== ====================================

Differences are not below 0. Before, launch and after add up to O, the time of issuing an operator
with one kernel, which is measured well; the split between before and after is a convention. On a
CPU the kernel runs where it is dispatched: measured kernel times there already contain the
dispatch (before, launch and after), so a model that adds these fields to them counts it twice.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from dse._torch import load_torch
from dse.calibration.microbench.plan._points import HostMeasurement
from dse.calibration.microbench.timing._timers import CpuTimer, MeasureSettings, measure

if TYPE_CHECKING:
    from collections.abc import Callable

#: Multiplications of `matrix_power(x, 16)` beyond the one of `matrix_power(x, 2)`.
_MORE_LAUNCHES = 3


def measure_host(torch_device: str, settings: MeasureSettings) -> HostMeasurement:
    """Measures the host overheads; see the module's docstring for what is taken from what.

    Args:
        torch_device: ``cpu``, ``cuda`` or ``cuda:0``.
        settings: When a figure is measured well enough.
    """
    torch = load_torch()
    on_gpu = torch_device.startswith("cuda")
    timer = CpuTimer(settle=torch.cuda.synchronize if on_gpu else None)
    widths: list[float] = []

    def time_s(call: Callable[[], object]) -> float:
        sample = measure(timer, call, settings)
        widths.append(sample.half_width_s)
        return sample.time_s

    value = torch.zeros(1, device=torch_device)
    matrix = torch.eye(2, device=torch_device)
    identity = torch.nn.Identity()
    with torch.inference_mode():
        between_operators_s = time_s(lambda: identity(value))
        view_s = time_s(lambda: value.view(1))
        operator_s = time_s(lambda: value.add_(1.0))
        power_s = time_s(lambda: torch.linalg.matrix_power(matrix, 16))
        power_s -= time_s(lambda: torch.linalg.matrix_power(matrix, 2))
    if on_gpu:
        launch_s = time_s(lambda: torch.cuda._sleep(1))
        after_launch_s = max(0.0, operator_s - view_s - launch_s)
        graph_launch_s: float | None = time_s(_captured(torch, value))
    else:
        launch_s, after_launch_s, graph_launch_s = max(0.0, operator_s - view_s), 0.0, None
    return HostMeasurement(
        between_operators_s=between_operators_s,
        before_launch_s=view_s,
        after_launch_s=after_launch_s,
        launch_s=launch_s,
        between_launches_s=max(0.0, power_s / _MORE_LAUNCHES - launch_s),
        graph_launch_s=graph_launch_s,
        half_width_s=max(widths),
    )


def _captured(torch: Any, value: Any) -> Callable[[], object]:
    """Captures a graph of one tiny kernel; returns the call that replays it."""
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        value.add_(1.0)
    replay: Callable[[], object] = graph.replay
    return replay
