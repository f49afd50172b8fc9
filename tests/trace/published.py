"""Published traces, read once per session; tests of them are skipped where they are missing."""

from __future__ import annotations

from functools import cache

import pytest

from benchmarks.folders import DATA
from dse.trace import link, match_collectives, read_kineto, trace_graph

FOLDER = DATA / "traces"

needs_published_traces = pytest.mark.skipif(
    not FOLDER.is_dir(),
    reason=f"no published traces in {FOLDER}; name the folder above in DSE_MEASUREMENTS",
)


@cache
def published(name):
    """Traces and links of `dlrm` (8 ranks), `linear` or `resnet` (one GPU each)."""
    ending = "tar.gz" if name == "dlrm" else "json.gz"
    traces = read_kineto(FOLDER / f"{name}_kineto.{ending}")
    return traces, [link(trace) for trace in traces]


@cache
def published_graph(name):
    """Graph of the last step of all ranks together."""
    traces, links = published(name)
    return trace_graph(traces, links, match_collectives(traces, links))
