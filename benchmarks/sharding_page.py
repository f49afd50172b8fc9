"""The section "Methods" of docs/performance.md, from what `benchmarks/sharding.py` measured."""

from __future__ import annotations

import statistics
from typing import TYPE_CHECKING

from pages import table, text

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from sharding import Row

#: First line of the section, by which it is found in the page.
TITLE = "## Methods\n"

TORCHREC = "TorchRec"

_HEAD = """
Iteration time over the lower bound, one task per setting. The figures are in
`benchmarks/measurements/sharding_methods.json`, from runs with `--json` and TorchRec 1.8.0;
`python benchmarks/sharding.py --read FILE.json --write docs/performance.md` writes this section.

"""

_NOTES = """
In tight tasks, most greedy planners find no plan: they keep a tenth of the memory free and never
revise a choice. TorchRec reserves 15 % of the memory, more than is left in a tight task, so it
finds no plan or uses host memory, which the other methods may not use and the bound does not
cover. It plans with its own estimates and link bandwidths, but is scored by our model. The limit
of 0.1 s is exceeded because the first steps are not interrupted.

Median wall-clock time of planning over these tasks, processor time in brackets:

"""


def methods_section(rows: Sequence[Row]) -> str:
    """Returns the section, with its title.

    Args:
        rows: Of all settings that were run.
    """
    limits = [name for name in _methods(rows) if _is_ours(name)]
    parts = ["\n" + TITLE + _HEAD, _table(rows, limits), "\n", *_summary(rows)]
    return "".join([*parts, _NOTES, _times(rows, limits)])


def ratios(rows: Iterable[Row], method: str, memory: str) -> list[float]:
    """Returns the times over the bound of a method's plans, of the settings that all methods ran.

    Args:
        rows: Of all settings.
        method: Its name.
        memory: `loose` or `tight`.
    """
    return [
        row.median_over_bound
        for row in shared(rows)
        if row.method == method and row.memory == memory and row.median_over_bound is not None
    ]


def shared(rows: Iterable[Row]) -> list[Row]:
    """Returns the rows of the settings that TorchRec's planner ran, too."""
    found = list(rows)
    settings = {_setting(row) for row in found if row.method == TORCHREC}
    return [row for row in found if _setting(row) in settings]


def _setting(row: Row) -> tuple[int, int, str, str]:
    return row.tables, row.ranks, row.platform, row.memory


def _methods(rows: Iterable[Row]) -> list[str]:
    return list(dict.fromkeys(row.method for row in rows))


def _is_greedy(method: str) -> bool:
    return method not in ("random", TORCHREC) and not _is_ours(method)


def _table(rows: Sequence[Row], limits: Sequence[str]) -> str:
    found = []
    for setting in dict.fromkeys(_setting(row) for row in rows):
        of = {row.method: row for row in rows if _setting(row) == setting}
        greedy = min(
            (row for row in of.values() if _is_greedy(row.method) and row.feasible),
            key=lambda row: row.median_over_bound or 0.0,
            default=None,
        )
        best = f"{_ratio(greedy)} (`{greedy.method}`)" if greedy else "none fits"
        cells = [_ratio(of.get("random")), best, _ratio(of.get(TORCHREC))]
        cells += [_ratio(of.get(name)) for name in limits]
        tables, ranks, platform, memory = setting
        found.append((f"{tables} × {ranks}", f"{platform}, {memory}", *cells))
    heads = ("tables × ranks", "platform, memory", "random", "best greedy", TORCHREC, *limits)
    return text(table(heads, "llr", found))


def _ratio(row: Row | None) -> str:
    if row is None:
        return "not run"
    return "none fits" if row.median_over_bound is None else f"{row.median_over_bound:.3f}"


def _summary(rows: Sequence[Row]) -> Iterator[str]:
    greedy = [
        min(found)
        for setting in dict.fromkeys(_setting(row) for row in shared(rows))
        if (found := [r for row in rows if _setting(row) == setting for r in _greedy_ratio(row)])
    ]
    loose = {name: ratios(rows, name, "loose") for name in _methods(rows)}
    yield "With loose memory on 8 ranks, "
    yield f"TorchRec's plans are {_span(loose[TORCHREC])} above the bound"
    yield f", the best greedy ones {_span(greedy)} with\nany memory" if greedy else ""
    ours = max((name for name in loose if _is_ours(name) and loose[name]), key=_limit_s)
    both = [*loose[ours], *ratios(rows, ours, "tight")]
    yield "; which greedy planner is best differs\nbetween tasks. "
    yield f"{_limit_s(ours):g} s of search reaches {_span(both)}.\n"


def _is_ours(method: str) -> bool:
    return method.startswith("ours")


def _greedy_ratio(row: Row) -> list[float]:
    ratio = row.median_over_bound
    return [ratio] if _is_greedy(row.method) and ratio is not None else []


def _limit_s(method: str) -> float:
    return float(method.removeprefix("ours, ").removesuffix(" s"))


def _span(found: Sequence[float]) -> str:
    low, high = (round(100.0 * (end(found) - 1.0)) for end in (min, max))
    return f"{low} to {high} %"


def _times(rows: Sequence[Row], limits: Sequence[str]) -> str:
    timed = [TORCHREC, *(name for name in limits if ratios(rows, name, "loose"))]
    cells = (
        (f"{size[0]} × {size[1]}", *(planning_time(rows, size, name) for name in timed))
        for size in dict.fromkeys((row.tables, row.ranks) for row in shared(rows))
    )
    lines = table(("tables × ranks", *timed), "lr", cells)
    return text(lines) + "\nGreedy planners take milliseconds.\n"


def planning_time(rows: Iterable[Row], size: tuple[int, int], method: str) -> str:
    """Returns the median time of planning, with the processor's in brackets.

    Args:
        rows: Of all settings.
        size: Tables and ranks.
        method: Name of the method.
    """
    same = [row for row in rows if (row.tables, row.ranks) == size and row.method == method]

    def median(value: Callable[[Row], float]) -> float:
        return statistics.median(map(value, same))

    wall_s, cpu_s = median(lambda row: row.planning_time_s), median(lambda row: row.cpu_time_s)
    return f"{wall_s:.2f} s ({cpu_s:.2f} s)"
