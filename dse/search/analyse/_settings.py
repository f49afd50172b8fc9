"""Settings of a configuration in words: what a search chose besides machines and batch."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dse.sharding import ShardingType
from dse.workload import PLACEMENT_PREFIX, program_label, workload_kind

if TYPE_CHECKING:
    from collections.abc import Collection

    from dse.search._records import StudyResult, TrialRecord

#: Parameters that the name of the machines has.
_OF_MACHINES = ("platform", "world_size", "global_batch_size", "local_batch_size")
#: Parameters whose values need no name.
_SELF_EXPLANATORY = ("link", "network", "launch", "precision")
#: Words after the values of parameters that read better without their name.
_SUFFIX = {"communication_precision": "on the wire", "table_data_type": "rows"}
#: Sharding types as TorchRec's planner abbreviates them.
_ABBREVIATED = {
    ShardingType.DATA_PARALLEL: "DP",
    ShardingType.TABLE_WISE: "TW",
    ShardingType.COLUMN_WISE: "CW",
    ShardingType.ROW_WISE: "RW",
    ShardingType.TABLE_ROW_WISE: "TWRW",
    ShardingType.TABLE_COLUMN_WISE: "TWCW",
    ShardingType.GRID_SHARD: "GS",
}


def setting_texts(record: TrialRecord, names: Collection[str]) -> list[str]:
    """Returns the chosen values of parameters, one text each.

    Left out are machines and batch, what the kind of workload shows as one text, defaults,
    placements of single tables, and the network, of which the prediction names the one in use.

    Args:
        record: The trial.
        names: Parameters to name.
    """
    skipped = {*_OF_MACHINES}
    if record.configuration is not None:
        skipped |= workload_kind(record.configuration.kind).summarized
    if record.prediction is not None:
        skipped.add("network")
    return [
        _setting_text(name, value)
        for name, value in record.parameters
        if name in names
        and name not in skipped
        and value != "default"
        and not name.startswith(PLACEMENT_PREFIX)
    ]


def searched_names(study: StudyResult) -> list[str]:
    """Returns the parameters of which a study had a choice."""
    return [parameter.name for parameter in study.parameters if len(parameter.choices) > 1]


def _setting_text(name: str, value: object) -> str:
    if isinstance(value, bool):
        return f"{name.replace('_', ' ')} {'on' if value else 'off'}"
    text = str(value)
    if name == "program":
        return program_label(text)
    if name == "sharding_types":
        known = {kind.value: short for kind, short in _ABBREVIATED.items()}
        return "+".join(known.get(part, part) for part in text.split("+"))
    if name in _SUFFIX:
        return f"{text} {_SUFFIX[name]}"
    return text if name in _SELF_EXPLANATORY else f"{name.replace('_', ' ')} {text}"
