"""New durations from models: kernels, collectives, host work, resized and resharded operators."""

from __future__ import annotations

from dse.trace.whatif.retime._all_reduces import (
    AllReduce,
    all_reduces,
    remove_all_reduces,
    serialized,
)
from dse.trace.whatif.retime._collectives import (
    collective_model_s,
    convert_collectives,
    resize_collectives,
    retime_collectives,
    scaled_links,
    strided_group,
    with_message,
    without_measurements,
)
from dse.trace.whatif.retime._host import (
    capture_graph,
    insert_launched,
    launch_stretches,
    merge_kernels,
    remove_operators,
)
from dse.trace.whatif.retime._kernel_calls import (
    KernelCall,
    is_lookup,
    kernel_calls,
    operator_name,
    traffic,
    weight_of,
)
from dse.trace.whatif.retime._kernels import (
    describe_inputs,
    is_product,
    kernel_times,
    optimizer_step_s,
    retime_kernels,
    share_of_time,
)
from dse.trace.whatif.retime._lookups import lookups_of
from dse.trace.whatif.retime._resize import (
    flattened_notes,
    has_shapes,
    resize_descriptions,
    resized_collectives,
    resized_inputs,
    usual_sizes,
)
from dse.trace.whatif.retime._tables import Tables, retime_all_to_alls, retime_lookups

__all__ = [
    "AllReduce",
    "KernelCall",
    "Tables",
    "all_reduces",
    "capture_graph",
    "collective_model_s",
    "convert_collectives",
    "describe_inputs",
    "flattened_notes",
    "has_shapes",
    "insert_launched",
    "is_lookup",
    "is_product",
    "kernel_calls",
    "kernel_times",
    "launch_stretches",
    "lookups_of",
    "merge_kernels",
    "operator_name",
    "optimizer_step_s",
    "remove_all_reduces",
    "remove_operators",
    "resize_collectives",
    "resize_descriptions",
    "resized_collectives",
    "resized_inputs",
    "retime_all_to_alls",
    "retime_collectives",
    "retime_kernels",
    "retime_lookups",
    "scaled_links",
    "serialized",
    "share_of_time",
    "strided_group",
    "traffic",
    "usual_sizes",
    "weight_of",
    "with_message",
    "without_measurements",
]
