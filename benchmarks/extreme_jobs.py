"""Jobs at both ends of what is allowed, and laws of their answers, for `benchmarks/faults.py`."""

from __future__ import annotations

from dataclasses import dataclass
import math
from typing import TYPE_CHECKING, Any

import yaml

import dse
from dse.errors import DseError

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path
    from random import Random

    from faults import Try, Workplace

_PLATFORMS = (
    "cpu", "titan_xp", "p100_pcie", "v100_dgx2", "a100_sxm_80", "h100_sxm", "h100_pcie",
    "gb200_nvl72", "mi300x",
)  # fmt: skip

_DATA_BYTES = {"fp32": 4, "fp16": 2, "bf16": 2, "fp8": 1, "int8": 1}

#: What makes a machine better, as differences from it.
_BETTER: tuple[dict[str, Any], ...] = (
    {"network": {"bandwidth": "4000 Tbit/s"}},
    {"network": {"latency": "0 s"}},
    {"link": {"bandwidth": "4000 TB/s"}},
    {"link": {"latency": "0 s"}},
    {"device": {"memory": {"bandwidth": "4000 TB/s"}}},
    {"price": "0 USD/h"},
)

#: How much slower a better machine may seem: another plan was found for it, which is no worse than
#: the bound of its search. Transformers have no plan.
_SLACK = {"dlrm": 0.02, "transformer": 1e-6}


@dataclass(frozen=True)
class _Job:
    """A job that is drawn.

    Attributes:
        kind: Kind of workload.
        model: Content of a model's file.
        platform: Name of the platform.
        parameters: Everything else.
    """

    kind: str
    model: dict[str, Any]
    platform: str
    parameters: dict[str, Any]


def extremes(place: Workplace) -> Iterator[Try]:
    """Tables of one row, batches of one, models of one layer: right by law, or refused."""
    path = place.folder / "extreme.yaml"
    while True:
        draw = place.chance.choice((_recommendation_model, _transformer))
        job = draw(place.chance)
        path.write_text(yaml.safe_dump(job.model))
        problem = ""
        try:
            problem = _broken_law(job, path, place.chance)
        except DseError as error:
            problem = "" if str(error).strip() else "an error without words"
        except Exception as error:
            problem = f"{type(error).__name__}: {error}"
        yield job.kind, f"{problem} {job}" if problem else ""


def _broken_law(job: _Job, path: Path, chance: Random) -> str:
    """Returns what is wrong with the answers to a job, or nothing."""
    found = dse.predict(path, job.platform, **job.parameters)
    time_s = found.iteration_time_s
    if not 0 < time_s < math.inf:
        return f"{time_s} s"
    if not found.iteration_time_p5_s <= time_s * (1 + 1e-9) <= found.iteration_time_p95_s + 1e-9:
        return "outside of its interval"
    for rank in found.breakdown:
        parts_s = rank.compute_s + rank.exposed_communication_s + rank.host_s + rank.idle_s
        if not math.isclose(parts_s, time_s, rel_tol=1e-6):
            return f"the parts of a rank take {parts_s} of {time_s} s"
    if job.kind == "dlrm" and "replicas" not in job.parameters:
        held_bytes = sum(one.total_bytes + one.host_bytes for one in found.memory)
        if held_bytes < _table_bytes(job.model):
            return f"{held_bytes} bytes on all ranks"
    change = chance.choice(_BETTER)
    better = dse.predict(path, {"from": job.platform, **change}, **job.parameters)
    if better.iteration_time_s > time_s * (1 + _SLACK[job.kind]):
        return f"slower with {change}: {better.iteration_time_s} instead of {time_s} s"
    if "price" in change and better.cost_usd_per_million_samples != 0:
        return f"costs {better.cost_usd_per_million_samples} at a price of 0"
    if job.kind == "dlrm" and found.feasible and chance.random() < 0.3:
        return _broken_law_of_plans(job, path, time_s)
    return ""


def _broken_law_of_plans(job: _Job, path: Path, quick_s: float) -> str:
    solved = dse.shard(path, job.platform, **job.parameters)
    if solved.lower_bound_s > solved.iteration_time_s * (1 + 1e-9) or solved.gap < 0:
        return f"{solved.iteration_time_s} s are less than the bound"
    if solved.iteration_time_s > quick_s * (1 + 1e-6):
        return f"the thorough search is slower: {solved.iteration_time_s} and {quick_s} s"
    again = dse.predict(path, job.platform, plan=solved.plan, **job.parameters)
    if not math.isclose(again.iteration_time_s, solved.iteration_time_s, rel_tol=1e-9):
        return f"its plan takes {again.iteration_time_s} s"
    return ""


def _table_bytes(model: dict[str, Any]) -> int:
    return sum(
        table["rows"] * table["dim"] * _DATA_BYTES[table.get("data_type", "fp32")]
        for table in model["tables"]
    )


def _recommendation_model(chance: Random) -> _Job:
    pick = chance.choice
    dims = pick(([1], [4], [65536], [1, 65536], [3, 8, 16]))
    kind = pick(("concat", "dot", "fm", "dcnv2", "dcnv2_low_rank"))
    if kind in ("dot", "fm"):
        dims = dims[:1]
    tables: list[dict[str, Any]] = []
    for number in range(pick((1, 1, 2, 3, 5, 40))):
        table = {
            "name": f"t{number}",
            "rows": pick((1, 1, 2, 1000, 10**6, 10**9)),
            "dim": pick(dims),
            "pooling": pick((1e-9, 1e-3, 0.5, 1, 20, 1e4, [1, 2, 3])),
        }
        extras = {
            "indices": pick(({"kind": "uniform"}, {"kind": "zipf", "alpha": pick((1e-4, 5.0))})),
            "data_type": pick(tuple(_DATA_BYTES)),
            "weighted": True,
            "bags_per_sample": pick((1e-6, 0.5, 1000)),
        }
        tables.append(table | _some(extras, chance))
    interaction = {"kind": kind}
    if kind.startswith("dcn"):
        interaction["layers"] = pick((1, 3))
    if kind == "dcnv2_low_rank":
        interaction["low_rank"] = pick((1, 512))
    dense = pick((0, 1, 13))
    if kind in ("dot", "fm"):
        bottom = [dims[0]] if dense else []
    else:
        bottom = pick(([], [1], [16])) if dense else []
    model = {
        "schema_version": 1, "kind": "dlrm", "name": "extreme", "source": "drawn",
        "dense_features": dense, "bottom_mlp": bottom, "interaction": interaction,
        "top_mlp": pick(([1], [1, 1], [128, 1])), "precision": pick(("fp32", "tf32", "fp16")),
        "optimizer": {
            "dense": pick(("sgd", "adam")),
            "sparse": pick(("sgd", "adagrad", "rowwise_adagrad", "adam")),
        },
        "global_batch_size": 64, "tables": tables,
    }  # fmt: skip
    extras = {
        "program": pick(("torchrec", "hugectr", "ideal", "dse_trainer", "torchrec_dlrm")),
        "replicas": pick((1, 2, 4)),
        "hot_rows": True,
    }
    return _Job("dlrm", model, pick(_PLATFORMS), _sizes(chance, 1) | _some(extras, chance))


def _transformer(chance: Random) -> _Job:
    pick = chance.choice
    heads = pick((1, 1, 2, 3, 8))
    model = {
        "schema_version": 1, "kind": "transformer", "name": "extreme", "source": "drawn",
        "family": pick(("gpt", "bert")), "layers": pick((1, 1, 2, 3, 5)), "heads": heads,
        "hidden": heads * pick((1, 2, 64, 128)), "vocab": pick((1, 2, 3, 50257, 10**6)),
        "sequence_length": pick((1, 1, 2, 7, 2048, 10**6)), "optimizer": pick(("adam", "sgd")),
        "precision": pick(("fp16", "bf16", "fp32")), "global_batch_size": pick((1, 8)),
    }  # fmt: skip
    tensor, pipeline, context = pick((1, 1, 2, 8)), pick((1, 1, 2, 3, 8)), pick((1, 1, 1, 2))
    micro = pick((1, 1, 2, 64))
    extras = {
        "interleave": pick((1, 2)),
        "recompute": pick(("none", "selective", "full")),
        "data_sharding": pick(("none", "zero1", "zero3")),
        "schedule": pick(("1f1b", "gpipe", "zero_bubble")),
        "sequence_parallel": tensor > 1,
        "offload": pick(("none", "all")),
        "program": pick(("ideal", "megatron", "pytorch", "nanotron")),
    }
    degrees = {"tensor": tensor, "pipeline": pipeline, "context": context}
    together = tensor * pipeline * context
    sizes = _sizes(chance, together, micro)
    some = _some(extras, chance)
    return _Job(
        "transformer",
        model,
        pick(_PLATFORMS),
        {**sizes, **degrees, "micro_batch_size": micro} | some,
    )


def _sizes(chance: Random, degrees: int, micro: int = 1) -> dict[str, int]:
    """Returns ranks, and a batch that mostly divides over them."""
    replicas = chance.choice((1, 1, 2, 3, 4, 8, 64))
    batch = replicas * micro * chance.choice((1, 1, 2, 1000, 2**20))
    wrong = chance.choice((1, 2**40, 2**53, 2**64))
    return {
        "world_size": replicas * degrees,
        "global_batch_size": batch if chance.random() < 0.9 else wrong,
    }


def _some(extras: dict[str, Any], chance: Random) -> dict[str, Any]:
    return {name: value for name, value in extras.items() if chance.random() < 0.2}
