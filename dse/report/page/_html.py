"""The study page: one self-contained file that opens offline and makes no network requests."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from dse._io.reading import read_text
from dse._io.writing import write_atomically
from dse.errors import ConfigError, OptionalDependencyError
from dse.report.page._payload import packed, packed_document, view_document
from dse.report.page._view import build_view
from dse.workload import program_label

if TYPE_CHECKING:
    from dse.search import StudyResult


def write_report(study: StudyResult, path: Path) -> None:
    """Writes the page of a study.

    Raises:
        StudyError: The folder cannot be written.
    """
    write_atomically(path, render_report(study))


def render_report(study: StudyResult) -> str:
    """Returns the page of a study as HTML.

    Text from files reaches the page in two ways only: through Jinja2 with escaping on, and as
    compressed JSON inside a script element that is data, not code. The page's own script puts
    such text into the document with `textContent`.
    """
    from jinja2 import Environment, PackageLoader, StrictUndefined

    environment = Environment(
        loader=PackageLoader("dse.report.page", "templates"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    view = build_view(study)
    return environment.get_template("report.html.j2").render(
        study=study,
        view=view,
        kind=study.kind,
        programs=tuple(map(program_label, study.programs)),
        unit_word=view.rank_word.lower(),
        counts=dict(view.counts),
        evaluated=sum(record.evaluated for record in study.records),
        payload=packed_document(view_document(view)),
        plotly=_packed_plotly(),
    )


@cache
def _packed_plotly() -> str:
    """Returns the script of Plotly; a third of the page's bytes instead of nearly all."""
    try:
        # The build puts it here; a checkout that is not installed has none.
        script = read_text(Path(__file__).with_name("plotly.min.js"))
    except ConfigError:
        script = _plotly_of_package()
    return packed(script)


def _plotly_of_package() -> str:
    try:
        from plotly.offline import get_plotlyjs
    except ImportError as error:
        raise OptionalDependencyError(
            "this checkout of dse is not installed, so its pages lack the script that draws: "
            "pip install -e . in the project's folder"
        ) from error
    return str(get_plotlyjs())
