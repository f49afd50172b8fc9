"""The part of docs/accuracy.md on steps of transformers: figures, marks, groups, and misses."""

from __future__ import annotations

from typing import TYPE_CHECKING

from end_to_end_plot import scatter_by_family
from marks import mark_table
from pages import number, percent, table, text
from step_figures import case_of
from step_groups import fitted_here
from step_plot import group_picture

from dse.workload.transformer import TRANSFORMER_PROGRAMS

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from marks import Mark
    from step_figures import StepFigures
    from step_groups import GroupErrors
    from step_marks import StepReport

    from dse.workload import FittedValue

#: First line of the section, by which it is found in the page.
TITLE = "## Training steps of transformers against published ones\n"

_SCATTER, _BY_GROUP = "accuracy_transformers.svg", "accuracy_transformer_groups.svg"

#: What is known of why a mark is missed, by family and figure.
CAUSES = {
    ("nanotron", "regret"): (
        "Seven of the eight plans chosen are within 5 % of the best. The eighth, 8B on 16 GPUs "
        "with two stages, takes 2.7 times as long as the best: it was measured before "
        "its authors corrected their pipelines "
        "([transformers.md](transformers.md#nanotron-on-h100)). Without that one step the mean "
        "is 0.7 %."
    ),
    ("megatron_deepspeed", "coverage"): (
        "These times were simulated and scatter less than the 109 measured ones on 64 to 512 "
        "A100, which determine the width of the interval."
    ),
}

_HEAD = """
`python benchmarks/accuracy.py --steps` predicts {rows:,} published training steps and prints these
tables; with `--write docs/accuracy.md` it writes this section. Sources: vTrain
(VIA-Research/vTrain, GPT under Megatron-DeepSpeed on 2–8 A100; not measured but [made by its
authors' simulator](transformers.md#small-models)), nanotron's scaling benchmark
(huggingface/nanotron, eager PyTorch on 8–64 H100), NeMo recipes (NVIDIA/dgxc-benchmarking, 8–2,048
H100), Megatron-Bridge's tables (NVIDIA-NeMo/Megatron-Bridge, H100, B200 and GB200, dense and
mixtures of experts), GPT under Megatron-LM (Narayanan et al., SC 2021; Korthikanti et al., MLSys
2023), and MPT under FSDP (LLM Foundry). Every row counts. What a source does not state is filled
in by rules that use no measured time (`benchmarks/published_steps.py`, `transformer_cases.py`),
such as the least recomputation that fits. Bias is the median of log(predicted/measured). The
roofline runs kernels at peak arithmetic or bandwidth, one after the other, with line rates and no
host.

"""

_PLANS = """
The next table compares plans of one model on the same machine with the same batch: Kendall's τ
(mean over groups of at least three plans), how often the plan predicted to be fastest takes at
most a tenth longer than the best, and how much longer it takes on average. Memory is the median
error of what the allocator reserved on the first rank. The last two columns are the shares of runs
that worked, and of runs that failed (most of them out of memory), that are predicted to fit.

"""

_FITTED = """
### What is fitted

These are the fitted values of training programs. Each was fitted on all of the named rows
together, never on one case. The constants of kernels that all programs share are in
[transformers.md](transformers.md#free-parameters); those of MPT's kernels were fitted on the 65
steps of `composer`, the energy of an operation on A100 on these and the eight of `megatron`, that
on H100 on the steps of `nemo`, and that on Blackwell on dense models of `megatron_bridge`, with
others of its earlier tables ([power](transformers.md#power)). The spreads of intervals are in
[transformers.md](transformers.md#accuracy). No value of a program was fitted on the steps of
{unfitted}.

| program | value | fitted on |
|---|---|---|
"""

_GROUPS = """
### Groups left out

Each group is predicted with values fitted again on all other rows of its program, for the least
mean absolute error, between half and twice the shipped value. For programs without values fitted
on their own steps, the table shows the shipped model by group.

"""

_PICTURE = """
![Predicted against measured step times, one panel a training program](images/{scatter})

Dots are medians of predicted over measured time of a left-out group; bars extend from the 5 % to
the 95 % quantile of its steps.

![Predicted over measured step time by left-out group](images/{groups})
"""


def step_section(report: StepReport) -> str:
    """Returns the section in Markdown, its title included; empty without steps."""
    if not report.steps:
        return ""
    parts = ["\n", TITLE, _HEAD.format(rows=len(report.steps)), _times(report.figures)]
    parts += [_PLANS, _plans(report.figures), "\n", mark_table(report.marks)]
    parts += [_PICTURE.format(scatter=_SCATTER, groups=_BY_GROUP), _fitted(report.figures)]
    parts += [_GROUPS, _left_out(report.groups), _missed(report.marks)]
    return "".join(parts)


def write_step_pictures(report: StepReport, folder: Path) -> None:
    """Writes the pictures that the section shows; none without steps.

    Args:
        report: What they show.
        folder: Where they go; made if it is missing.
    """
    if not report.steps:
        return
    folder.mkdir(parents=True, exist_ok=True)
    cases = [case_of(one) for one in report.steps if one.step.ran]
    (folder / _SCATTER).write_text(scatter_by_family(cases), encoding="utf-8")
    (folder / _BY_GROUP).write_text(group_picture(report.groups), encoding="utf-8")


def _times(figures: Sequence[StepFigures]) -> str:
    heads = ("program", "rows of", "rows", "failed", "refused", "median", "mean", "max", "bias")
    cells = (
        (
            *(f"`{row.family}`", row.files, f"{row.rows:,}", row.failed, row.refused),
            *(percent(value) for value in (row.median, row.mean, row.largest)),
            *(number(row.bias, sign=True), percent(row.coverage, 0), percent(row.roofline, 0)),
        )
        for row in figures
    )
    return text(table((*heads, "inside 90 %", "roofline's median"), "llr", cells))


def _plans(figures: Sequence[StepFigures]) -> str:
    heads = ("program", "groups", "τ", "chosen within 10 %", "mean regret", "memory")
    cells = (
        (
            *(f"`{row.family}`", row.groups, number(row.tau), percent(row.chosen)),
            *(percent(share) for share in (row.regret, row.memory, row.fits, row.failed_fits)),
        )
        for row in figures
    )
    return text(table((*heads, "ran: fits", "failed: fits"), "lr", cells))


def _fitted(figures: Sequence[StepFigures]) -> str:
    programs = list(dict.fromkeys(row.family.split()[0] for row in figures))
    known = [program for program in programs if program in TRANSFORMER_PROGRAMS]
    # Programs may share a value.
    users: dict[FittedValue, list[str]] = {}
    for program in known:
        for fitted in TRANSFORMER_PROGRAMS[program].fitted:
            users.setdefault(fitted, []).append(f"`{program}`")
    lines = [
        f"| {', '.join(names)} | `{fitted.name}` {fitted.value:g} | {fitted.on} |"
        for fitted, names in users.items()
    ]
    untouched = [
        f"`{program}`"
        for program in known
        if not fitted_here(program) and program not in ("composer", "megatron")
    ]
    return _FITTED.format(unfitted=" and ".join(untouched)) + "\n".join(lines) + "\n"


def _left_out(groups: Sequence[GroupErrors]) -> str:
    heads = ("program", "left out by", "groups", "median", "inside 90 %", "worst group")
    cells = (
        (
            *(f"`{row.family}`", row.by, len(row.groups), percent(row.median)),
            *(percent(row.coverage, 0), row.worst.name, percent(row.worst.median)),
            ", ".join(f"`{name}`" for name in row.refitted) or "–",
        )
        for row in groups
    )
    return text(table((*heads, "its median", "fitted again"), "llrrrlrl", cells))


def _missed(marks: Sequence[Mark]) -> str:
    missed = [mark for mark in marks if not mark.met]
    if not missed:
        return ""
    lines = ["\n### What is missed\n"]
    for mark in missed:
        figure, _, reached = mark.figure.partition(" ")
        cause = CAUSES.get((mark.name, figure), "The cause is not known.")
        lines.append(f"* `{mark.name}`, {figure}: {reached} ({mark.aim}). {cause}")
    return "\n".join(lines) + "\n"
