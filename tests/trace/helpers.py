"""Tiny traces made by hand."""

from __future__ import annotations

import json

from dse.simulate import simulate
from dse.trace import compare_with_measured, link, match_collectives, trace_graph

HOST = {"pid": 10, "tid": 11}


def span(cat, name, ts, dur, *, args=None, **place):
    event = {"ph": "X", "cat": cat, "name": name, "ts": ts, "dur": dur, **(place or HOST)}
    return event if args is None else {**event, "args": args}


def operator(name, ts, dur, *, tid=11, **args):
    return span("cpu_op", name, ts, dur, pid=10, tid=tid, args=args)


def call(ts, dur, correlation, *, name="cudaLaunchKernel", tid=11, **args):
    args = {"correlation": correlation, "External id": correlation, **args}
    return span("cuda_runtime", name, ts, dur, pid=10, tid=tid, args=args)


def kernel(name, ts, dur, correlation, *, stream=7, device=0, cat="kernel", **args):
    args = {"device": device, "stream": stream, "correlation": correlation, **args}
    return span(cat, name, ts, dur, pid=device, tid=stream, args=args)


def document(events, rank=None, world_size=2, **top):
    if rank is not None:
        top["distributedInfo"] = {"backend": "nccl", "rank": rank, "world_size": world_size}
    return {"schemaVersion": 1, **top, "traceEvents": list(events)}


def write(path, events, **top):
    path.write_text(json.dumps(document(events, **top)))
    return path


def node(number, name, parent, *, rf=0, seq=-1, tid=1, fw=0, inputs=(), types=(), shapes=()):
    """A node of schema 1.0.1."""
    return {
        "name": name,
        "id": number,
        "rf_id": rf,
        "parent": parent,
        "fw_parent": fw,
        "seq_id": seq,
        "scope": 0,
        "tid": tid,
        "fw_tid": 0,
        "op_schema": "",
        "inputs": list(inputs),
        "input_shapes": list(shapes),
        "input_types": list(types),
        "outputs": [],
        "output_shapes": [],
        "output_types": [],
    }


def new_node(number, name, parent, *, inputs=(), types=(), shapes=(), **attributes):
    """A node of schema 1.1."""
    nothing = {"values": [], "shapes": [], "types": []}
    given = {"rf_id": 0, "fw_parent": 0, "seq_id": -1, "scope": 0, "tid": 1, "fw_tid": 0}
    return {
        "id": number,
        "name": name,
        "ctrl_deps": parent,
        "inputs": {"values": list(inputs), "shapes": list(shapes), "types": list(types)},
        "outputs": nothing,
        "attrs": [
            {"name": name, "type": "uint64", "value": value}
            for name, value in {**given, "op_schema": "", **attributes}.items()
        ],
    }


def execution_trace(path, nodes, schema="1.0.1", pid=10):
    path.write_text(json.dumps({"schema": schema, "pid": pid, "nodes": list(nodes)}))
    return path


def resimulated(traces, *, together=True, step=None):
    """Compares each rank with its simulation: with the other ranks, or alone."""
    links = [link(trace) for trace in traces]
    if together:
        graphs = [trace_graph(traces, links, match_collectives(traces, links), step)]
    else:
        graphs = [
            trace_graph([one], [of], (), step) for one, of in zip(traces, links, strict=True)
        ]
    return [one for made in graphs for one in compare_with_measured(made, simulate(made.graph))]
