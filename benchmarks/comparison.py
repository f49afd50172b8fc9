"""dse beside TorchRec's planner, aiconfigurator, Calculon and vTrain: docs/comparison.md.

Usage: python benchmarks/comparison.py [--data DIR] [--write docs/comparison.md]

Plans are those of `benchmarks/sharding.py`, which runs TorchRec's planner; its figures are in
`benchmarks/measurements/sharding_methods.json`. Steps are predicted here, on the rows that the
other tools were validated on: two tables of `benchmarks/measurements`, and published ones of the
folder that DSE_MEASUREMENTS or `--data` names, without which their rows are left out. Figures of
other tools are their own, with their source.
"""

from __future__ import annotations

import argparse
from dataclasses import dataclass
from pathlib import Path
import statistics
from typing import TYPE_CHECKING

from accuracy import published, shipped_rows
from end_to_end_figures import OURS, file_figures
from folders import DATA, ROOT
from pages import percent
from sharding import read_rows
from sharding_page import TORCHREC, planning_time, ratios, shared
from step_figures import all_figures, read_all

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from sharding import Row
    from step_figures import StepFigures

MEASUREMENTS = ROOT / "benchmarks/measurements"

#: Our search that is compared.
_SEARCH = "ours, 1 s"

#: Whose plans are compared.
_PLANNER = "TorchRec's planner"

_HEAD = """# Comparison

What each tool is for, and how close its figures are.

* **`dse`**: plan, machines, batch and parallelism for training, with prices, intervals and bounds,
  before you rent anything.
* **[TorchRec's planner](https://github.com/meta-pytorch/torchrec)**: a sharding plan inside a
  training script. Use it if you have few tables, or for what [`dse` does not
  model](torchrec.md#what-is-refused): SSD and key-value kernels, uneven row-wise shards.
* **[aiconfigurator](https://github.com/ai-dynamo/aiconfigurator)**: serving an LLM, with
  disaggregation and launch files of serving engines. `dse` does not predict inference.
* **[Calculon](https://github.com/calculon-ai/calculon)**: transformers on hypothetical machines,
  for which you state the rates of each kind of kernel.
* **[vTrain](https://github.com/VIA-Research/vTrain)**: steps of GPT models, from kernels that it
  profiles on a GPU of the same kind, and the number of training tokens for a compute budget.

## Figures

The figures of `dse` come from our benchmarks, and so do those of TorchRec 1.8.0, whose plans were
made on the same machine and scored by the same model. Figures of the other tools are as they
publish them.

| | `dse` | others |
|---|---|---|
"""

_NOTES = """
* **Plans** are for tasks of 20, 50 and 100 of 856 production-like tables on 8 H100 or A100, with
  all of their memory or hardly more than the tables need
  ([performance.md](performance.md#methods)). Our performance model scores all plans, so this
  compares only the *search*; TorchRec's planner optimizes its own estimates, which assume other
  bandwidths. For tight tasks, it finds no plan or uses host memory. `dse` had one second.
* **Steps of Megatron-LM** are the eight of Korthikanti et al. 2022, Table 5 (22 billion to 1
  trillion parameters), on which Calculon is validated. Kernels of `dse` were fitted on steps that
  include the four of the two smaller models; on the four of the larger models alone, its error is
  {larger}. Calculon was not run on the other steps, because it needs the rates of their kernels.
* **Steps of Megatron-DeepSpeed** are those that vTrain publishes as ground truth. Those on one
  node were not measured but made by its own simulator
  ([transformers.md](transformers.md#small-models)), so both figures for them compare simulators;
  every third row was used to fit one constant of `dse`. Nothing was fitted to the rows on 64 to
  512 GPUs, which scatter as measurements do. vTrain's figures are for its own selection of the
  rows of these files.
* **DLRM**: {dlrm} published training steps; parameters of programs were fitted on some of them
  ([accuracy.md](accuracy.md), with groups left out in [method.md](method.md)).
* **Products** are for held-out layer shapes of aiconfigurator's own tables; its figure is from its
  design document, for one shape that was left out of its interpolation.

Sources: Calculon, Isaev et al., SC 2023, and its `llm-validation`; vTrain, Bang et al., MICRO
2024; aiconfigurator, `docs/design/hybrid_modeling_design.md` at 095f58a. NeuroShard, RecShard,
Lumos, Charon and Phantora are not compared, because their code or data is not public or needs a
GPU of the same kind.

Written by `python benchmarks/comparison.py --write docs/comparison.md`; do not edit.
"""


@dataclass(frozen=True, slots=True)
class Line:
    """A line of the table.

    Attributes:
        what: What is compared.
        ours: Figure of `dse`.
        theirs: Figure of another tool, with its name.
    """

    what: str
    ours: str
    theirs: str = "not published"

    def __str__(self) -> str:
        return f"| {self.what} | {self.ours} | {self.theirs} |\n"


def plan_lines(rows: Sequence[Row]) -> Iterator[Line]:
    """Yields what is said of plans and of planning."""
    for memory in ("loose", "tight"):
        cells = []
        for method in (_SEARCH, TORCHREC):
            found = ratios(rows, method, memory)
            of = [row for row in shared(rows) if (row.method, row.memory) == (method, memory)]
            text = f"none of {len(of)} on the devices"
            if found and max(found) < 2.0:
                above = [percent(end(found) - 1.0) for end in (statistics.median, max)]
                text = f"{above[0]}, at most {above[1]} ({len(found)} of {len(of)} tasks)"
            cells.append(text)
        words = "all of the memory" if memory == "loose" else "hardly more memory than tables"
        yield Line(f"plan above the lower bound, {words}", cells[0], f"{_PLANNER}: {cells[1]}")
    size = (100, 8)
    ours, theirs = (planning_time(rows, size, method) for method in (_SEARCH, TORCHREC))
    yield Line("time of planning 100 tables × 8 ranks (processor)", ours, f"{_PLANNER}: {theirs}")
    yield Line("bound on what a better plan could gain", "every plan has one", "none")


def step_lines(data: Path) -> Iterator[Line]:
    """Yields what is said of training steps, with the figures of others on the same rows."""
    (megatron,) = figures(MEASUREMENTS / "korthikanti_2022.csv")
    yield Line(
        "GPT under Megatron-LM, 8–512 A100, 8 steps: mean error, largest",
        f"{percent(megatron.mean)}, {percent(megatron.largest)}",
        "Calculon: 3.65 %, 8.87 % (same steps)",
    )
    alone = data / "published/steps/vtrain.csv"
    several = MEASUREMENTS / "vtrain_multi_node.csv"
    for words, file, theirs in (
        ("2–8 A100", alone, "8.37 %"),
        ("64–512 A100", several, "14.73 %"),
    ):
        if not file.exists():
            continue
        (row,) = figures(file)
        yield Line(
            f"GPT under Megatron-DeepSpeed, {words}, {row.cases} steps: mean error",
            f"{percent(row.mean)} (median {percent(row.median)})",
            f"vTrain: {theirs} (same source)",
        )
        yield Line(
            f"the same inside the 90 % interval, {words}",
            percent(row.coverage, 0),
            "no intervals",
        )


def dlrm_line(data: Path) -> tuple[Line, int] | None:
    """Returns what is said of steps of recommendation models and their number; None without."""
    if not (data / "published").is_dir():
        return None
    rows = [row for row in file_figures(published(data)) if row.model == OURS]
    texts = [f"{percent(row.median)} ({row.cases} steps)" for row in rows]
    line = Line("DLRM, published steps: median error", ", ".join(texts))
    return line, sum(row.cases for row in rows)


def product_line() -> Line:
    """Returns what is said of matrix products of unseen shapes."""
    found = {row.device: row for row in shipped_rows() if row.what == "gemm bf16"}
    row = next(row for device, row in found.items() if device.startswith("h100_sxm"))
    return Line(
        "BF16 products on H100, unseen layer shapes: mean error",
        f"{percent(row.mape)} ({row.points:,} points)",
        "aiconfigurator: 7–15 % (one shape left out)",
    )


def figures(file: Path) -> list[StepFigures]:
    """Returns the figures of each program of one table."""
    return all_figures(read_all([file]))


def larger_steps() -> str:
    """Returns the mean and largest error of the models on which nothing was fitted."""
    steps = read_all([MEASUREMENTS / "korthikanti_2022.csv"])
    (row,) = all_figures([one for one in steps if one.step.case.startswith(("530B", "1T"))])
    return f"{percent(row.mean)} on average, {percent(row.largest)} at most"


def page(data: Path) -> str:
    """Returns the text of docs/comparison.md."""
    rows = read_rows([MEASUREMENTS / "sharding_methods.json"])
    lines = [*plan_lines(rows), *step_lines(data)]
    dlrm = dlrm_line(data)
    if dlrm is not None:
        lines.append(dlrm[0])
    lines.append(product_line())
    notes = _NOTES.format(larger=larger_steps(), dlrm=dlrm[1] if dlrm else "no")
    return _HEAD + "".join(map(str, lines)) + notes


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", type=Path, default=DATA)
    parser.add_argument("--write", type=Path, help="file to write, docs/comparison.md")
    arguments = parser.parse_args()
    text = page(arguments.data)
    print(text, end="")
    if arguments.write:
        arguments.write.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
