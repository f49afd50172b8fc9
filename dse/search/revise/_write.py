"""Study folder of a revision."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

from dse._io.reading import path_exists
from dse.errors import StudyError
from dse.search._directory import StudyDirectory
from dse.search._load import load_study
from dse.search._lock import lock_folder
from dse.search.storage._journal import Journal

if TYPE_CHECKING:
    from dse.search._header import StudyHeader
    from dse.search._options import Study
    from dse.search._records import StudyResult
    from dse.search.revise._revise import Revision, RevisionProgress


def write_revision(
    revision: Revision,
    source: StudyDirectory,
    out: str | Path,
    *,
    progress: RevisionProgress | None = None,
) -> Study:
    """Writes a study folder with the candidates under the changed inputs, without its report.

    The folder is a study like any other. The overrides are among its inputs and apply again when
    its platforms are read.

    Args:
        revision: The revised study.
        source: Folder of the original study.
        out: The new folder.
        progress: Called after every candidate that is written.

    Raises:
        StudyError: The folder holds a study already, or cannot be written.
    """
    directory = StudyDirectory(Path(out))
    if path_exists(directory.root) and not directory.root.is_dir():
        raise StudyError(f"{out} is a file; --out needs a folder")
    with lock_folder(directory.root):
        if directory.header.exists() or directory.journal.exists():
            raise StudyError(f"{out} already holds a study; choose another --out")
        try:
            _write(revision.after, source.read_header(), directory, progress)
        except BaseException:
            directory.journal.unlink(missing_ok=True)
            raise
    return load_study(directory.root)


def _write(
    result: StudyResult,
    former: StudyHeader,
    directory: StudyDirectory,
    progress: RevisionProgress | None,
) -> None:
    header = former.with_changes(
        created=datetime.now(UTC).isoformat(timespec="seconds"),
        inputs=result.inputs,
        certificate=result.certificate,
        # Other runs share the original study; this one is written once.
        storage=None,
    )
    journal = Journal(directory.journal, header.objectives, header.parameters, create=True)
    for done, record in enumerate(result.records, start=1):
        journal.add(replace(record, on_front=False, lower_bound_s=None))
        if progress is not None:
            progress(done, len(result.records))
    journal.add_bounds(
        {
            record.parameters: record.lower_bound_s
            for record in result.records
            if record.lower_bound_s is not None
        }
    )
    directory.write_tables(result, header.parameters)
    # Last: without it, half of the candidates are not taken for a study.
    directory.write_header(header)
