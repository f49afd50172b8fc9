"""The part of docs/accuracy.md on steps of recommendation models: figures, parameters, misses."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from end_to_end_figures import OURS, family_figures, file_figures, judged, worst
from end_to_end_plot import scatter
from marks import mark_table
from pages import number, percent, table, text

from dse.workload.dlrm import DLRM_PROGRAMS

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from end_to_end_cases import EndToEndCase
    from end_to_end_figures import Figures

#: The picture of all cases.
PICTURE = "accuracy_dlrm.svg"

#: Why cases of a kind are missed: words in the name of a case, and what is known about it. The
#: first that fits is taken.
CAUSES = (
    (
        "v2.0 Dell XE8545x4A100",
        "its log looks like drives of 3.3 GB/s, but reads too little besides training to tell",
    ),
    (
        "SYS-421GU-TNXR",
        "its evaluations wait for its drives, whose rate was taken from them for training only",
    ),
    (
        "AS-4124GO-NART_pytorch",
        "counts as DeepLearningExamples, than which MLPerf's own PyTorch code is faster",
    ),
)

_HEAD = """
## Training steps of recommendation models against published ones

`python benchmarks/accuracy.py --end-to-end` predicts {count} published steps from
DeepLearningExamples, MLPerf Training, TorchRec, distributed-embeddings and HiPC'22. Rules
(`benchmarks/published_cases.py`) derive the configuration of a case only from what its source
states about hardware and software. MLPerf's figures include the start of a run and evaluations,
whose batches are those of the submissions' configurations (`benchmarks/published_evaluations.py`),
and are predicted with both. If logs of a machine's runs were looked up, the machine reads samples
as fast as they show (`benchmarks/published_reading.py`); without that, the 76 throughputs would
have a median error of 4.8 % and a τ of 0.88. **These figures are for the same cases on which the
parameters below were fitted.** Errors with whole groups left out of the fits are in
[method.md](method.md). The roofline of the same steps has kernels at peak arithmetic or bandwidth,
one after the other, with line rates and no host.

Bias is the median of log(predicted/measured) of the step time. Pairs is the share of pairs within
a family that differ by more than 5 % and are in the right order. For comparison, 24 submissions of
one workload on 8 × H100 spread by 4.0 %.

"""

_PARAMETERS = """
### Free parameters

All were fitted on whole programs at once, never on a case: {count} values of training programs
(`dse list programs --json`).

| program | value | fitted on |
|---|---|---|
"""


def end_to_end_section(cases: Sequence[EndToEndCase]) -> str:
    """Returns the section in Markdown.

    Args:
        cases: All published cases with their predictions.
    """
    families = family_figures(cases)
    parts = [_HEAD.format(count=len(cases)), _figures_table([*families, *file_figures(cases)])]
    parts += ["\n", mark_table(judged(families))]
    words = "recommendation models, samples per second"
    parts.append(f"\n![Predicted against measured: {words}](images/{PICTURE})\n")
    parts += [_parameters(), _misses(cases)]
    return "".join(parts)


def write_pictures(cases: Sequence[EndToEndCase], folder: Path) -> None:
    """Writes the picture that the section shows.

    Args:
        cases: All published cases with their predictions.
        folder: Where they go; made if it is missing.
    """
    folder.mkdir(parents=True, exist_ok=True)
    chosen = [case for case in cases if math.isfinite(case.predicted)]
    (folder / PICTURE).write_text(scatter(chosen), encoding="utf-8")


def cause_of(case: EndToEndCase) -> str:
    """Returns what is known of why a case is missed."""
    known = (words for name, words in CAUSES if name in case.case)
    return case.note or next(known, "not known")


def _figures_table(rows: Sequence[Figures]) -> str:
    heads = ("cases", "model", "n", "median", "mean", "max", "geomean", "bias", "τ", "pairs")
    cells = (
        (
            *(row.family, f"**{row.model}**" if row.model == OURS else row.model, row.cases),
            *(percent(value) for value in (row.median, row.mean, row.largest, row.gmae)),
            *(number(row.bias, sign=True), number(row.tau)),
            *(percent(row.pairwise, 0), percent(row.coverage, 0)),
        )
        for row in rows
    )
    return text(table((*heads, "inside 90 %"), "llr", cells))


def _parameters() -> str:
    lines = [
        f"| `{program.name}` | `{fitted.name}` {fitted.value:g} | {fitted.on} |"
        for program in DLRM_PROGRAMS.values()
        for fitted in program.fitted
    ]
    # Programs may share a value.
    count = len({line.partition("|")[2].partition("|")[2] for line in lines})
    return _PARAMETERS.format(count=count) + "\n".join(lines) + "\n"


def _misses(cases: Sequence[EndToEndCase]) -> str:
    cells = (
        (case.case, f"{100 * case.error:+.0f} % throughput", cause_of(case))
        for case in worst(cases)
    )
    lines = table(("case", "error", "why"), "lrl", cells)
    return "\n### The ten largest misses\n\n" + text(lines)
