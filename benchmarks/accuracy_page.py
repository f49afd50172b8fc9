"""docs/accuracy.md: the errors of the models, what they are taken on, and what is missed."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from device_models import AccuracyRow

_HEAD = """\
# Accuracy

Written by `python benchmarks/accuracy.py --write docs/accuracy.md`; do not edit.

Errors are relative: |predicted / measured − 1|. GMAE is their geometric mean, MAPE their mean, p90
their 90th percentile. Every figure is taken on points that the fit did not see.

## Device models against measurements

Measurements: GEMM tables and nccl-tests results of the aiconfigurator project (NVIDIA,
Apache-2.0). GEMM in bfloat16: a quarter of the (n, k) pairs is held out, all m of it. Collectives
(all-reduce, all-gather, reduce-scatter, all-to-all on 2, 4 and 8 GPUs, 512 B to 512 MiB): the
odd-indexed sizes are held out. The simpler models see the same points.

"""

_NOISE = """
What is left of the error is mostly noise of the measurements and jumps between kernels or
protocols. Collectives of the same size but different data type, which move the same bytes, differ
by 2.7 % (A100), 4.7 % (H100) and 4.9 % (H200) on average; single points of the tables are twice
their neighbours. GEMM times of neighbouring m differ by 4–7 % from a smooth curve; the H200 table
is the noisiest of the three.
"""

_SHIPPED = """
## Models that ship fitted

Errors as the files in `platforms/calibrations/` carry them, by the rule that each file states.

"""


def accuracy_page(fresh: Sequence[AccuracyRow], shipped: Sequence[AccuracyRow]) -> str:
    """Returns the page.

    Args:
        fresh: Models fitted and checked in this run.
        shipped: Models that ship fitted.
    """
    parts = [_HEAD]
    if fresh:
        parts += [_table(fresh), _NOISE]
    parts += [_SHIPPED, _table(shipped)]
    return "".join(parts)


def _table(rows: Sequence[AccuracyRow]) -> str:
    lines = [
        "| what | device | model | points | GMAE | MAPE | p90 |",
        "|---|---|---|---:|---:|---:|---:|",
    ]
    for row in rows:
        name = f"**{row.model}**" if row.model == "dse" else row.model
        errors = " | ".join(f"{100 * value:.1f} %" for value in (row.gmae, row.mape, row.p90))
        lines.append(f"| {row.what} | {row.device} | {name} | {row.points:,} | {errors} |")
    return "\n".join(lines) + "\n"
