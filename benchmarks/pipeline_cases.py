"""Train pipelines of TorchRec: predicted against published ratios of time, and memory.

The published runs (`torchrec_pipeline_bench.csv`, from commits of meta-pytorch/torchrec) name no
GPU, so ratios between runs of one source are compared. They are predicted for two H100 PCIe: of
all platforms with 80 GB the one whose forward passes take as long as the published ones, which
are 20 batches. Products are in FP32: the benchmark turns TF32 off. Nothing was fitted to these
ratios; the ratio of reserved to allocated memory comes from the two runs of the memory audit that
are marked as fitted.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
import json
import math
from typing import TYPE_CHECKING

from pages import without_nan
from tables import read_table, stated_number

from dse.config import parse_document
from dse.errors import DseError
from dse.machine import Precision
from dse.machine.platforms import load_platform
from dse.model import ModelDocument
from dse.sharding import ComputeKernel, ShardingPlan, ShardingType, TablePlan
from dse.workload import find_program
from dse.workload.dlrm import DLRM_PROGRAMS, DlrmJob, DlrmProblem, TrainPipeline

if TYPE_CHECKING:
    from pathlib import Path

    import pandas as pd

    from dse.model import DlrmModel

#: Ranks and samples a rank of the published runs, and where they are predicted.
_RANKS, _SAMPLES, _PLATFORM = 2, 32_768, "h100_pcie"

_GB = 1e9

#: Columns of the file.
COLUMNS = ("commit", "name", "gpu_runtime", "gpu_peak_alloc", "gpu_peak_reserved")

_MODEL = """\
schema_version: 1
kind: dlrm
name: {name}
source: "meta-pytorch/torchrec, torchrec/distributed/benchmark/yaml"
dense_features: {dense_features}
bottom_mlp: {bottom}
interaction: {{kind: concat}}
top_mlp: {top}
precision: fp32
optimizer: {{dense: sgd, sparse: rowwise_adagrad}}
global_batch_size: 65536
table_defaults: {{pooling: {pooling}, indices: {{kind: uniform}}, data_type: fp32}}
tables:
  - {{name: plain, rows: 100000, dim: 256, count: {plain}}}
  - {{name: weighted, rows: 100000, dim: 256, count: {weighted}, weighted: true}}
  - {{name: half, rows: 100000, dim: {half_dim}, data_type: fp16}}
"""

#: Further tables: one cut by columns, and one in host memory with a fifth of its rows in a cache.
_WIDE = "  - {name: wide, rows: 1000000, dim: 2048}\n"
_CACHED = "  - {name: cached, rows: 10000000, dim: 512}\n"


def _model(
    name: str,
    plain: int,
    weighted: int,
    *,
    dense_features: int,
    bottom: list[int],
    top: list[int],
    pooling: int,
    more: str = _WIDE,
    half_dim: int = 512,
) -> DlrmModel:
    """Returns the model of a benchmark file of TorchRec."""
    text = _MODEL.format(
        name=name,
        plain=plain,
        weighted=weighted,
        dense_features=dense_features,
        bottom=bottom,
        top=[*top, 1],
        pooling=pooling,
        half_dim=half_dim,
    )
    return parse_document(text + more, ModelDocument, file=name).to_model()


_LIGHT = _model("light", 20, 20, dense_features=10, bottom=[8], top=[16] * 6, pooling=10)
_BASE = _model("base", 90, 80, dense_features=100, bottom=[128] * 4, top=[1024] * 6, pooling=30)
_EVALUATION = _model(
    "evaluation",
    50,
    50,
    dense_features=1000,
    bottom=[128, 128, 128, 1024],
    top=[4096] * 11,
    pooling=30,
    more="",
    half_dim=256,
)
_CACHING = _model(
    "caching",
    30,
    40,
    dense_features=100,
    bottom=[128] * 4,
    top=[1024] * 6,
    pooling=30,
    more=_CACHED,
)


@dataclass(frozen=True)
class Run:
    """A run of the published benchmark.

    Attributes:
        name: In the file; empty for one that is not in it.
        model: What is trained.
        pipeline: How.
        kernel: Where tables are.
        forward_only: Whether it is an evaluation.
    """

    name: str
    model: DlrmModel
    pipeline: TrainPipeline
    kernel: ComputeKernel = ComputeKernel.FUSED
    forward_only: bool = False

    def job(self) -> DlrmJob:
        """Returns the job, with tables table-wise unless the benchmark's file says otherwise."""
        software = replace(
            find_program(DLRM_PROGRAMS, "torchrec").software, pipeline=self.pipeline
        )
        cluster = load_platform(_PLATFORM).cluster(_RANKS)
        problem = DlrmProblem(self.model, cluster, _RANKS * _SAMPLES, Precision.FP32, software)
        everywhere = tuple(range(_RANKS))
        placed = []
        for index, table in enumerate(self.model.tables):
            if table.name == "cached":
                plan = TablePlan(
                    table.name,
                    ShardingType.ROW_WISE,
                    everywhere,
                    ComputeKernel.FUSED_UVM_CACHING,
                    0.2,
                )
            elif table.name == "half" and self.forward_only:
                plan = TablePlan(table.name, ShardingType.ROW_WISE, everywhere, self.kernel)
            elif table.name == "wide":
                plan = TablePlan(table.name, ShardingType.COLUMN_WISE, everywhere, self.kernel)
            else:
                plan = TablePlan(
                    table.name, ShardingType.TABLE_WISE, (index % _RANKS,), self.kernel
                )
            placed.append(plan)
        return DlrmJob(problem).with_plan(ShardingPlan(_RANKS, tuple(placed)))

    def time_s(self) -> float:
        """Returns the predicted time of one batch."""
        job = self.job()
        if self.forward_only:
            return job.scorer.forward_time_s(job.plan)
        return job.simulated()[0]

    def memory_gb(self) -> tuple[float, float]:
        """Returns predicted memory, allocated and reserved, of the fullest rank."""
        fullest = max(self.job().memory(), key=lambda account: account.total_bytes)
        return fullest.allocated_bytes / _GB, fullest.total_bytes / _GB


_PIPE = TrainPipeline
_LIGHT_SDD = Run("sparse_data_dist_light", _LIGHT, _PIPE.SPARSE_DIST)
_EVALUATED = Run("baseline (fused)", _EVALUATION, _PIPE.SPARSE_DIST, forward_only=True)
_EMO = Run("", _CACHING, _PIPE.SPARSE_DIST)


@dataclass(frozen=True)
class Ratio:
    """How much longer one run takes than another one.

    Attributes:
        group: Runs of one source and model.
        longer: One run.
        shorter: The other one.
        published: As published; None for what the file has.
        source: Where, if not in the file.
    """

    group: str
    longer: Run
    shorter: Run
    published: float | None = None
    source: str = ""


#: Ratios of runs of one model on the same machine, one group a source.
RATIOS = (
    Ratio("base : sparse-dist", Run("base_pipeline_light", _LIGHT, _PIPE.BASE), _LIGHT_SDD),
    Ratio(
        "base : sparse-dist, first run",
        Run("", _LIGHT, _PIPE.BASE),
        _LIGHT_SDD,
        2067.63 / 1870.40,
        "meta-pytorch/torchrec#3580, description",
    ),
    Ratio(
        "UVM : device",
        Run(
            "UVM (fused_uvm)",
            _EVALUATION,
            _PIPE.SPARSE_DIST,
            ComputeKernel.FUSED_UVM,
            forward_only=True,
        ),
        _EVALUATED,
    ),
    Ratio(
        "sparse-dist : prefetch",
        _EMO,
        Run("", _CACHING, _PIPE.PREFETCH),
        3692.84 / 3362.94,
        "meta-pytorch/torchrec#3899 and #4096 (a table of 10 M rows with UVM caching)",
    ),
)

#: Runs whose memory was published, and whether the ratio of reserved memory was fitted on them.
MEMORY = (
    (Run("base_pipeline", _BASE, _PIPE.BASE), True),
    (Run("sdd_pipeline", _BASE, _PIPE.SPARSE_DIST), True),
    (Run("base_pipeline_light", _LIGHT, _PIPE.BASE), False),
    (_LIGHT_SDD, False),
)


def compare_pipelines(path: Path, *, as_json: bool) -> None:
    """Predicts the ratios of a file of published runs, and their memory, and prints the errors.

    A figure that the file does not have is the problem of its line.

    Raises:
        DseError: The file cannot be read, or lacks a column.
    """
    published = read_table(path, COLUMNS, as_text=True).drop_duplicates("name").set_index("name")
    times, memories = [], []
    for ratio in RATIOS:
        truth, problem = ratio.published, ""
        if truth is None:
            try:
                truth = _number(published, ratio.longer, "gpu_runtime", "ms") / _number(
                    published, ratio.shorter, "gpu_runtime", "ms"
                )
            except DseError as error:
                truth, problem = math.nan, str(error)
        predicted = ratio.longer.time_s() / ratio.shorter.time_s()
        times.append(
            {
                "group": ratio.group,
                "published": truth,
                "predicted": predicted,
                "error": predicted / truth - 1,
                "source": ratio.source or path.name,
                "problem": problem,
            }
        )
    for run, fitted in MEMORY:
        for kind, predicted in zip(("alloc", "reserved"), run.memory_gb(), strict=True):
            truth, problem = math.nan, ""
            try:
                truth = _number(published, run, f"gpu_peak_{kind}", "GB")
            except DseError as error:
                problem = str(error)
            memories.append(
                {
                    "run": run.name,
                    "memory": "allocated" if kind == "alloc" else kind,
                    "published_gb": truth,
                    "predicted_gb": predicted,
                    "error": predicted / truth - 1,
                    "fitted": fitted and kind == "reserved",
                    "problem": problem,
                }
            )
    if as_json:
        print(json.dumps(without_nan({"ratios": times, "memory": memories}), indent=1))
        return
    print(f"{'ratio':32} {'published':>10} {'predicted':>10} {'error':>8}")
    for row in times:
        print(_line(row["group"], row["published"], row["predicted"], row["problem"], digits=3))
    print(
        f"\n{'memory of the fullest rank, GB':32} {'published':>10} {'predicted':>10} {'error':>8}"
    )
    for row in memories:
        name = f"{row['run']}, {row['memory']}{' (fitted)' if row['fitted'] else ''}"
        print(_line(name, row["published_gb"], row["predicted_gb"], row["problem"], digits=2))


def _line(name: str, published: float, predicted: float, problem: str, *, digits: int) -> str:
    if problem:
        return f"{name:32} {'–':>10} {predicted:10.{digits}f} {'–':>8}  {problem}"
    error = 100 * (predicted / published - 1)
    return f"{name:32} {published:10.{digits}f} {predicted:10.{digits}f} {error:+7.1f}%"


def _number(published: pd.DataFrame, run: Run, column: str, unit: str) -> float:
    """Returns a figure of a run, without its unit."""
    if run.name not in published.index:
        raise DseError(f"no run is called `{run.name}`")
    try:
        return stated_number(published.loc[run.name], column, unit=unit)
    except DseError as error:
        raise DseError(f"{run.name}: {error}") from None
