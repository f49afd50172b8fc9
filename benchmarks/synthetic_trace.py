"""A Kineto trace of any size, for `benchmarks/traces.py`."""

from __future__ import annotations

import json
import math
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path


#: Events of one launch.
_LAUNCH_EVENTS = 7


def write_synthetic(path: Path, megabytes: float = math.inf, events: float = math.inf) -> None:
    """Writes a trace of nested operators, launches, kernels and arrows, a step a millisecond.

    Args:
        path: The file.
        megabytes: How long it becomes.
        events: How many events it gets.
    """
    head = {"schemaVersion": 1, "distributedInfo": {"rank": 0, "world_size": 1}}
    with path.open("w") as file:
        file.write(json.dumps(head)[:-1] + ', "traceEvents": [\n')
        number, separator = 0, ""
        while file.tell() < megabytes * 1e6 and number * _LAUNCH_EVENTS < events:
            lines = [json.dumps(event) for event in _launch(number)]
            file.write(separator + ",\n".join(lines))
            number, separator = number + 1, ",\n"
        file.write("\n]}\n")


def _launch(number: int) -> list[dict[str, object]]:
    start = 1000000.125 + 50.0 * number
    name = f"aten::operator_{number % 97}"
    shapes = {"Input Dims": [[1024, number % 31 + 1], []], "Input type": ["float", "Scalar"]}
    host = {"pid": 1, "tid": 1}
    device = {"pid": 0, "tid": 7}
    ids = {"External id": 3 * number, "correlation": number}
    kernel = {"device": 0, "stream": 7, "grid": [80, 1, 1], "block": [128, 1, 1], **ids}
    arrow = {"cat": "ac2g", "name": "ac2g", "id": number}
    operators = [
        {
            "ph": "X",
            "cat": "cpu_op",
            "name": name + suffix,
            "ts": start + inner,
            "dur": 30.5 - 2 * inner,
            **host,
            "args": {
                "External id": 3 * number + inner,
                "Record function id": 3 * number + inner,
                "Ev Idx": 3 * number + inner,
                **shapes,
            },
        }
        for inner, suffix in enumerate(("", "_inner", "_out"))
    ]
    call = {"ph": "X", "cat": "cuda_runtime", "name": "cudaLaunchKernel", "ts": start + 5}
    work = {"ph": "X", "cat": "kernel", "name": f"void kernel_{number % 53}<float, 4>(float*)"}
    return [
        *operators,
        {**call, "dur": 6.25, **host, "args": {**ids, "External id": 3 * number + 2, "cbid": 211}},
        {**arrow, "ph": "s", **host, "ts": start + 5},
        {**work, "ts": start + 15, "dur": 40.125, **device, "args": kernel},
        {**arrow, "ph": "f", "bp": "e", **device, "ts": start + 15},
    ]
