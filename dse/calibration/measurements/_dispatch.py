"""Dispatches of mixtures of experts, read as all-to-alls.

Tables of aiconfigurator time the kernel that sends every token to the ranks of its experts. With
balanced routing the experts of a token are on as many ranks as there can be, and all ranks receive
the same, so it is an all-to-all of

    tokens · hidden · bytes of a value · min(experts a token, ranks)

bytes as nccl-tests counts them, the rank's own part included. Combining adds while it receives,
and narrow values travel with scales: both are left out.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from dse._io.tables import objects
from dse.calibration.measurements._names import value_bytes_of

if TYPE_CHECKING:
    from dse._io.tables import Table

#: Columns by which these tables are known.
_COLUMNS = {
    "op_name",
    "moe_dtype",
    "num_tokens",
    "hidden_size",
    "topk",
    "moe_ep_size",
    "distribution",
    "latency",
}

#: Values that travel without scales have at least so many bytes.
_PLAIN_BYTES = 2


def is_dispatch_table(table: Table) -> bool:
    """Returns whether a table holds dispatches of mixtures of experts."""
    return set(table.columns) >= _COLUMNS


def all_to_alls(table: Table) -> Table:
    """Returns the dispatches of a table as all-to-alls, other rows counted in a note.

    Args:
        table: One for which :func:`is_dispatch_table` holds.
    """
    columns = {name: values.tolist() for name, values in table.columns.items()}
    value_bytes = [value_bytes_of(str(name)) or 0 for name in columns["moe_dtype"]]
    kept = np.array(
        [
            op == "alltoall_dispatch" and routing == "balanced" and each >= _PLAIN_BYTES
            for op, routing, each in zip(
                columns["op_name"], columns["distribution"], value_bytes, strict=True
            )
        ],
        dtype=np.bool_,
    )
    sizes = [
        dispatch_message_bytes(int(tokens), int(hidden), int(topk), int(ranks), each)
        for tokens, hidden, topk, ranks, each in zip(
            *(columns[name] for name in ("num_tokens", "hidden_size", "topk", "moe_ep_size")),
            value_bytes,
            strict=True,
        )
    ]
    others = {
        name: values
        for name, values in table.columns.items()
        if name not in ("op_name", "moe_ep_size", "moe_dtype", "latency")
    }
    changed = replace(
        table,
        columns={
            **others,
            "op": objects(["all_to_all"] * len(table)),
            "ranks": table.columns["moe_ep_size"],
            "size_bytes": np.array(sizes, dtype=np.int64),
            "dtype": table.columns["moe_dtype"],
            "latency_ms": table.columns["latency"],
        },
        notes=(
            *table.notes,
            f"dispatches of mixtures of experts read as all-to-alls: {int(kept.sum())} of "
            f"{len(table)} rows; combining, narrow values and unbalanced routing left out",
        ),
    )
    return changed.select(kept)


def dispatch_message_bytes(
    tokens: int, hidden: int, topk: int, ranks: int, value_bytes: int
) -> int:
    """Returns the all-to-all message of a dispatch, the rank's own part included.

    Args:
        tokens: Tokens of one rank.
        hidden: Values of a token.
        topk: Experts of a token.
        ranks: Ranks that hold the experts.
        value_bytes: Bytes of a value.
    """
    return tokens * hidden * value_bytes * min(topk, ranks)
