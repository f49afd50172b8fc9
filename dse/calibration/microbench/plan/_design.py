"""Design of a plan: the points to measure, and their order.

Sizes of an operator are a scrambled Sobol sequence in the logarithm of the sizes. Points outside
the limits are left out, and so are duplicates after rounding; what remains keeps the order of the
sequence, so the first points of an operator always fill its space, however many are reached.
Operators take turns, weighted by how many sizes they have, and every fourth point of an operator
is held out: it comes from a sequence of another seed and is not among its fit points.

Before these turns come the smallest and the largest size of the operators that the figures of a
platform are taken from: however short a session is, they tell fixed times from rates.

Collectives are measured at powers of two of the size, taken in the order of the van der Corput
sequence, all operations at each size; held-out sizes lie between them.
"""

from __future__ import annotations

from dataclasses import dataclass
import hashlib
from itertools import islice
import json
from typing import TYPE_CHECKING
import zlib

from dse.calibration.microbench.plan._operators import CPU_LIMITS, CUDA_LIMITS, OPERATORS, Limits
from dse.calibration.microbench.plan._points import CollectivePoint, KernelPoint, Purpose, Sizes
from dse.errors import CalibrationError
from dse.machine import Precision

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

#: Number of the form of a plan; a log of another number is not continued. Since 2, lookups and
#: updates on CPUs find empty caches; since 3, those that another table has left, up to 512 rows
#: are pooled, and updates are measured without autograd.
PLAN_VERSION = 3

#: Collectives by name.
COLLECTIVES = (
    "all_reduce",
    "all_gather",
    "reduce_scatter",
    "all_to_all",
    "broadcast",
    "send_recv",
)

#: Operators that the figures of a platform are taken from; no platform is made without them.
_BASIC = ("gemm", "elementwise", "memcpy_h2d")

#: One point in so many is held out.
_HELD_OUT_EVERY = 4

#: Most Sobol points considered for one operator, as a power of two.
_MAX_LOG2_CANDIDATES = 14

#: Powers of two of the smallest and the largest message.
_SMALLEST_LOG2_BYTES, _LARGEST_LOG2_BYTES = 9, 26


@dataclass(frozen=True, slots=True)
class MeasurementPlan:
    """Everything that one session measures.

    Attributes:
        device: ``cpu`` or ``cuda``.
        seed: Seed of the design and of the operands.
        threads: Threads that one rank computes with on the host.
        ranks: Ranks of the machine.
        operators: Names of the operators.
        points: Points of an operator of weight 1.
        collectives_backend: ``gloo`` or ``nccl``.
        kernels: Operators and sizes, in turns.
        collectives: Collectives and sizes, in the order of measuring; those of one number of
            ranks are together. None when only operators are measured.
        host: Whether host overheads are measured.
        version: :data:`PLAN_VERSION` that the plan was made by.
        busy_devices: Devices that run an operator at the same time while it is measured.
    """

    device: str
    seed: int
    threads: int
    ranks: int
    operators: tuple[str, ...]
    points: int
    collectives_backend: str
    kernels: tuple[KernelPoint, ...]
    collectives: tuple[CollectivePoint, ...]
    host: bool = True
    version: int = PLAN_VERSION
    busy_devices: int = 1

    def kernels_in_order(self) -> tuple[KernelPoint, ...]:
        """Returns operators and sizes in the order of measuring.

        The extremes of the basic operators come first, the small ones of all before the large
        ones. This order is no part of the digest: logs of the plain one are continued.
        """
        groups: dict[tuple[str, str], list[KernelPoint]] = {}
        for point in self.kernels:
            if point.op in _BASIC and point.purpose is Purpose.FIT:
                groups.setdefault((point.op, point.precision), []).append(point)
        ends = [(min(group, key=_amount), max(group, key=_amount)) for group in groups.values()]
        smallest, largest = zip(*ends, strict=True) if ends else ((), ())
        return tuple(dict.fromkeys((*smallest, *largest, *self.kernels)))

    def kernels_digest(self) -> str:
        """Returns a short text that differs for other sizes of operators."""
        form = [[point.op, point.sizes, point.precision, point.purpose] for point in self.kernels]
        return _digest(form, self.host)

    def collectives_digest(self) -> str:
        """Returns a short text that differs for other sizes of collectives."""
        return _digest([[point.op, point.ranks, point.size_bytes] for point in self.collectives])


def _amount(point: KernelPoint) -> float:
    """Returns how much a basic operator does: operations of a product, else bytes."""
    work = OPERATORS[point.op].work(dict(point.sizes))
    return work.flops or work.traffic_bytes


def _digest(*form: object) -> str:
    return hashlib.sha256(json.dumps(form).encode()).hexdigest()[:16]


def make_plan(
    device: str = "cpu",
    *,
    collectives: bool = True,
    collectives_backend: str | None = None,
    local_ranks: int,
    threads: int,
    seed: int = 0,
    operators: Sequence[str] | None = None,
    points: int = 64,
    limits: Limits | None = None,
    precisions: Sequence[Precision] | None = None,
    busy_devices: int | None = None,
) -> MeasurementPlan:
    """Makes the plan of a session.

    Args:
        device: ``cpu`` or ``cuda``.
        collectives: Whether collectives are measured; a log can be continued with and without.
        collectives_backend: ``gloo`` or ``nccl``; by default the one of the device.
        local_ranks: Ranks of one machine: its GPUs, or the ranks that share a CPU. Collectives
            are measured over 2, 4, 8, … of them; over none if there is one.
        threads: Threads that one rank computes with on the host. One rank of a CPU platform is
            a process with ``cores // local_ranks`` threads, see :func:`default_threads`.
        seed: Seed of the design and of the operands.
        operators: Names of the operators; by default all that are installed.
        points: Points of an operator of weight 1, fit and held out together.
        limits: What a point may cost; the device's by default.
        precisions: Those that operators are measured in where they can be; by default all on a
            GPU and fp32 on a CPU.
        busy_devices: Devices that run an operator at the same time while it is measured: by
            default all ranks of a CPU, which share its memory, and one GPU.

    Raises:
        CalibrationError: A name is unknown, no size of an operator is within the limits, or more
            devices are to be busy than there are or than share a memory.
    """
    if device not in ("cpu", "cuda"):
        raise CalibrationError(f"unknown device `{device}`; expected cpu or cuda")
    backend = collectives_backend or {"cpu": "gloo", "cuda": "nccl"}[device]
    if backend not in ("gloo", "nccl"):
        raise CalibrationError(f"unknown backend `{backend}`; expected gloo or nccl")
    if backend == "nccl" and device == "cpu":
        raise CalibrationError("nccl needs GPUs; use gloo with the cpu")
    names = tuple(name for name, spec in OPERATORS.items() if spec.measured_on(device))
    if operators is not None:
        names = tuple(operators)
    unknown = [name for name in names if name not in OPERATORS]
    if unknown:
        raise CalibrationError(
            f"unknown operator `{unknown[0]}`; expected one of {', '.join(OPERATORS)}"
        )
    if local_ranks < 1 or threads < 1:
        raise CalibrationError(f"needs at least 1 rank and thread, got {local_ranks}, {threads}")
    most = local_ranks if device == "cpu" else 1
    busy = most if busy_devices is None else busy_devices
    if not 1 <= busy <= most:
        raise CalibrationError(
            f"{busy} busy devices: expected 1 to {most}; "
            + (
                "GPUs share no memory and are measured one at a time"
                if device == "cuda"
                else "give a CPU more ranks"
            )
        )
    limits = limits or (CPU_LIMITS if device == "cpu" else CUDA_LIMITS)
    return MeasurementPlan(
        device=device,
        seed=seed,
        threads=threads,
        ranks=local_ranks,
        operators=names,
        points=points,
        collectives_backend=backend,
        kernels=kernel_points(device, names, points, limits, seed, precisions),
        collectives=collective_points(local_ranks) if collectives else (),
        busy_devices=busy,
    )


def default_local_ranks(device: str, device_count: int, cores: int) -> int:
    """Returns the ranks of one machine: one a GPU, or on a CPU one for each core up to eight.

    Always a power of two, since collectives are measured over powers of two.
    """
    count = device_count if device == "cuda" else min(cores, 8)
    return 1 << (max(1, count).bit_length() - 1)


def default_threads(cores: int, local_ranks: int) -> int:
    """Returns the threads of one rank: an equal share of the cores, at least one."""
    return max(1, cores // local_ranks)


def kernel_points(
    device: str,
    operators: Sequence[str],
    points: int,
    limits: Limits,
    seed: int,
    precisions: Sequence[Precision] | None,
) -> tuple[KernelPoint, ...]:
    """Returns the points of all operators, in turns.

    Args:
        device: ``cpu`` or ``cuda``.
        operators: Names.
        points: Points of an operator of weight 1, fit and held out together.
        limits: What a point may cost.
        seed: Seed of the design.
        precisions: Those that operators are measured in where they can be; None for all on a
            GPU and fp32 on a CPU.
    """
    wanted = frozenset(precisions or (Precision if device == "cuda" else (Precision.FP32,)))
    series: list[tuple[int, Iterator[KernelPoint]]] = []
    for op in operators:
        spec = OPERATORS[op]
        for precision in spec.precisions:
            if precision not in wanted:
                continue
            drawn = _series(op, precision, points * spec.weight, limits, seed)
            if not drawn:
                raise CalibrationError(
                    f"no size of `{op}` is within the limits: {limits.memory_bytes:.3g} B and "
                    f"{limits.time_s:.3g} s; allow more"
                )
            series.append((spec.weight, iter(drawn)))
    turns: list[KernelPoint] = []
    for _ in range(points):
        for weight, drawn_points in series:
            turns += islice(drawn_points, weight)
    return tuple(turns)


def _series(
    op: str, precision: Precision, count: int, limits: Limits, seed: int
) -> list[KernelPoint]:
    """Points of one operator in one precision: three to fit, one held out, and so on."""
    held_out_count = count // _HELD_OUT_EVERY
    fit_sizes = _sobol_sizes(op, precision, count - held_out_count, limits, (seed, 0), frozenset())
    held_out_sizes = _sobol_sizes(
        op, precision, held_out_count, limits, (seed, 1), frozenset(fit_sizes)
    )
    fit, held_out = iter(fit_sizes), iter(held_out_sizes)
    points = []
    for index in range(count):
        is_held_out = index % _HELD_OUT_EVERY == _HELD_OUT_EVERY - 1
        sizes = next(held_out if is_held_out else fit, None)
        if sizes is not None:
            purpose = Purpose.HELD_OUT if is_held_out else Purpose.FIT
            points.append(KernelPoint(op, sizes, precision.value, purpose))
    return points


def _sobol_sizes(
    op: str,
    precision: Precision,
    count: int,
    limits: Limits,
    seed: tuple[int, int],
    taken: frozenset[Sizes],
) -> list[Sizes]:
    """The first `count` sizes of a Sobol sequence that are allowed, distinct and not taken."""
    from scipy.stats import qmc

    spec = OPERATORS[op]
    axes = spec.axes_in(precision)
    number = zlib.crc32(repr((op, *seed, precision)).encode())
    log2_candidates = max(1, (4 * count).bit_length())
    while True:
        sobol = qmc.Sobol(len(axes), scramble=True, seed=number)
        found: dict[Sizes, None] = {}
        for shares in sobol.random_base2(log2_candidates).tolist():
            sizes = tuple(
                (axis.name, axis.value(share)) for axis, share in zip(axes, shares, strict=True)
            )
            if sizes not in taken and limits.allow(spec.work(dict(sizes))):
                found.setdefault(sizes)
        if len(found) >= count or log2_candidates >= _MAX_LOG2_CANDIDATES:
            return list(found)[:count]
        log2_candidates += 2


def collective_points(local_ranks: int) -> tuple[CollectivePoint, ...]:
    """Returns the points of all collectives over 2, 4, 8, … up to `local_ranks` ranks.

    Fit sizes are the powers of two from 512 B to 64 MiB; held-out sizes are 1.5 times some of
    them, one for each three of the former. All are multiples of the size of a value on every
    rank, up to 64 ranks.
    """
    fit = [2**power for power in _corput_order(_SMALLEST_LOG2_BYTES, _LARGEST_LOG2_BYTES)]
    held_out = iter(
        [
            3 * 2**power
            for power in _corput_order(_SMALLEST_LOG2_BYTES - 1, _LARGEST_LOG2_BYTES - 2)
        ]
    )
    order: list[tuple[int, Purpose]] = []
    for index, size_bytes in enumerate(fit):
        order.append((size_bytes, Purpose.FIT))
        if index % (_HELD_OUT_EVERY - 1) == _HELD_OUT_EVERY - 2:
            order.append((next(held_out), Purpose.HELD_OUT))
    points = []
    ranks = 2
    while ranks <= local_ranks:
        points += [
            CollectivePoint(op, ranks, size_bytes, purpose)
            for size_bytes, purpose in order
            for op in COLLECTIVES
        ]
        ranks *= 2
    return tuple(points)


def _corput_order(low: int, high: int) -> list[int]:
    """The integers from `low` to `high`: both ends, then always into the largest gaps."""
    span = high - low
    bits = span.bit_length()
    order = dict.fromkeys((low, high))
    for index in range(1, 2**bits):
        share = int(format(index, f"0{bits}b")[::-1], 2) / 2**bits
        order.setdefault(low + round(share * span))
    order |= dict.fromkeys(range(low, high + 1))
    return list(order)
