"""Replay of traces: one rank in this process, several in one process each."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dse._process.system import available_cores
from dse._torch import load_torch
from dse.errors import ConfigError
from dse.launch import RankContext, start_ranks
from dse.trace import read_execution_trace, read_kineto
from dse.trace.capture import read_records
from dse.trace.replay._options import ReplayOptions
from dse.trace.replay._registry import load_operators
from dse.trace.replay._results import RankResult, ReplayResult
from dse.trace.replay.plan import group_of
from dse.trace.replay.read._files import TraceFiles, find_files
from dse.trace.replay.run._memory import MemoryBudget
from dse.trace.replay.run._rank import RankInput, replay_rank

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from dse.trace import ExecutionTrace, RankTrace
    from dse.trace.capture import CaptureRecord

_COLLECTIVE = "c10d::"
_MOCKED = (
    "collectives are mocked: what a rank sends is copied to where it would receive, and nothing "
    "leaves the process; their transfer and waiting are not in the time"
)

_ALL_TAKEN = (
    "the traces do not say which ranks take part in some collectives; all ranks do in the replay"
)


def replay(
    traces: Sequence[str | Path],
    options: ReplayOptions | None = None,
    *,
    kineto: Sequence[str | Path] = (),
    operators: Sequence[str | Path] = (),
) -> ReplayResult:
    """Runs execution traces as a benchmark on this machine.

    The operators of the traces are rebuilt from their signatures and run in their order on
    tensors of the recorded shapes, types, strides and shared memory (Mystique, Liang et al.,
    ISCA 2023). Several traces are the ranks of one job.

    Args:
        traces: Execution traces, a folder of a capture, or an archive.
        options: The options; defaults if left out.
        kineto: Kineto traces of the same run, for original times and coverage of time; those
            next to the execution traces by default.
        operators: Python files that call :func:`register_operator`; they are run.

    Raises:
        ConfigError: Files or options cannot be used, or tensors do not fit into memory.
        OptionalDependencyError: torch is not installed.
        WorkerError: A rank or a collective failed.
    """
    options = options or ReplayOptions()
    torch = load_torch()
    if options.device == "cuda" and not torch.cuda.is_available():
        raise ConfigError("torch finds no CUDA device on this machine; use --device cpu")
    files = find_files([Path(path) for path in traces], [Path(path) for path in kineto])
    own = tuple(Path(path) for path in operators)
    load_operators(own)
    read = _read(files)
    mode, groups, notes = _mode(torch, read, options)
    if mode == "run":
        threads = options.threads or max(1, available_cores() // len(read))
        ranks = _in_processes(read, files, options, groups, own, threads)
    else:
        if options.threads is not None:
            torch.set_num_threads(options.threads)
        _load_libraries([one.et for one in read])
        ranks = [replay_rank(rank, options, mode) for rank in read]
        threads = torch.get_num_threads()
    return ReplayResult(
        device=options.device,
        device_name=_device_name(torch, options.device, threads),
        torch_version=str(torch.__version__),
        collectives=mode,
        ranks=tuple(ranks),
        notes=tuple(notes),
    )


def _read(files: TraceFiles) -> list[RankInput]:
    """Reads all ranks; times that cannot be read are no reason not to replay."""
    traces = [et for path in files.traces for et in read_execution_trace(path, arguments=True)]
    seen: dict[int, str] = {}
    for et in traces:
        if et.rank in seen:
            raise ConfigError(
                f"{et.file}: rank {et.rank} again, after {seen[et.rank]}; give each rank's trace "
                "once, with the rank in its name"
            )
        seen[et.rank] = et.file
    times: dict[int, RankTrace] = {}
    for path in files.kineto:
        for trace in read_kineto(path):
            times[trace.rank] = trace
    if len(traces) == 1 and len(times) == 1:
        # Old files do not say which rank they are of.
        times = {traces[0].rank: next(iter(times.values()))}
    records: dict[int, CaptureRecord] = {}
    for folder in files.captures:
        records |= {record.rank: record for record in read_records(folder)}
    ordered = sorted(traces, key=lambda et: et.rank)
    return [RankInput(et, times.get(et.rank), records.get(et.rank)) for et in ordered]


def _mode(
    torch: Any, read: Sequence[RankInput], options: ReplayOptions
) -> tuple[str, tuple[tuple[int, ...], ...], list[str]]:
    """Returns how collectives are handled, the groups to make, and notes."""
    wanted = {
        group_of(one.et, node)
        for one in read
        for node in range(len(one.et))
        if one.et.name_of(node).startswith(_COLLECTIVE)
    }
    if not wanted:
        return "none", (), []
    if options.part == "compute" or options.collectives == "skip":
        return "skip", (), []
    if options.collectives == "mock":
        return "mock", (), [_MOCKED]
    why = _why_not(torch, read, wanted, options)
    if not why:
        notes = [_ALL_TAKEN] if len(read) > 1 and ((), 0) in wanted else []
        return "run", tuple(sorted({ranks for ranks, _ in wanted if ranks})), notes
    if options.collectives == "run":
        raise ConfigError(f"--collectives run: {why}; give all traces, or use mock")
    return "mock", (), [f"{why}; {_MOCKED}"]


def _why_not(
    torch: Any,
    read: Sequence[RankInput],
    wanted: set[tuple[tuple[int, ...], int]],
    options: ReplayOptions,
) -> str:
    there = {one.et.rank for one in read}
    world = max(map(_world_size, read))
    for ranks, size in sorted(wanted):
        missing = sorted(set(ranks) - there)
        if missing:
            return f"ranks {_listed(missing)} of a group of {len(ranks)} are missing"
        size = size or world
        if not ranks and size > len(there):
            return f"traces of {len(there)} of {size} ranks are given"
        if not ranks and not size and len(there) == 1:
            return "the trace does not say which ranks its groups have, and is the only one"
    if options.device == "cuda" and torch.cuda.device_count() < len(there):
        return f"{len(there)} ranks need as many GPUs, and there are {torch.cuda.device_count()}"
    return ""


def _world_size(one: RankInput) -> int:
    """Returns the ranks of the job if the files next to the trace have them, else 0."""
    found = 0 if one.record is None else one.record.world_size
    return max(found, 0 if one.kineto is None else one.kineto.world_size)


def _listed(ranks: Sequence[int]) -> str:
    shown = ", ".join(map(str, ranks[:8]))
    return f"{shown}, …" if len(ranks) > 8 else shown


@dataclass(frozen=True, slots=True)
class _WorkerInput:
    """Input of the processes of all ranks."""

    files: tuple[TraceFiles, ...]
    options: ReplayOptions
    ranks: tuple[int, ...]
    groups: tuple[tuple[int, ...], ...]
    operators: tuple[Path, ...]


def _in_processes(
    read: Sequence[RankInput],
    files: TraceFiles,
    options: ReplayOptions,
    groups: tuple[tuple[int, ...], ...],
    operators: tuple[Path, ...],
    threads: int,
) -> list[RankResult]:
    ranks = tuple(one.et.rank for one in read)
    if options.memory_limit_bytes is None and options.device == "cpu":
        # All ranks share the memory of the machine.
        share = MemoryBudget.of_device(load_torch(), "cpu", None).limit_bytes // len(ranks)
        options = replace(options, memory_limit_bytes=share or None)
    own = tuple(_own_files(one, files) for one in read)
    job = _WorkerInput(own, options, ranks, groups, operators)
    with start_ranks(
        partial(_worker, job),
        backend="nccl" if options.device == "cuda" else "gloo",
        world_size=len(ranks),
        threads=threads,
        timeout_s=options.timeout_s,
    ) as group:
        return list(group.ask("replay"))


def _own_files(one: RankInput, files: TraceFiles) -> TraceFiles:
    """Returns the files of one rank, as far as they are files of their own, else all of them."""
    trace = Path(one.et.file)
    times = () if one.kineto is None else (Path(one.kineto.file),)
    if not trace.is_file() or not all(path.is_file() for path in times):
        return files
    return TraceFiles((trace,), times, files.captures)


def _worker(job: _WorkerInput, context: RankContext) -> Callable[[Any], RankResult]:
    """Makes the worker of one rank, in its process."""
    torch = load_torch()
    dist = torch.distributed
    # All ranks make all groups, in the same order.
    groups: dict[tuple[int, ...], Any] = {(): dist.group.WORLD}
    for ranks in job.groups:
        groups[ranks] = dist.new_group([job.ranks.index(rank) for rank in ranks])

    def work(order: Any) -> RankResult:
        load_operators(job.operators)
        rank = job.ranks[context.rank]
        read = _read(job.files[context.rank])
        given = read[0] if len(read) == 1 else next(one for one in read if one.et.rank == rank)
        # A file name may show its rank only in comparison with the others.
        given = replace(given, et=replace(given.et, rank=rank))
        _load_libraries([given.et])
        return replay_rank(given, job.options, "run", groups)

    return work


def _load_libraries(traces: Sequence[ExecutionTrace]) -> None:
    """Loads FBGEMM where traces use its operators and it is installed; no other library."""
    if any(name.startswith("fbgemm::") for et in traces for name in et.names):
        # Not there, or built for another torch: its operators are listed as not loaded.
        with suppress(ImportError, OSError):
            import_module("fbgemm_gpu")


def _device_name(torch: Any, device: str, threads: int) -> str:
    if device == "cuda":
        return str(torch.cuda.get_device_name())
    return f"CPU, {threads} thread{'' if threads == 1 else 's'}"
