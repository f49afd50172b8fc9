"""CUDA graphs: one launch replaces the host work of many."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated, ClassVar, Literal

from pydantic import Field

from dse.config import Seconds
from dse.errors import ConfigError
from dse.trace import Role
from dse.trace.whatif._passes import optimizer_steps
from dse.trace.whatif._select import Selector
from dse.trace.whatif._steps import Optimization

if TYPE_CHECKING:
    from dse.trace.whatif._job import Job

_LAUNCH_S = 10e-6
_HOST = (Role.HOST_WORK, Role.HOST_GAP, Role.CALL, Role.AFTER_WAIT)


@dataclass(slots=True)
class _Piece:
    """Host work that nothing interrupts: its tasks, and the calls among them that launch."""

    host: list[int] = field(default_factory=list)
    calls: list[int] = field(default_factory=list)

    def leave_out(self, job: Job, waiting: int) -> None:
        """Drops a call that launches and then waits itself, as copies of pageable memory do."""
        if self.calls and job.role_of(waiting) == Role.AFTER_WAIT:
            call = self.calls[-1]
            if (job.name_of(call), job.lane_of(call)) == (
                job.name_of(waiting),
                job.lane_of(waiting),
            ):
                self.calls.pop()
                # Nothing was added behind the last launch.
                while self.host and self.host[-1] != (self.calls or [-1])[-1]:
                    self.host.pop()


class CudaGraphs(Optimization):
    """CUDA graphs: each training step is launched at once instead of kernel by kernel.

    Attributes:
        launch: Duration of one launch of a graph; that of the platform, or 10 us.
    """

    main_option: ClassVar[str] = "launch"

    optimization: Literal["cuda_graphs"] = "cuda_graphs"
    launch: Annotated[Seconds, Field(ge=0)] | None = None

    def apply(self, job: Job) -> None:
        """Replaces the host work between the first and the last launch of each piece."""
        platform = job.machine.platform
        launch_s = platform.host.graph_launch_s if platform else _LAUNCH_S
        launch_s = launch_s if self.launch is None else self.launch
        graphs = waits = launches = 0
        for rank in job.ranks:
            pieces, breaks = _pieces(job, rank)
            waits += breaks
            for piece in pieces:
                launches += len(piece.calls)
                graphs += _capture(job, piece, launch_s)
        if not launches:
            raise ConfigError(
                "no work of a GPU was launched in the captured step, so no graph can be made"
            )
        if not graphs:
            raise ConfigError(
                f"a graph launch of {1e6 * launch_s:g} us is not shorter than what it would "
                "replace anywhere in the captured step"
            )
        if waits:
            job.notes.append(
                f"cuda_graphs: {waits} calls wait for a device; they stay, and each ends a graph"
            )


def _capture(job: Job, piece: _Piece, launch_s: float) -> bool:
    """Replaces a piece by one launch where that is shorter."""
    # Threads may work at once, so only one of them counts.
    lanes: dict[str, float] = {}
    for task in piece.host:
        lanes[job.lane_of(task)] = lanes.get(job.lane_of(task), 0.0) + job.duration_of(task)
    first = piece.calls[0]
    if len(piece.calls) < 2 or launch_s >= lanes[job.lane_of(first)]:
        return False
    launched = [work for call in piece.calls for work in job.launched_by(call)]
    delays = [
        delay
        for work in launched
        for delay in job.delays_of(work)
        if job.role_of(delay) == Role.LAUNCH_DELAY
    ]
    graph = job.insert(
        "launch of a graph",
        Role.CALL,
        (job.rank_of(first), job.lane_of(first)),
        launch_s,
        ahead_of=first,
    )
    for work in launched:
        job.wait(work, [graph])
    job.remove([*piece.host, *delays], launches=False)
    return True


def _pieces(job: Job, rank: int) -> tuple[list[_Piece], int]:
    """Cuts the threads of a rank that launch at optimizer steps and at waits for devices.

    Returns:
        The host work of each piece from its first to its last launch, and how many calls wait.
    """
    host = job.select(Selector(rank=(rank,), role=_HOST))
    launching = {job.lane_of(task) for task in host if job.launched_by(task)}
    last_of_steps = _last_launches(job, rank)
    pieces, open_piece, tail = [], _Piece(), _Piece()
    breaks = 0

    def close() -> None:
        nonlocal open_piece, tail
        if open_piece.calls:
            pieces.append(open_piece)
        open_piece, tail = _Piece(), _Piece()

    for task in host:
        if job.lane_of(task) not in launching:
            continue
        waits, calls = job.synchronises(task), job.launched_by(task)
        if waits:
            breaks += 1
            open_piece.leave_out(job, task)
            close()
            continue
        if calls or open_piece.calls:
            tail.host.append(task)
        if calls:
            # What follows the last launch of a piece is no part of the graph.
            open_piece.host += tail.host
            open_piece.calls.append(task)
            tail = _Piece()
        if task in last_of_steps:
            close()
    close()
    return pieces, breaks


def _last_launches(job: Job, rank: int) -> frozenset[int]:
    """Returns the last launch of each optimizer step."""
    ends = []
    for step in optimizer_steps(job, rank):
        calls = [task for task in step if job.launched_by(task)]
        ends += calls[-1:]
    return frozenset(ends)
