"""What a study folder holds, looked at from outside."""

from __future__ import annotations

import csv
import json
import re

import pyarrow.parquet

from dse.search import load_study
from dse.search.storage._journal_repair import stored_operations


def journaled(out):
    """Parameters of every configuration in the journal, in the order of its lines.

    Those on the front are there once more with better plans, which are not counted.
    """
    path = out / "journal.log"
    if not path.exists():
        return []
    return [
        tuple((name, value) for name, value in record["parameters"])
        for record in (
            operation["user_attrs"]["record"]
            for operation in stored_operations(path)
            if operation["op_code"] == 4
        )
        if not record["thorough"] and not record["borrowed"]
    ]


def check_files(out):
    """Every file is whole, or not there."""
    for name in ("trials.csv", "pareto.csv"):
        if (out / name).exists():
            with (out / name).open(newline="") as file:
                rows = list(csv.reader(file))
            assert rows
            assert {len(row) for row in rows} == {len(rows[0])}
    if (out / "trials.parquet").exists():
        assert pyarrow.parquet.read_table(out / "trials.parquet").num_rows > 0
    if (out / "report.html").exists():
        assert (out / "report.html").read_text().rstrip().endswith("</html>")
    for plan in (out / "plans").glob("[0-9]*.json"):
        assert json.loads(plan.read_text())
    if journaled(out):
        assert load_study(out).result.records


def unfinished(out):
    """Temporary files that somebody left behind, and the lock of a run."""
    found = [path for path in out.rglob(".*") if path.is_file()]
    return found + list(out.rglob("run.lock"))


def without_checksums(journal):
    """The bytes of a journal as former versions wrote them."""
    return re.sub(rb',"crc32":"[0-9a-f]{8}"}\n', b"}\n", journal)
