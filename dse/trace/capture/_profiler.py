"""PyTorch's profiler with its execution trace observer, driven from iteration to iteration."""

from __future__ import annotations

import json
from pathlib import Path
import tempfile
from typing import TYPE_CHECKING, Any

from dse.trace.capture._torch import activities

if TYPE_CHECKING:
    from dse.trace.capture._settings import CaptureSettings
    from dse.trace.capture._torch import RankInfo


class Profiler:
    """Records once; its files are plain JSON in a private folder until :meth:`discard`.

    Args:
        torch: The torch module.
        settings: What is recorded.
    """

    def __init__(self, torch: Any, settings: CaptureSettings) -> None:
        self._settings = settings
        self._scratch = tempfile.TemporaryDirectory(prefix="dse-capture-")
        self._stopped = False
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
    def kineto(self) -> Path:
        """Where the Kineto trace lies after :meth:`stop`."""
        return Path(self._scratch.name) / "kineto.json"

    @property
    def execution_trace(self) -> Path | None:
        """Where the execution trace lies after :meth:`stop`, if there is one."""
        return self._observed if self._observed.exists() else None

    @property
    def _observed(self) -> Path:
        return Path(self._scratch.name) / "et.json"

    def start(self) -> None:
        """Iteration 0 begins."""
        self._before(0)
        self._profile.__enter__()

    def advance(self, step: int) -> None:
        """Iteration `step` begins; the recording starts and stops here."""
        self._before(step)
        self._profile.step()

    def name_rank(self, known: RankInfo) -> None:
        """Says in the trace which rank this is; only while it is recorded."""
        # The profiler says so itself, and more, where there is a process group.
        if not known.backend:
            info = {"rank": known.rank}
            if known.world_size:
                info["world_size"] = known.world_size
            self._profile.add_metadata_json("distributedInfo", json.dumps(info))

    def rewind(self, step: int) -> None:
        """The iteration that runs is number `step`; only while nothing is recorded."""
        self._profile.step_num = step

    def stop(self, *, keep: bool) -> None:
        """Stops for good; with `keep`, the files are there afterwards."""
        if not self._stopped:
            self._stopped = True
            self._profile.__exit__(None, None, None)
            if keep:
                self._profile.export_chrome_trace(str(self.kineto))

    def discard(self) -> None:
        """Removes the files."""
        self._scratch.cleanup()

    def _before(self, step: int) -> None:
        # The observer costs time in every operator as soon as it is registered.
        if step == self._settings.skip and self._observer is not None:
            self._observer.register_callback(str(self._observed))
