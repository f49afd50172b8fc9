"""docs/accuracy.md: the errors of the models, what they are taken on, and what is missed."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pages import number, percent, table, text

if TYPE_CHECKING:
    from collections.abc import Sequence

    from collective_models import TransferRow
    from device_models import AccuracyRow
    from kernel_transfers import KernelTransferRow

_HEAD = """\
# Accuracy

* Steps of recommendation models:
  [published ones](#training-steps-of-recommendation-models-against-published-ones),
  [MLPerf](#mlperf-submissions-training-and-evaluation-apart),
  [a generative recommender](#a-generative-recommender-part-by-part).
* Steps of transformers, by training program:
  [published ones](#training-steps-of-transformers-against-published-ones), with the causes of
  errors in [transformers.md](transformers.md#accuracy).
* Where a machine, a model or a number of ranks is new: [groups left out](#groups-left-out), and
  [recommendation models](method.md#training-programs-dseworkloaddlrmprogram_programspy).
* Kernels and collectives: [on measured devices](#device-models-against-measurements),
  [between nodes](#collectives-between-nodes-against-measurements),
  [as shipped](#models-that-ship-fitted); on devices that were not measured,
  [collectives](#collectives-of-systems-that-are-left-out) and
  [kernels](#kernels-of-devices-that-are-left-out).
* What is known to be wrong: [the ten largest misses](#the-ten-largest-misses),
  [steps of transformers](#what-is-missed), [everything else](#what-is-missed-or-not-measured).
* Whether intervals and probabilities hold:
  [decisions.md](decisions.md#how-well-probabilities-hold).
* Whether the order of plans holds on a real machine:
  [validate.md](validate.md#how-good-the-choice-is).

Written by `python benchmarks/accuracy.py --write docs/accuracy.md`; do not edit.

Errors are relative: |predicted / measured − 1|. GMAE is their geometric mean, MAPE their mean, p90
their 90th percentile. Every figure of a device model is for points that the fit did not see. The
form of a model, unlike its parameters, was chosen by looking at these tables and splits: features,
tree depth and reference of GEMM, the form of the curves over sizes and how they continue to 8
GPUs. The formulas' constants come from the same tables. As a check, rows of another split and of
even sizes show the same models on points that played no part in those choices.
"""

_DEVICES = """\
## Device models against measurements

Measurements: GEMM tables and nccl-tests results of the aiconfigurator project (NVIDIA, Apache-2.0,
github.com/ai-dynamo/aiconfigurator), as `gemm/*.parquet` and `nccl/*.parquet` in one folder. GEMM
in bfloat16: a quarter of the (n, k) pairs is held out, with all values of m; attention and GEMM in
other precisions are under the models that ship fitted. Collectives (all-reduce, all-gather,
reduce-scatter, all-to-all on 2, 4 and 8 GPUs, 512 B to 512 MiB, each version of NCCL; reductions
of floating-point values): the odd-indexed sizes are held out. The simpler models see the same
points. All-reduces on 3, 5, 6 and 7 GPUs: vTrain (VIA-Research, MIT),
`nccl/vtrain_all_reduce.parquet`. CPU: one session of `dse calibrate` on two ranks of an AMD EPYC
server (`benchmarks/measurements/`), fitted on three quarters of its points and checked on the
rest, which were chosen by a separate design. `python benchmarks/accuracy.py --collectives TABLE`
compares the shipped platforms with any table of measured collectives, `--gemm TABLE`,
`--attention TABLE` and `--embedding TABLE` with tables of products, causal attention and FBGEMM's
embeddings.

"""

_TRANSFER = """
### Collectives of systems that are left out

A platform without measured collectives gets the curves of the system whose link has the same kind
and the nearest rate, moved by the ratios of rate and latency, with a spread of 0.08 within a
generation of the link and 0.20 across. The table predicts each system in this way and compares it
with its newest version of NCCL, for all sizes and numbers of ranks: first from the nearest other
system, then from the nearest one whose link has another rate. The latencies of the links, unlike
their rates, are not in datasheets; they come from the smallest messages of the same tables.

"""

_KERNELS = """
### Kernels of devices that are left out

A platform without tables of its own gets the calibration of another device, applied to its own
figures, with an added spread of 0.04 for the same chip on another board, 0.12 within an
architecture, 0.20 across architectures, and 0.30 in FP8, where libraries differ most. Bias is the
median of log(predicted/measured). A transferred calibration is only as good as the libraries are
similar: between two engines on nearly the same chip (the FP8 rows of H200: vLLM's kernels for
SGLang's), errors are larger, and fewer points are in the interval, than for one library from
Hopper to Blackwell. From Hopper to Blackwell, attention has an error of 7 % because its terms are
physical: exponentials take as long on a unit of either, while products take half.

"""

_NOISE = """
What is left of the error is mostly noise of the measurements and jumps between kernels or
protocols. `measured again` predicts a time by the median of the other measurements of the same
bytes, in another data type or in another run; single points of the tables are twice their
neighbours. GEMM times are 2–4 % (median) and 5–7 % (mean) off a straight line between those of the
neighbouring values of m; the H200 table is the noisiest of the three.

Small products on A100 are not monotone: in 1–3 % of the measured pairs, the library takes less
time for twice the work, sometimes half. The model follows it there. Above 20 µs, twice the work is
never more than a fifth faster.

## What is missed, or not measured

* The aims are 2.7 % and 4.5 % (geometric mean, mean) for GEMM, where H200 misses the mean by 0.4
  to 0.7 points, and a mean of 5 % for collectives on left-out sizes of each system and version.
  NCCL 2.23 on H100 misses it on the odd sizes (5.4 %, the even ones 4.5 %). Below 512 KiB these
  times scatter: another measurement of the same bytes predicts the odd sizes no better (5.7 %).
  Just two of the 135 times, 13.7 and 21.3 µs where their repeats take 7.9 and 11.5 µs, account for
  0.6 points of the 5.4.
* All-reduces of another laboratory on eight H100 (microsoft/vidur, kernels in traces, no version
  of NCCL): `--collectives benchmarks/measurements/vidur_h100_all_reduce.csv --platform h100_sxm`
  has an error of 14.7 % on average and 4.2 % in the median for 41 sizes from 64 KiB to 64 MiB, and
  3.9 % for those from 1 MiB on. Below 512 KiB, three timings of one size differ by up to a factor
  of two, because a kernel in a trace also waits for ranks that start it later; the shortest
  timings of most sizes, 19 to 20 µs, are as predicted. From there to 1 MiB they are 31 to 34 µs,
  where 20 to 25 µs are predicted: that library leaves LL at half the size at which 2.27.3 and
  2.29.2 do, which agree within 3 %. Larger messages are sent in pieces of 2 or 4 MiB, and each
  further piece adds up to a tenth in one step, which curves through powers of two do not show.
* Sums of integers, which switches do not add: on 8 H100, H200 and B200 they take up to 31 % longer
  than predicted.
* L40S beyond two GPUs: the table looks like a broken peer-to-peer path and is not fitted.
* Under Megatron-Bridge on Blackwell, dense models on GB300 are predicted 7 % too slow in the
  median, and most mixtures of experts 15 to 20 % too fast
  ([transformers.md](transformers.md#earlier-tables-of-megatron-bridge)).
* A40: a step on eight of them is predicted 22 % too fast; the rates of its cache and links are
  assumptions.
* Concatenation and single gloo collectives on the CPU stay above 10 %.
* Embedding kernels on GPUs: FBGEMM's are fitted on an H100 alone (`--embedding`,
  [method](method.md)); on other GPUs they follow bandwidth, cache and host link. Those of other
  programs use constants from the literature with a spread of 0.25, and the fitted values of their
  programs.
* FP32 and batched products, streams, host copies and host overheads on GPUs: constants from the
  literature. Of these, only large FP32 products are checked, on five sizes of a few devices
  ([method](method.md)).
* V100, L40S, L4, A10, A10G and RTX PRO 6000 use the ratios of the nearest measured architecture;
  B300, GB300, H100 PCIe, H100 NVL, H20, H800 and A800 use those of a device of their own
  architecture. The section on devices that are left out has the errors of such pairs. Published
  steps on A800, H800, MI325X and MI355X are compared in
  [transformers.md](transformers.md#other-devices).
* Products in FP8 and NVFP4 are those of inference engines: their times contain the conversion of
  the left operand. TensorRT-LLM's FP8 with block scales on H100 is fitted on 2,000 points; vLLM's,
  with 29,519 points, is the platform's first.
* Attention was measured forward only, with keys and values written to a cache, heads of 64 and 128
  and 1,024 positions or more. The backward pass follows by published rates. A head width that is
  left out altogether has an error of about 20 %, because products and exponentials cannot be told
  apart with one width.
"""

_NETWORKS = """
## Collectives between nodes against measurements

Measurements on p5.48xlarge (EFA, 2–32 nodes) and a3-megagpu-8g (GPUDirect-TCPXO, two nodes) are in
`benchmarks/measurements/`, with their sources. `dse` is fitted by `dse fit network` without the
number of nodes that is predicted (with two nodes: without the odd-indexed sizes), and
`sizes left out` without the message size; `kind of network` is what a network of that kind gets
without measurements. The form of the model was chosen by looking at these tables. Two more sources
lack something that a fit needs: shares of peak bandwidth on 2–128 nodes of a cloud (aliyun/SimAI,
taken as rings over eight cards of 400 Gbit/s; the latencies of the kind `roce` come from it), and
median bandwidths over 2–64 p5 nodes without their message size (ultrascale playbook). For the
latter, the size that fits best is taken, and the model, fitted on other operations, is the one
that ships. On 4 nodes, all-reduce in that source is less than half of what the first source
measures at any size above 64 MiB, so no size fits both.

"""

_SHIPPED = """
## Models that ship fitted

These errors are stored in the files in `platforms/calibrations/`, with the rule by which points
were held out.

"""


def accuracy_page(
    fresh: Sequence[AccuracyRow],
    lent: Sequence[TransferRow],
    lent_kernels: Sequence[KernelTransferRow],
    networks: Sequence[AccuracyRow],
    shipped: Sequence[AccuracyRow],
    end_to_end: str,
) -> str:
    """Returns the page.

    Args:
        fresh: Models fitted and checked in this run.
        lent: Systems predicted from others.
        lent_kernels: Tables predicted by calibrations of other devices.
        networks: Networks fitted and checked in this run.
        shipped: Models that ship fitted.
        end_to_end: The section on whole training steps.
    """
    parts = [_HEAD, end_to_end, "\n", _DEVICES]
    if fresh:
        parts += [_table(fresh), _TRANSFER, _transfer_table(lent)]
        parts += [_KERNELS, _kernel_transfer_table(lent_kernels), _NOISE]
    parts += [_NETWORKS, _table(networks)]
    parts += [_SHIPPED, _table(shipped)]
    return "".join(parts)


def _transfer_table(rows: Sequence[TransferRow]) -> str:
    heads = ("system left out", "predicted from", "points", "MAPE", "median", "inside 90 %")
    cells = (
        (
            f"{row.system}, NCCL {row.nccl}",
            row.source,
            f"{row.points:,}",
            *(percent(row.mape), percent(row.median), percent(row.inside_90, 0)),
        )
        for row in rows
    )
    return text(table(heads, "llr", cells))


def _kernel_transfer_table(rows: Sequence[KernelTransferRow]) -> str:
    heads = ("device left out", "table", "predicted by", "points")
    cells = (
        (
            *(row.target, row.what, row.file, f"{row.points:,}"),
            *(percent(row.mape), percent(row.median_abs_error)),
            *(number(row.bias, sign=True), percent(row.coverage, 0)),
        )
        for row in rows
    )
    return text(table((*heads, "MAPE", "median", "bias", "inside 90 %"), "lllr", cells))


def _table(rows: Sequence[AccuracyRow]) -> str:
    cells = (
        (
            *(row.what, row.device, f"**{row.model}**" if row.model == "dse" else row.model),
            *(f"{row.points:,}", percent(row.gmae), percent(row.mape), percent(row.p90)),
        )
        for row in rows
    )
    heads = ("what", "device", "model", "points", "GMAE", "MAPE", "p90")
    return text(table(heads, "lllr", cells))
