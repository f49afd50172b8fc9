"""Predicted against published time of a training step with attention over histories, by part.

The published step is that of `dlrm_hstu_recsys` on 16 H100. Attention was fitted on the two rates
of its kernel; every other part is predicted by models that were fitted elsewhere, or on nothing.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import asdict, dataclass
import json
from typing import TYPE_CHECKING

from pages import table, text
from tables import read_rows

import dse
from dse.errors import DseError
from dse.graph import TaskKind

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

_MODEL, _PLATFORM, _RANKS, _BATCH = "dlrm_hstu_recsys", "h100_sxm", 16, 512

_ATTENTION, _UVQK, _PROJECT = ".attention", ".uvqk.", ".project."


def _is_product(name: str) -> bool:
    return name.endswith((".forward", "_gradient")) and "loss" not in name


def _is_elementwise(name: str) -> bool:
    return not (_is_product(name) or _ATTENTION in name or "lookup" in name or "tables" in name)


def _other_product(name: str) -> bool:
    return _is_product(name) and not (_ATTENTION in name or _UVQK in name or _PROJECT in name)


#: Parts by their names in the file: whether they were fitted, and which operators they are.
_PARTS: dict[str, tuple[bool, Callable[[str], bool]]] = {
    "HSTU attention forward+backward": (True, lambda name: _ATTENTION in name),
    "GEMM uvqk": (False, lambda name: _UVQK in name and _is_product(name)),
    "GEMM projection": (False, lambda name: _PROJECT in name and _is_product(name)),
    "GEMM others": (False, _other_product),
    "elementwise": (False, _is_elementwise),
    "embedding op": (False, lambda name: "lookup" in name or "tables" in name),
    "GEMM M131168 N4096 K1024 forward, 8 layers": (
        False,
        lambda name: name.endswith(".uvqk.forward"),
    ),
    "GEMM M131168 K4096/N1024 backward (dgrad+wgrad), 8 layers": (
        False,
        lambda name: _UVQK in name and name.endswith("_gradient"),
    ),
    "GEMM M131168 N1024 K1024 forward, 8 layers": (
        False,
        lambda name: name.endswith(".project.forward"),
    ),
    "GEMM M131168 1024 1024 backward, 8 layers": (
        False,
        lambda name: _PROJECT in name and name.endswith("_gradient"),
    ),
}

_STEP = "step time (median of 41 intervals)"
_IDLE, _COLLECTIVES = "GPU idle", "NCCL exposed"


@dataclass(frozen=True)
class SequenceRow:
    """One part of the published step.

    Attributes:
        part: Its name in the file.
        measured_ms: Published time.
        predicted_ms: Prediction.
        fitted: Whether the prediction was fitted on this very figure.
    """

    part: str
    measured_ms: float
    predicted_ms: float
    fitted: bool = False

    @property
    def error(self) -> float:
        """Relative error."""
        return self.predicted_ms / self.measured_ms - 1.0


def sequence_rows(path: Path) -> list[SequenceRow]:
    """Returns the parts of the published step that the model has, with their predictions.

    Args:
        path: Table with the columns `what`, `value`, `unit` and `config`.

    Raises:
        DseError: The file cannot be read, or has no step time.
    """
    lines = [row for row in read_rows(path) if row.get("unit") == "ms"]
    try:
        measured = {row["what"]: float(row["value"]) for row in lines}
    except (KeyError, ValueError) as error:
        raise DseError(f"{path}: {error}") from None
    if _STEP not in measured:
        raise DseError(f"{path}: no row `{_STEP}`; expected the published benchmark of HSTU")
    predicted, fitted = _predicted_ms(), {name for name, (yes, _) in _PARTS.items() if yes}
    return [
        SequenceRow(part, value, predicted[part], part in fitted)
        for part, value in measured.items()
        if part in predicted
    ]


def _predicted_ms() -> dict[str, float]:
    """Returns predicted milliseconds of one rank's parts, and of the step."""
    job = dse.Job(_MODEL, _PLATFORM, world_size=_RANKS, global_batch_size=_BATCH)
    plan = job.shard().plan
    prediction, graph = job.predict(plan), job.graph(plan).graph
    by_name: dict[str, float] = defaultdict(float)
    for task, stream in enumerate(graph.stream.tolist()):
        if graph.kind[task] == TaskKind.COMPUTE and graph.streams[stream].rank == 0:
            by_name[graph.names[task]] += 1e3 * float(graph.duration_s[task])
    found = {
        part: sum(time for name, time in by_name.items() if chosen(name))
        for part, (_, chosen) in _PARTS.items()
    }
    rank = prediction.breakdown[0]
    found[_STEP] = 1e3 * prediction.iteration_time_s
    found[_IDLE] = 1e3 * (rank.host_s + rank.idle_s)
    found[_COLLECTIVES] = 1e3 * rank.exposed_communication_s
    return found


def compare_sequence(path: Path, *, as_json: bool) -> None:
    """Prints the published and the predicted time of each part, or the same as JSON.

    Raises:
        DseError: The file cannot be read, or has no step time.
    """
    rows = sequence_rows(path)
    if as_json:
        print(json.dumps([asdict(row) | {"error": row.error} for row in rows], indent=1))
        return
    width = max(len(row.part) for row in rows)
    print(f"{'part':<{width}}  {'measured':>11} {'predicted':>11}   error")
    for row in rows:
        note = "  fitted" if row.fitted else ""
        print(
            f"{row.part:<{width}}  {row.measured_ms:8.3f} ms {row.predicted_ms:8.3f} ms "
            f"{100 * row.error:+6.1f}%{note}"
        )


_SECTION = """
## A generative recommender, part by part

`dlrm_hstu_recsys` on 16 H100 SXM with 32 sequences a GPU, as NVIDIA published it
(`published/hstu_h100.csv`, {source}). `python benchmarks/accuracy.py --sequence hstu_h100.csv`
prints the table. The two rates of the attention kernel were fitted on two of the file's figures.
Products come from the calibration of the H100, which saw none of these, and everything else comes
from models fitted elsewhere.

"""

_CAUSES = """
What is missed: the published embedding operator uses DynamicEmb's hash tables with a cache of a
tenth of the rows, while the model has FBGEMM's tables in device memory. The causes of the other
errors are not known. Norms and gates with their sums over rows probably do not reach the bandwidth
of plain streams; the product of u, v, q and k is slow only in the forward pass, where its bias is
added; and hash tables probably cause the gaps on the device. The file's experiments with histories
of varying length do not say how long these are, so they are not predicted.
"""


def sequence_section(rows: list[SequenceRow]) -> str:
    """Returns the section of the page of accuracy; empty without rows."""
    if not rows:
        return ""
    source = "NVIDIA/recsys-examples at 43465aea"
    cells = (
        (
            *(row.part, f"{row.measured_ms:.3f} ms", f"{row.predicted_ms:.3f} ms"),
            f"{100 * row.error:+.1f} %{' (fitted)' if row.fitted else ''}",
        )
        for row in rows
    )
    times = text(table(("part", "measured", "predicted", "error"), "lr", cells))
    return "".join([_SECTION.format(source=source), times, _CAUSES])
