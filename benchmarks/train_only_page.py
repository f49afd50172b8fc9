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

`python benchmarks/accuracy.py --train-only TABLE` predicts the time of an iteration without
evaluation, and that of an evaluation. {count} submissions: v1.0, v1.1, v3.0 and v3.1 as collected
in `published/mlperf_dlrm_train_only.csv`, and one run each of nineteen more
(`benchmarks/measurements/mlperf_train_only_later.csv`). {doubtful}, whose collectors doubt the
figures, are counted separately, and {problems} cannot be predicted. These values were fitted: two
of `hugectr`, on eight A100 or H100 of one node in v3.0 and v3.1; the host time per batch of an
evaluation, on the evaluations of v1.1 on one node; and the share of PCIe that eight cards get, on
those of v3.1 (fitted on either machine, the other is 8 % off). Everything else is held out. The
rounds v2.0, v2.1 and v4.0 were looked at while the form of the exchanges was chosen, v4.1 and v5.0
while plans were, and all of them when keys became an exchange, but none of them was fitted; v5.1
was not looked at before it was predicted. If both machines with eight cards over PCIe are
predicted from each other, the median on one node is 3.0 %.

HugeCTR reads samples from the machine's drives while it trains, which limits the iteration if
drives are slower than devices. Submissions do not state how fast their drives are, but logs show
it (`benchmarks/published_reading.py`, `benchmarks/measurements/mlperf_reading.csv`): up to the
first evaluation, the one-hot model reads the test set in addition to what it trains on, and
evaluations of DLRM-DCNv2 read it each time. Machines of one node whose logs are stored are given
that rate (`node.storage` of a platform). It comes from the same runs, but not from any time that
is predicted: iterations are those of later stretches, and evaluations are predicted without it. If
a machine waited for something else, the rate is too low, but that hardly ever matters: of the
{bound} below, it does so only for the four H100 PCIe, whose evaluations wait for exchanges, like
their iterations.

{reading}
Batches of evaluations are those of the configurations: for DLRM-DCNv2, 262,144 samples, or 16,384
per rank if that is more; for the one-hot model, 1.8 million, 55,296 on four devices (442,368 for
Dell in v1.1), and 716,800 on 64 devices in v1.0.

Submissions of DLRM-DCNv2 are predicted with the plans of HugeCTR's planner: its rule is public
(NVIDIA-Merlin/HugeCTR, `samples/dlrm/sharding`), and the configurations contain its arguments.
Small tables are copied to all ranks from v3.1 on; the table with most lookups has its rows on some
ranks, or on all ranks of some nodes. Dell's four H200 NVL count as H200 SXM. The configuration of
64 GB200 is not stored and is assumed to be that of 64 H100. Submissions of the one-hot model have
hot rows on several nodes only, as their configurations say. Bias is the median of
log(predicted/measured).

"""

_CAUSES = """
With the solver's plans instead of the submissions' own, predictions would be 18 % too fast for 64
H100 in v3.0, 8 % too slow for 128 H100 in v4.1, 16 % too slow for 64 GB200, and 14 % too fast for
pairs of nodes with four H100: v3.0 copies no table, and the solver never puts rows on only some
ranks.

What is missed:

* In v1.0, HugeCTR found keys in their own iteration and exchanged gradients of rows behind the
  all-reduce (release notes of 3.3, and the sources of its hybrid embedding). `hugectr_3_1` does
  both, without any fit, and one node of v1.0 is then predicted well. But 64 A100 still take 0.16
  ms and 112 A100 0.22 ms longer than predicted, while those of v1.1 and v2.0 do not. The gap grows
  although the samples per rank fall by two fifths, so it is not work on a rank's own samples. The
  notes also mention gaps between captured graphs, which 3.3 closes, gradients of weights beside
  those of inputs, and conversions of weights apart from their update; they do not say how long
  these take, so none is in the model. A tenth of the stretches of the 64 A100 took 0.82 ms or less
  per iteration (0.81 ms is predicted), and half of them 0.97 ms or less; what differs between them
  is not stated. It is not storage: the first stretch reads 15 GB/s on each node, and later ones
  need 12.
* 8 × H100 took 8 % longer in v3.0 than in v4.0; copies of tables explain 1 % of that. Azure's
  virtual machines take a tenth longer than others in v1.1 and v2.0, and eight H100 in v2.1, a
  preview, 15 % longer than predicted.
* Four H100 are assumed to be joined by a switch; those machines have direct links, which together
  are as fast.
* Without their rate of storage, four H100 PCIe take 3.5 times as long as predicted, and 4.5 times
  as long as eight of them on another machine. That is about as slow as in the NCCL tables of four
  and eight L40S, where devices cannot reach each other and messages go through host memory.
  Submissions do not say whether a machine is like that.
* Times of evaluations depend on how fast a machine reads 81 GB, which submissions do not state. On
  eight H100 they are 1.7 to 3.4 s, and those of the fastest machines, B200 among them, are
  predicted a quarter to two fifths too slow.
* Keys count as eight bytes and are exchanged in two steps like vectors; HugeCTR sends four bytes,
  straight to their rank. With both of these, iterations on several nodes in v3.0 to v5.0 would be
  5 % off in the median instead of 3 %. HugeCTR prepares the keys of the next batch on a separate
  stream; the model counts that work with the updates, and not in gaps of exchanges.
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
