"""The part of docs/accuracy.md on MLPerf submissions with evaluation apart."""

from __future__ import annotations

from typing import TYPE_CHECKING

from marks import mark_table
from pages import number, percent, table, text
from train_only_cases import group_figures, train_only_marks

if TYPE_CHECKING:
    from collections.abc import Sequence

    from train_only_cases import TrainOnlyCase

_HEAD = """
## MLPerf submissions, training and evaluation apart

`python benchmarks/accuracy.py --train-only TABLE` predicts the milliseconds of an iteration
without evaluation, and an evaluation for itself. {count} submissions: v1.0, v1.1, v3.0 and v3.1
as collected in `published/mlperf_dlrm_train_only.csv`, and one run each of nineteen more
(`benchmarks/measurements/mlperf_train_only_later.csv`). {doubtful} whose collectors doubt the
figures count apart, {problems} cannot be predicted. Fitted are two values of `hugectr`, on
eight A100 or H100 of one node in v3.0 and v3.1, the host time of a batch that is evaluated, on
the evaluations of v1.1 on one node, and what eight cards leave of PCIe, on those of v3.1 (fitted
on either machine, the other is 8 % off); everything else is held out. The rounds v2.0,
v2.1 and v4.0 were looked at while the form of the exchanges was chosen, v4.1 and v5.0 while plans
were, all of them when keys became an exchange, and none of them was fitted; v5.1 was not looked at
before it was predicted. With both machines of
eight cards over PCIe predicted from each other, as held out, the median on one node is 3.0 %.

HugeCTR reads samples from the machine's drives while it trains, which decides where drives are
slower than devices. Submissions do not state how fast theirs are, but logs tell
(`benchmarks/published_reading.py`, `benchmarks/measurements/mlperf_reading.csv`): up to the first
evaluation the one-hot model reads the test set besides what it trains on, and evaluations of
DLRM-DCNv2 read it each time. Machines of one node whose logs are stored have that rate, as a
platform states it (`node.storage`). It comes from the same runs, but from no time that is
predicted: iterations are those of later stretches, and evaluations are predicted without it.
Where something else was waited for, the rate is too low, and hardly ever decides: of the {bound}
below, wrongly for the four H100 PCIe, whose evaluations wait for exchanges like their iterations.

{reading}
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

What is missed. HugeCTR of v1.0 found keys in their own iteration and exchanged gradients of rows
behind the all-reduce (release notes of 3.3, and the sources of its hybrid embedding); both are in
`hugectr_3_1`, nothing of them is fitted, and one node of v1.0 is met with them. 64 A100 then still
take 0.16 ms and 112 A100 0.22 ms longer than predicted, while v1.1 and v2.0 do not. The gap grows
while the samples of a rank fall by two fifths, so it is no work on a rank's own samples. The notes
also name gaps between captured graphs, which 3.3 closes, gradients of weights beside those of
inputs, and conversions of weights apart from their update; how long each takes is not stated, so
none is in the model. A tenth of the stretches of the 64 A100 took 0.82 ms an iteration or less
(0.81 ms is predicted), half of them 0.97 ms, and what differs between them is not stated. It is
not storage: the first stretch reads 15 GB/s on each node, and later ones need 12. 8 × H100 took 8
% longer in v3.0 than in v4.0, of which copies of tables explain 1 %. Azure's virtual machines take
a tenth longer than others in v1.1 and v2.0, and eight H100 of v2.1, a preview, 15 % longer than
predicted. Four H100 are taken to be joined by a switch; those machines have direct links, which
are as fast in sum. Four H100 PCIe take 3.5 times as long as predicted without their rate of
storage, and 4.5 times as long as eight of them on another machine: about as slow as the table of
NCCL on four and eight L40S, where peers cannot reach each other and messages pass through host
memory. Nothing that submissions state tells such a machine. Times of evaluations depend on how
fast a machine reads 81 GB, which submissions do not state: on eight H100 they are 1.7 to 3.4 s,
and those of the fastest machines, B200 among them, are predicted a quarter to two fifths too slow.
Keys count as eight bytes and are exchanged in two steps like vectors; HugeCTR sends four, straight
to their rank. With both, iterations on several nodes of v3.0 to v5.0 would be 5 % off in the
median instead of 3 %. HugeCTR prepares keys of the next batch on a stream of its own; the model
counts that work with the updates, and not in gaps of exchanges.
"""


def _times(case: TrainOnlyCase) -> tuple[str, str, str]:
    """Returns the cells of a case that compare its times."""
    times = (f"{1e3 * time_s:.3f}" for time_s in (case.measured_s, case.predicted_s))
    return (*times, f"{100 * case.error:+.1f} %")


def _reading(cases: Sequence[TrainOnlyCase]) -> str:
    """Returns the table of those that storage decides."""
    heads = ("bound by storage", "GB/s", "measured, ms", "predicted, ms", "error", "without")
    cells = (
        (
            f"{case.case}, {case.gpus} × {case.platform}",
            f"{case.read_rate_bytes_per_s / 1e9:.1f}",
            *_times(case),
            f"{100 * (case.unlimited_s / case.measured_s - 1):+.1f} %",
        )
        for case in cases
    )
    return text(table(heads, "lr", cells))


def train_only_section(cases: Sequence[TrainOnlyCase]) -> str:
    """Returns the section in Markdown; nothing without cases.

    Args:
        cases: All submissions with their predictions.
    """
    if not cases:
        return ""
    bound = [case for case in cases if case.unlimited_s > 0]
    parts = [
        _HEAD.format(
            count=len(cases),
            doubtful=sum(bool(case.note) for case in cases),
            problems=sum(bool(case.problem) for case in cases),
            bound=len(bound),
            reading=_reading(bound),
        ),
        _groups(cases),
    ]
    parts += ["\n", mark_table(train_only_marks(cases))]
    large = (
        (f"{case.round}, {case.gpus} × {case.platform}", *_times(case))
        for case in cases
        if case.gpus >= 64 and not case.problem
    )
    heads = ("64 devices and more", "measured, ms", "predicted, ms", "error")
    return "".join([*parts, "\n", text(table(heads, "lr", large)), _CAUSES])


def _groups(cases: Sequence[TrainOnlyCase]) -> str:
    heads = ("submissions", "n", "median", "MAPE", "bias", "inside 90 %", "evaluation: median")
    cells = (
        (
            *(row.group, row.cases, percent(row.median), percent(row.mape)),
            *(number(row.bias, sign=True), percent(row.inside, 0)),
            *(percent(row.evaluation_median, 0), number(row.evaluation_bias, sign=True)),
        )
        for row in group_figures(cases)
    )
    return text(table((*heads, "bias"), "lr", cells))
