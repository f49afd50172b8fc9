"""CUDA graphs: one launch replaces the host work of many."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, ClassVar, Literal

from pydantic import Field

from dse.config import Seconds
from dse.errors import ConfigError
from dse.trace.whatif.core import Optimization
from dse.trace.whatif.retime import capture_graph, launch_stretches

if TYPE_CHECKING:
    from dse.trace.whatif.core import StepEditor

_LAUNCH_S = 10e-6


class CudaGraphs(Optimization):
    """CUDA graphs: each training step is launched at once instead of kernel by kernel.

    Attributes:
        launch: Duration of the launch of a graph; by default the platform's, or 10 us.
    """

    main_option: ClassVar[str] = "launch"

    optimization: Literal["cuda_graphs"] = "cuda_graphs"
    launch: Annotated[Seconds, Field(ge=0)] | None = None

    def apply(self, editor: StepEditor) -> None:
        """Replaces the host work between the first and the last launch of each stretch."""
        if editor.machine.kind == "cpu":
            raise ConfigError(
                "the step was captured on a CPU: no work of a GPU was launched, so no graph can "
                "be made"
            )
        platform = editor.machine.platform
        launch_s = platform.host.graph_launch_s if platform else _LAUNCH_S
        launch_s = launch_s if self.launch is None else self.launch
        graphs = waits = launches = 0
        for rank in editor.ranks:
            stretches, waiting = launch_stretches(editor, rank)
            waits += waiting
            for stretch in stretches:
                launches += len(stretch.calls)
                graphs += capture_graph(editor, stretch, launch_s)
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
            editor.notes.append(
                f"cuda_graphs: {waits} calls wait for a device; they stay, and each ends a graph"
            )
