"""PyTorch's profiler with its execution trace observer, its output, and this process's rank.

Nothing else in this package imports torch.
"""

from __future__ import annotations

from dataclasses import dataclass
import gzip
import hashlib
import io
import json
import os
from pathlib import Path
import re
import tempfile
from typing import TYPE_CHECKING, Any

from dse._io.writing import write_atomically
from dse.errors import ConfigError
from dse.trace.capture._files import CapturedFile

if TYPE_CHECKING:
    from collections.abc import Mapping

    from dse.trace.capture._settings import CaptureSettings

#: The profiler writes the path of its output, which is useless to anybody else.
_TRACE_NAME = re.compile(rb'"traceName": "(?:[^"\\]|\\.)*"')


@dataclass(frozen=True, slots=True)
class RankInfo:
    """This process in its job.

    Attributes:
        rank: Global rank.
        world_size: Ranks of the job; 0 if unknown.
        backend: Backend of the default process group; empty without one.
    """

    rank: int
    world_size: int
    backend: str = ""


def rank_info(
    torch: Any, given: int | None, environment: Mapping[str, str] | None = None
) -> RankInfo:
    """Returns rank and world size of the process group, else of the environment, else 0 of 1.

    Args:
        torch: The torch module.
        given: Rank given by the user, if any; it must agree with the process group.
        environment: Environment variables; those of this process by default.

    Raises:
        ConfigError: The given rank is not that of the process group, or a variable is no number.
    """
    dist = torch.distributed
    if dist.is_available() and dist.is_initialized():
        found = RankInfo(dist.get_rank(), dist.get_world_size(), str(dist.get_backend()))
        if given is not None and given != found.rank:
            raise ConfigError(
                f"rank={given}, but torch.distributed says {found.rank}; leave `rank` out"
            )
        return found
    variables = os.environ if environment is None else environment
    alone = given is None and not variables.get("RANK")
    rank = _number(variables, "RANK", 0) if given is None else given
    return RankInfo(rank, _number(variables, "WORLD_SIZE", 1 if alone else 0))


def _number(variables: Mapping[str, str], name: str, default: int) -> int:
    text = variables.get(name, "")
    if not text:
        return default
    if not text.isdecimal():
        raise ConfigError(f"{name}={text}: expected a number from 0; unset it or give `rank`")
    return int(text)


def activities(torch: Any) -> list[Any]:
    """Returns what to profile: the host, and GPUs if available."""
    kinds = torch.profiler.ProfilerActivity
    found = [kinds.CPU]
    if torch.cuda.is_available() and kinds.CUDA in torch.profiler.supported_activities():
        found.append(kinds.CUDA)
    return found


def drain(torch: Any) -> None:
    """Waits until the GPU of this process is idle, if the process uses one."""
    if torch.cuda.is_available() and torch.cuda.is_initialized():
        torch.cuda.synchronize()


def device_name(torch: Any) -> str:
    """Returns the name of the GPU that this process uses, or `cpu`."""
    if torch.cuda.is_available() and torch.cuda.is_initialized():
        return str(torch.cuda.get_device_name(torch.cuda.current_device()))
    return "cpu"


class Profiler:
    """Records once; its files are plain JSON in a private folder until :meth:`discard`.

    Args:
        torch: The torch module.
        settings: What to record.
    """

    def __init__(self, torch: Any, settings: CaptureSettings) -> None:
        self._skip = settings.skip
        self._scratch = tempfile.TemporaryDirectory(prefix="dse-capture-")
        self._stopped = False
        self.kineto = Path(self._scratch.name) / "kineto.json"
        self._observed = Path(self._scratch.name) / "et.json"
        profiler = torch.profiler
        self._observer = profiler.ExecutionTraceObserver() if settings.execution_trace else None
        self._profile = profiler.profile(
            activities=activities(torch),
            schedule=profiler.schedule(
                wait=settings.skip, warmup=settings.warm_up, active=settings.steps, repeat=1
            ),
            record_shapes=settings.shapes,
            with_stack=settings.stacks,
            profile_memory=settings.memory,
            execution_trace_observer=self._observer,
        )

    @property
    def execution_trace(self) -> Path | None:
        """The execution trace after :meth:`stop`, if one was recorded."""
        return self._observed if self._observed.exists() else None

    def start(self) -> None:
        """Begins iteration 0."""
        self._register(0)
        self._profile.__enter__()

    def advance(self, step: int) -> None:
        """Begins iteration `step`; the recording starts and stops here."""
        self._register(step)
        self._profile.step()

    def name_rank(self, known: RankInfo) -> None:
        """Writes the rank into the trace; only while recording."""
        # With a process group the profiler writes the rank, and more.
        if not known.backend:
            info = {"rank": known.rank}
            if known.world_size:
                info["world_size"] = known.world_size
            self._profile.add_metadata_json("distributedInfo", json.dumps(info))

    def rewind(self, step: int) -> None:
        """Makes the current iteration number `step`; only before the recording."""
        self._profile.step_num = step

    def stop(self, *, keep: bool) -> None:
        """Stops for good; with `keep`, writes the files."""
        if not self._stopped:
            self._stopped = True
            self._profile.__exit__(None, None, None)
            if keep:
                self._profile.export_chrome_trace(str(self.kineto))

    def discard(self) -> None:
        """Removes the files."""
        self._scratch.cleanup()

    def _register(self, step: int) -> None:
        # A registered observer slows every operator down.
        if step == self._skip and self._observer is not None:
            self._observer.register_callback(str(self._observed))


def pack(source: Path, target: Path, incomplete_step: int | None) -> CapturedFile:
    """Compresses a trace into its final place.

    Args:
        source: The trace as written by the profiler.
        target: The file to write, atomically.
        incomplete_step: Number of an iteration that was cut off, if one was; it is renamed, so
            that readers do not take it for a complete iteration.

    Raises:
        StudyError: The folder cannot be written.
    """
    cut = b"" if incomplete_step is None else b'"name": "ProfilerStep#%d"' % incomplete_step
    renamed = b'"name": "incomplete step %d"' % (incomplete_step or 0)
    named = b'"traceName": "%s"' % target.name.encode()
    buffer = io.BytesIO()
    with (
        source.open("rb") as lines,
        gzip.GzipFile(filename="", mode="wb", compresslevel=6, fileobj=buffer, mtime=0) as packed,
    ):
        for line in lines:
            if cut and cut in line:
                line = line.replace(cut, renamed)
            if b'"traceName"' in line:
                line = _TRACE_NAME.sub(lambda _: named, line)
            packed.write(line)
    content = buffer.getvalue()
    write_atomically(target, content)
    return CapturedFile(target.name, len(content), hashlib.sha256(content).hexdigest())
