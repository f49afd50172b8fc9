"""From the profiler's plain JSON to the files that are kept."""

from __future__ import annotations

import gzip
import hashlib
import io
import re
from typing import TYPE_CHECKING

from dse._files import write_atomically
from dse.trace.capture._record import CapturedFile

if TYPE_CHECKING:
    from pathlib import Path

#: The profiler writes the path that it wrote to, which is of no use to anybody else.
_TRACE_NAME = re.compile(rb'"traceName": "(?:[^"\\]|\\.)*"')


def pack(source: Path, target: Path, incomplete_step: int | None = None) -> CapturedFile:
    """Compresses a trace into its place.

    Args:
        source: The trace as the profiler wrote it.
        target: The file to write, in one go.
        incomplete_step: Number of an iteration that was cut off; it loses the name by which
            readers know whole iterations.

    Raises:
        StudyError: The folder cannot be written.
    """
    cut = b"" if incomplete_step is None else b'"name": "ProfilerStep#%d"' % incomplete_step
    renamed = b'"name": "incomplete step %d"' % (incomplete_step or 0)
    named = b'"traceName": "%s"' % target.name.encode()
    buffer = io.BytesIO()
    with (
        source.open("rb") as lines,
        gzip.GzipFile(filename="", mode="wb", compresslevel=6, fileobj=buffer, mtime=0) as packed,
    ):
        for line in lines:
            if cut and cut in line:
                line = line.replace(cut, renamed)
            if b'"traceName"' in line:
                line = _TRACE_NAME.sub(lambda _: named, line)
            packed.write(line)
    content = buffer.getvalue()
    write_atomically(target, content)
    return CapturedFile(target.name, len(content), hashlib.sha256(content).hexdigest())
