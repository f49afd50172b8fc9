"""Types of a trace summary."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class NamedTotal:
    """Time under one name.

    Attributes:
        name: Kernel or operator.
        count: How often it ran.
        total_s: Device time, or host time for host operators, in seconds.
    """

    name: str
    count: int
    total_s: float


@dataclass(frozen=True, slots=True)
class StepSummary:
    """One step marked by the profiler.

    Attributes:
        number: N of `ProfilerStep#N`.
        measured_s: Its length on the host, in seconds.
    """

    number: int
    measured_s: float


@dataclass(frozen=True, slots=True)
class StepTimes:
    """Where the time of one step went on a rank's devices, as measured.

    Compute, exposed communication and idle time add up to the step. The kernel of a collective
    waits for other ranks while it runs; if these were traced, that counts as idle time, as in the
    simulation of the ranks.

    Attributes:
        cut_by: `profiler step N`, or `whole trace`.
        measured_s: Length of the step, in seconds.
        compute_s: Time with a kernel, copy or fill other than a collective running, in seconds.
        communication_s: Time in which a collective transfers, in seconds; for collectives that
            lack members including the wait for these.
        exposed_communication_s: The part of it without other work running, in seconds.
        idle_s: The rest of the step, in seconds.
        wait_s: Part of the idle time in which a collective waited for other ranks, in seconds.
    """

    cut_by: str
    measured_s: float
    compute_s: float
    communication_s: float
    exposed_communication_s: float
    idle_s: float
    wait_s: float


@dataclass(frozen=True, slots=True)
class RankSummary:
    """Contents of one rank's trace.

    Attributes:
        rank: Global rank.
        file: Its file.
        world_size: Number of ranks of the job; 0 if unknown.
        devices: Names of its devices.
        events: Number of events.
        steps: Profiler steps.
        last_step: The last of them, or the whole trace; None without operators or device work.
        device_events: Kernels, copies and fills.
        device_busy_s: Time in which any of them ran, in seconds.
        unlaunched_events: Those of them whose call is not in the trace.
        calls: Runtime and driver calls.
        calls_s: Time in these calls, nested ones counted once per thread, in seconds.
        span_s: From the first to the last event, in seconds.
        top_kernels: Most time first.
        top_operators: Operators by the device time that they launched, most first.
        top_host_operators: Operators by own host time without nested operators, most first.
        notes: What the reader left out or found odd.
    """

    rank: int
    file: str
    world_size: int
    devices: tuple[str, ...]
    events: int
    steps: tuple[StepSummary, ...]
    last_step: StepTimes | None
    device_events: int
    device_busy_s: float
    unlaunched_events: int
    calls: int
    calls_s: float
    span_s: float
    top_kernels: tuple[NamedTotal, ...]
    top_operators: tuple[NamedTotal, ...]
    top_host_operators: tuple[NamedTotal, ...]
    notes: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class CollectiveSummary:
    """One collective over the traced ranks.

    Attributes:
        operation: Canonical name.
        group: Name of the process group; empty if unknown.
        step: Number of the profiler step that launched it; -1 if unknown.
        message_bytes: Largest size of any rank, as nccl-tests counts; -1 if unknown.
        group_size: Number of ranks of the group; 0 if unknown.
        ranks: Ranks that were found.
        missing_ranks: Traced ranks of the group without a counterpart.
        whole: Whether all ranks of the group were found. If not, other ranks may have arrived
            later, and the transfer includes the wait for them.
        transfer_s: From the last arrival to the last end, in seconds.
        waits_s: How long each rank waited for the last one, in the order of `ranks`, in seconds.
        longest_wait_s: Wait of the rank that arrived first, in seconds.
        last_rank: Rank that the others waited for.
        algorithm_bandwidth_bytes_per_s: Message over transfer; None if either is unknown.
        bus_bandwidth_bytes_per_s: Bus bandwidth as nccl-tests counts; None if unknown.
    """

    operation: str
    group: str
    step: int
    message_bytes: int
    group_size: int
    ranks: tuple[int, ...]
    missing_ranks: tuple[int, ...]
    whole: bool
    transfer_s: float
    waits_s: tuple[float, ...]
    longest_wait_s: float
    last_rank: int
    algorithm_bandwidth_bytes_per_s: float | None
    bus_bandwidth_bytes_per_s: float | None


@dataclass(frozen=True, slots=True)
class Straggler:
    """How long a rank and the others waited for each other in the complete collectives.

    Attributes:
        rank: Global rank.
        times_last: Number of collectives at which it arrived last.
        others_waited_s: Time that the other ranks waited for it, summed over them, in seconds.
        alone_late_s: How much it arrived after the second to last, summed, in seconds: the gain if
            it arrived with the others.
        waited_s: Time that it waited for others, in seconds.
    """

    rank: int
    times_last: int
    others_waited_s: float
    alone_late_s: float
    waited_s: float


@dataclass(frozen=True, slots=True)
class TraceSummary:
    """Contents of the traces of a job.

    Attributes:
        ranks: One entry per trace.
        collectives: Collectives in order of their last arrival.
        stragglers: One entry per rank, most waited for first; empty without a complete collective
            of several ranks.
        compute_imbalance: Longest compute time of any rank's last step over the mean, less one;
            None if fewer than two ranks computed.
    """

    ranks: tuple[RankSummary, ...]
    collectives: tuple[CollectiveSummary, ...]
    stragglers: tuple[Straggler, ...]
    compute_imbalance: float | None
