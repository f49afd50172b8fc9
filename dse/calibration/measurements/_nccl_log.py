"""Output of nccl-tests (`all_reduce_perf` and its siblings), with one run or several.

A run opens with `# nThread …` and names its ranks and their hosts in `# Rank` lines; its columns
stand in a line `# size count type …`, which older versions print without `root` and, for
operations that reduce nothing, without `redop`. Times follow twice, out of place and in place, in
µs. The operation is named by `# Collective test starting:` in new versions, otherwise by the
command where the log echoes it; the version of NCCL by nccl-tests itself, or by NCCL_DEBUG. Lines
of NCCL_DEBUG and of launchers stand between and sometimes inside rows. Launchers and collectors of
logs label lines (`[1,0]<stdout>:`, `0: `, a host, a time, a pod); what stands before the line of
the columns, or before the beginning of a run without columns, is the label, its numbers aside.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
import math
import re
from typing import Any

import numpy as np

from dse._io.tables import Origin, RowKind, Table, objects
from dse.errors import ConfigError, Diagnostic

_HEADER = re.compile(r"^#\s+size\s+count\s+type\s")
#: A label is no number, which would be the size of a torn row.
_LABELLED_HEADER = re.compile(r"^(?!\s*\d+[\s#])(.{1,200}?)#\s+size\s+count\s+type\s")
_RUN = re.compile(r"^# nThread\s+\d+")
_LABELLED_RUN = re.compile(r"^(.{1,200}?)# nThread\s+\d+")
_STARTING = re.compile(r"Collective test starting:\s*(?:\S*/)?(\w+?)_perf")
_COMMAND = re.compile(r"(?:^|[\s/])(\w+?)_perf(?:_mpi)?(?=\s+-)")
_BUILD = re.compile(r"^\s*(?:Linking|Compiling|Archiving|make|nvcc|g\+\+)\b")
#: Version of NCCL as nccl-tests prints it (22907 is 2.29.7), and as NCCL_DEBUG=VERSION does.
_LIBRARY = re.compile(r"nccl-library=(\d+)(\d\d)(\d\d)\b")
_VERSION = re.compile(r"\bNCCL version (\d+)\.(\d+)(?:\.(\d+))?")
_RANK = re.compile(
    r"^#\s+Rank\s+(\d{1,9})(?:\s+Group\s+(\d{1,9}))?\s+Pid\s+\d+(?:\s+on\s+(\S+)\s+device)?"
    r"(?:\s+\d+\s+\[\S+\]\s+(\S.*))?"
)
_FAILED = re.compile(r"\bTest (?:\w+ )?failure \S+:\d+")
_ROW = re.compile(r"^\s*\d+\s+\d+\s+[a-z]\w*\s")
_ROW_INSIDE = re.compile(r"\s\d+\s+\d+\s+[a-z]\w*\s+(?:[a-z]+\s+-?\d+\s+)?\d+\.\d+\s")

_TIME, _CPU_TIME, _WRONG = "time", "cputime", "#wrong"

#: Column of bus bandwidths over algorithm bandwidths, which differ by operation and ranks.
BUS_RATIO = "bus_ratio"

#: Operator that is printed where nothing is reduced.
NO_REDUCTION = "none"

#: Rates of at least so many GB/s have enough digits for their ratio.
_LEAST_RATE = 2.0

#: Most different labels of a log: runs of one launcher have the same.
_MOST_LABELS = 8


def is_nccl_log(content: bytes) -> bool:
    """Returns whether a file holds a table of nccl-tests, or a run's beginning and no table."""
    lines = content.split(b"\n")
    texts = (line.decode("latin-1") for line in lines if b"count" in line)
    if any(_HEADER.match(text) or _LABELLED_HEADER.match(text) for text in texts):
        return True
    if b"# nThread" not in content:
        return False
    unlabelled = _unlabelled([line.decode("latin-1") for line in lines])
    if not any(_RUN.match(line) for line in unlabelled):
        return False
    # Tables may have comments that were taken over from a log.
    return not any(re.search(r"[,;\t|]", line) for line in unlabelled if not line.startswith("#"))


@dataclass
class _Run:
    op: str | None = None
    #: Host of each rank of each group; empty where a line does not name it.
    groups: dict[int, dict[int, str]] = field(default_factory=dict)
    cut_short: bool = False
    nccl: str | None = None
    #: Name of the first rank's device.
    device: str | None = None
    header: list[str] = field(default_factory=list)

    def ranks(self) -> int | None:
        """Returns the ranks of one communicator, or None where the log does not say."""
        sizes = {len(members) for members in self.groups.values()}
        return sizes.pop() if len(sizes) == 1 and not self.cut_short else None

    def nodes(self) -> int | None:
        """Returns the hosts of one communicator, or None where the log does not say.

        Also None where hosts have unequal numbers of ranks: no cluster here has such nodes.
        """
        if self.ranks() is None:
            return None
        each = [Counter(hosts.values()) for hosts in self.groups.values()]
        if any("" in ranks or len(set(ranks.values())) > 1 for ranks in each):
            return None
        counts = {len(ranks) for ranks in each}
        return counts.pop() if len(counts) == 1 else None


@dataclass
class _Rows:
    values: dict[str, list[Any]] = field(
        default_factory=lambda: {
            name: []
            for name in (
                *("op", "ranks", "nodes", "size_bytes", "dtype", "redop", BUS_RATIO, "nccl"),
                *("device", "time_us"),
            )
        }
    )
    lines: list[int] = field(default_factory=list)
    torn: list[int] = field(default_factory=list)
    empty: int = 0
    wrong: list[int] = field(default_factory=list)
    failed: list[int] = field(default_factory=list)
    groups: set[int] = field(default_factory=set)


def parse_nccl_log(text: str, file: str, *, in_place: bool) -> Table:
    """Reads a log.

    Args:
        text: The log.
        file: Name for messages.
        in_place: Take the second half of the columns.

    Returns:
        A table with the columns `op`, `ranks`, `nodes`, `size_bytes`, `dtype`, `redop`,
        `bus_ratio` and `time_us`, and `nccl` and `device` where the log states them. The first
        three are missing where no run names them, and hold None where only some do, as the ratio
        does where rates are too small or of ranks that the log does not say.

    Raises:
        ConfigError: The log holds launch times of the CPU, lacks the wanted columns or any result,
            or nccl-tests itself found wrong results or failed before the first.
    """
    rows = _Rows()
    run = _Run()
    named: str | None = None
    nccl: str | None = None
    for number, line in enumerate(_unlabelled(text.split("\n")), start=1):
        nccl = _stated_version(line) or nccl
        if _FAILED.search(line):
            rows.failed.append(number)
        if _RUN.match(line):
            run, named = _Run(op=named), None
        elif (mention := _mentioned(line)) is not None:
            if mention[1]:
                run, named = _Run(), mention[0]
            else:
                named = mention[0]
        elif (rank := _RANK.match(line)) is not None:
            run.groups.setdefault(int(rank[2] or 0), {})[int(rank[1])] = rank[3] or ""
            run.device = run.device or rank[4]
            run.cut_short |= line.rstrip().endswith("...")
        elif _HEADER.match(line):
            run.header = _header(line, file, number, in_place)
        elif run.header:
            run.nccl = nccl
            _row(line, number, run, in_place, rows)
    return _table(rows, file, in_place)


def _unlabelled(lines: list[str]) -> list[str]:
    """Returns lines without their labels."""
    found = [_LABELLED_HEADER.match(line) for line in lines if "count" in line]
    if not any(found):
        found = [_LABELLED_RUN.match(line) for line in lines if "nThread" in line]
    prefixes = dict.fromkeys(_any_numbers(match[1]) for match in found if match)
    if not prefixes:
        return lines
    label = re.compile(rf"^\s*(?:{'|'.join(list(prefixes)[:_MOST_LABELS])})")
    return [label.sub("", line) for line in lines]


def _any_numbers(label: str) -> str:
    """Returns the pattern of a label with any numbers, aligned by any blanks."""
    parts = re.split(r"(\d+|\s+)", label)
    return "".join(
        r"\d+" if part.isdigit() else r"\s*" if part.isspace() else re.escape(part)
        for part in parts
    )


def _stated_version(line: str) -> str | None:
    """Returns the version of NCCL that a line states, or None."""
    found = _LIBRARY.search(line) or _VERSION.search(line)
    return None if found is None else ".".join(str(int(part)) for part in found.groups("0"))


def _mentioned(line: str) -> tuple[str, bool] | None:
    """Returns the operation that a line names, and whether the run says so itself."""
    if (own := _STARTING.search(line)) is not None:
        return own[1], True
    if _BUILD.match(line):
        return None
    command = _COMMAND.search(line)
    return None if command is None else (command[1], False)


def _header(line: str, file: str, number: int, in_place: bool) -> list[str]:
    names = line.lstrip("#").split()
    if _CPU_TIME in names:
        message = "these are launch times of the CPU; run the test again without `-C`"
        raise ConfigError(diagnostics=(Diagnostic(file, number, None, _CPU_TIME, message),))
    if names.count(_TIME) < (2 if in_place else 1):
        wanted = "in-place" if in_place else "out-of-place"
        message = f"no column of {wanted} times; found {' '.join(names)}"
        raise ConfigError(diagnostics=(Diagnostic(file, number, None, _TIME, message),))
    return names


def _row(line: str, number: int, run: _Run, in_place: bool, rows: _Rows) -> None:
    if not _ROW.match(line):
        if _ROW_INSIDE.search(line):
            rows.torn.append(number)
        return
    cells = line.split()
    if run.header[3] == "redop" and len(cells) > 3 and not cells[3].isalpha():
        # Early versions left this column blank where nothing is reduced.
        cells.insert(3, NO_REDUCTION)
    time_at = _time_column(run.header, in_place)
    try:
        time_us = float(cells[time_at])
        rate, bus_rate = float(cells[time_at + 1]), float(cells[time_at + 2])
        # Two numbers that ran into each other may have more digits than Python reads.
        size, data_type = int(cells[0]), cells[2]
    except (IndexError, ValueError):
        rows.torn.append(number)
        return
    if size == 0:
        rows.empty += 1
        return
    if _is_wrong(run.header, cells, time_at):
        rows.wrong.append(number)
    reduction = cells[3] if run.header[3] == "redop" else None
    # Of several groups nccl-tests counts all ranks in the bus bandwidth.
    known = len(run.groups) == 1 and run.ranks() is not None and _LEAST_RATE <= rate < math.inf
    ratio = round(bus_rate / rate, 3) if known else None
    row = (
        *(run.op, run.ranks(), run.nodes(), size, data_type, reduction, ratio, run.nccl),
        *(run.device, time_us),
    )
    for column, value in zip(rows.values.values(), row, strict=True):
        column.append(value)
    rows.lines.append(number)
    rows.groups.add(len(run.groups))


def _time_column(header: list[str], in_place: bool) -> int:
    first = header.index(_TIME)
    return header.index(_TIME, first + 1) if in_place else first


def _is_wrong(header: list[str], cells: list[str], time_at: int) -> bool:
    at = time_at + 3
    if at >= min(len(header), len(cells)) or header[at] != _WRONG:
        return False
    try:
        return float(cells[at]) > 0
    except ValueError:
        return False


def _table(rows: _Rows, file: str, in_place: bool) -> Table:
    origin = Origin(file, RowKind.LINE)
    if rows.wrong:
        message = (
            f"{len(rows.wrong)} of {len(rows.lines)} results are wrong by nccl-tests' own check; "
            "times of a collective that does not work say nothing: mend it and measure again"
        )
        raise ConfigError(diagnostics=(origin.diagnostic(rows.wrong[0], _WRONG, message),))
    if rows.failed and not rows.lines:
        message = "nccl-tests failed before its first result"
        raise ConfigError(diagnostics=(origin.diagnostic(rows.failed[0], "", message),))
    if not rows.lines:
        _, *left_out = _notes(rows, file, in_place)
        found = "; ".join(["this log of nccl-tests has no results", *left_out])
        raise ConfigError(f"{file}: {found}; run the test to its end, with sizes above 0")
    columns = {
        name: objects(values)
        for name, values in rows.values.items()
        if any(value is not None for value in values)
    }
    return Table(
        origin,
        columns,
        np.array(rows.lines, dtype=np.int64),
        notes=tuple(_notes(rows, file, in_place)),
        is_log=True,
    )


def _notes(rows: _Rows, file: str, in_place: bool) -> list[str]:
    notes = [f"log of nccl-tests: {'in-place' if in_place else 'out-of-place'} times in µs"]
    if rows.empty:
        notes.append(f"{rows.empty} rows of size 0 left out")
    if rows.torn:
        notes.append(
            f"{len(rows.torn)} rows torn by other output left out, first {file}:{rows.torn[0]}"
        )
    if rows.failed:
        notes.append(f"nccl-tests failed, first {file}:{rows.failed[0]}; earlier rows are kept")
    if max(rows.groups, default=1) > 1:
        notes.append(
            f"up to {max(rows.groups)} groups at the same time; ranks are those of one group"
        )
    return notes
