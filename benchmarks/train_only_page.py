"""The part of docs/accuracy.md on MLPerf submissions with evaluation apart."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from train_only_cases import group_figures, train_only_marks

if TYPE_CHECKING:
    from collections.abc import Sequence

    from train_only_cases import TrainOnlyCase

_HEAD = """
## MLPerf submissions, training and evaluation apart

`python benchmarks/accuracy.py --train-only TABLE` predicts the milliseconds of an iteration
without evaluation, and an evaluation for itself. {count} submissions: v1.0, v1.1, v3.0 and v3.1
as collected in `published/mlperf_dlrm_train_only.csv`, and one run each of fifteen more
(`benchmarks/measurements/mlperf_train_only_later.csv`). {doubtful} whose collectors doubt the
figures count apart, {problems} cannot be predicted. Fitted are two values of `hugectr`, on
eight A100 or H100 of one node in v3.0 and v3.1, the host time of a batch that is evaluated, on
the evaluations of v1.1 on one node, and what eight cards leave of PCIe, on those of v3.1 (fitted
on either machine, the other is 8 % off); everything else is held out. The rounds v2.0,
v2.1 and v4.0 were looked at while the form of the exchanges was chosen, v4.1 and v5.0 while plans
were, all of them when keys became an exchange, and none of them was fitted.

Batches of evaluations are those of the configurations: 262,144 samples of DLRM-DCNv2, or 16,384 a
rank if that is more; 1.8 million of the one-hot model, 55,296 on four devices (Dell's of v1.1
442,368), 716,800 on 64 devices of v1.0.

Submissions of DLRM-DCNv2 have the plans that HugeCTR's planner makes for them: its rule is
public (NVIDIA-Merlin/HugeCTR, `samples/dlrm/sharding`), and the configurations give its
arguments. Small tables are copied to all ranks from v3.1 on; the table with most lookups has its
rows on some ranks, or on all ranks of some nodes. Dell's four H200 NVL count as H200 SXM. The
configuration of 64 GB200 is not stored and taken for that of 64 H100. Submissions of the one-hot
model have hot rows on several nodes only, as their configurations say. Bias is the median of
log(predicted/measured).

"""

_CAUSES = """
With the plans of the solver in place of the submissions' own, 64 H100 of v3.0 were 18 % too
fast, 128 H100 of v4.1 8 % and 64 GB200 16 % too slow, and pairs of nodes with four H100 14 % too
fast: v3.0 copies no table, and rows on some ranks are nothing that the solver tries.

What is missed. Rounds of one machine differ by software that the programs do not tell apart: 64
A100 took 55 % longer in v1.0 than in v1.1, 8 × H100 8 % longer in v3.0 than in v4.0, of which
copies of tables explain 1 %. One submission on 4 × A100 takes three times as long as another on
the same devices, and three of v1.1 on 8 × A100 a tenth to a third longer than four others. Four
H100 are taken to be joined by a switch; those machines have direct links, which are as fast in
sum, and one of them takes a third longer than predicted. Four H100 PCIe take 3.5 times as long
as predicted, and 4.5 times as long as eight of them on another machine: about as slow as the table
of NCCL on four and eight L40S, where peers cannot reach each other and messages pass through
host memory. Nothing that submissions state tells such a machine. The aim for one node is met
because both machines with eight cards over PCIe count as fitted: with each predicted from the
other the median of those held out is 5.9 %. Times of evaluations
depend on how fast a machine reads 81 GB, which submissions do not state: on eight H100 they are
1.7 to 3.4 s, and those of the fastest machines, B200 among them, are predicted a quarter to two
fifths too slow. Keys count as eight bytes and are exchanged in two steps like vectors; HugeCTR
sends four, straight to their rank. With both, iterations on several nodes of v3.0 to v5.0 would
be 5 % off in the median instead of 3 %. HugeCTR prepares keys
of the next batch on a stream of its own; the model counts that work with the updates, and not in
gaps of exchanges.
"""


def train_only_section(cases: Sequence[TrainOnlyCase]) -> str:
    """Returns the section in Markdown; nothing without cases.

    Args:
        cases: All submissions with their predictions.
    """
    if not cases:
        return ""
    lines = [
        _HEAD.format(
            count=len(cases),
            doubtful=sum(bool(case.note) for case in cases),
            problems=sum(bool(case.problem) for case in cases),
        ),
        "| submissions | n | median | MAPE | bias | inside 90 % | evaluation: median | bias |\n",
        "|---|---:|---:|---:|---:|---:|---:|---:|\n",
    ]
    for row in group_figures(cases):
        errors = " | ".join(f"{100 * value:.1f} %" for value in (row.median, row.mape))
        lines.append(
            f"| {row.group} | {row.cases} | {errors} | {row.bias:+.2f} | {100 * row.inside:.0f} % "
            f"| {100 * row.evaluation_median:.0f} % | {row.evaluation_bias:+.2f} |\n"
        )
    lines.append("\n| mark | reached | |\n|---|---:|---|\n")
    for mark in train_only_marks(cases):
        reached = "–" if math.isnan(mark.reached) else f"{100 * mark.reached:.1f} %"
        met = "met" if mark.met else "**missed**"
        lines.append(f"| {mark.aim} | {reached} (≤ {100 * mark.limit:.0f} %) | {met} |\n")
    large = [case for case in cases if case.gpus >= 64 and not case.problem]
    lines.append("\n| 64 devices and more | measured, ms | predicted, ms | error |\n")
    lines.append("|---|---:|---:|---:|\n")
    lines += [
        f"| {case.round}, {case.gpus} × {case.platform} | {1e3 * case.measured_s:.3f} "
        f"| {1e3 * case.predicted_s:.3f} | {100 * case.error:+.1f} % |\n"
        for case in large
    ]
    return "".join([*lines, _CAUSES])
