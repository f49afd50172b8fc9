"""Names that would like to be scripts, styles, formulas or orders to a terminal stay text."""

from __future__ import annotations

import csv
from dataclasses import fields, is_dataclass, replace
from enum import Enum
from html.parser import HTMLParser
import io
import re
import shutil
import subprocess

import pytest
from rich.console import Console as PlainConsole

from dse._text.terminal import Console, visible
from dse.report import render_report
from dse.report.terminal.studies import print_study, print_validation
from dse.search import RunOptions, TrialStatus, run, trial_table
from dse.search._directory import StudyDirectory
from dse.search._tables import csv_text
from tests.report.test_report import make_record, make_study
from tests.validation.studies import VALIDATION, write_space

#: What a browser must not run, each with a mark that it would leave on the page.
RUN = "document.documentElement.setAttribute('data-ran','1')"
PAYLOADS = (
    f"<script>{RUN}</script>",
    f"</script><script>{RUN}</script>",
    f"</title></style></textarea></template></svg><script>{RUN}</script>",
    f"<img src=x onerror={RUN}>",
    f'"><img src=x onerror="{RUN}">',
    f"'><svg onload='{RUN}'>",
    f"\" onmouseover=\"{RUN}\" autofocus onfocus=\"{RUN}\" x=\"",
    f"<a href=\"javascript:{RUN}\">x</a>",
    f"<iframe srcdoc=\"<script>parent.{RUN}</script>\">",
    f"${{{RUN}}} {{{{{RUN}}}}} `${{{RUN}}}`",
    f"\\\";{RUN};//",
    f"\\';{RUN};//",
    f"-->{RUN}<!--",
    f"]]>{RUN}<![CDATA[",
    f"\u2028{RUN}\u2029",
    "x;} body{display:none} </style><style>body{display:none}",
    "&lt;b&gt;&amp;&#39;\\u003cscript>",
    "%{x} %{customdata[0]} <b>bold</b><br>",
)  # fmt: skip


def hostile(value: object, payload: str) -> object:
    """Returns a value in which every text has a payload behind it, and in front of it."""
    if isinstance(value, Enum) or (not isinstance(value, str | tuple) and not is_dataclass(value)):
        return value
    if isinstance(value, str):
        return f"{payload}{value}{payload}"
    if isinstance(value, tuple):
        return tuple(hostile(item, payload) for item in value)
    changed = {
        field.name: hostile(getattr(value, field.name), payload)
        for field in fields(value)
        if field.name not in KEPT
    }
    return replace(value, **changed)  # type: ignore[type-var]


#: Words of ours, not of files; names of metrics are checked when a study is loaded.
KEPT = {"kind", "metric", "sampler", "created", "sha256", "role", "chosen", "factors"}


def study_with(payload: str):
    records = [make_record(number, 1e6 * (1 + number), 0.1 * (1 + number)) for number in range(6)]
    empty = {"values": (), "configuration": None, "prediction": None, "planner": ""}
    records.append(make_record(6, 0, 0, status=TrialStatus.FAILED, reason="broke", **empty))
    records.append(make_record(7, 1, 1, status=TrialStatus.INFEASIBLE, reason="too large"))
    study = make_study(records)
    study = replace(study, validation=VALIDATION)
    return hostile(study, payload)


class Elements(HTMLParser):
    """What a page consists of, as a browser would see it before any script runs."""

    def __init__(self) -> None:
        super().__init__()
        self.tags: dict[str, int] = {}
        self.handlers: set[str] = set()
        self.links: set[str] = set()

    def handle_starttag(self, tag, attrs):
        self.tags[tag] = self.tags.get(tag, 0) + 1
        self.handlers |= {f"{tag} {name}" for name, _ in attrs if name.startswith("on")}
        named = dict(attrs)
        self.links |= {str(named[key]) for key in ("src", "href", "action") if key in named}


def elements(page: str) -> Elements:
    found = Elements()
    found.feed(page)
    return found


@pytest.fixture(scope="module")
def plain():
    return elements(render_report(study_with("a word")))


@pytest.mark.parametrize("payload", PAYLOADS, ids=range(len(PAYLOADS)))
def test_text_never_becomes_an_element(payload, plain):
    found = elements(render_report(study_with(payload)))
    assert found.tags == plain.tags
    assert found.handlers == plain.handlers
    assert found.links == plain.links


def test_very_long_names():
    page = render_report(study_with("x" * 20_000))
    assert elements(page).tags["body"] == 1


def browser() -> str | None:
    return next(filter(None, map(shutil.which, ("chromium", "chromium-browser"))), None)


@pytest.mark.slow
@pytest.mark.skipif(browser() is None, reason="no Chromium on the PATH")
def test_nothing_of_it_runs_in_a_browser(tmp_path):
    page = tmp_path / "report.html"
    page.write_text(render_report(study_with(" ".join(PAYLOADS))), encoding="utf-8")
    command = [str(browser()), "--headless", "--no-sandbox", "--disable-gpu"]
    command += [f"--user-data-dir={tmp_path / 'profile'}", "--virtual-time-budget=20000"]
    done = subprocess.run(
        [*command, "--dump-dom", page.as_uri()], capture_output=True, text=True, timeout=180
    )
    dom = done.stdout
    assert "</html>" in dom, done.stderr[-2000:]
    (opening,) = re.findall(r"<html[^>]*>", dom)
    assert "data-ran" not in opening
    # Scripts of the page have drawn it: the payloads are text in it.
    assert "&lt;img src=x onerror" in dom
    assert not re.search(r"<img[^>]+onerror", dom)


# --- terminals -----------------------------------------------------------------------------------

ORDERS = (
    "\x1b]0;title\x07",
    "\x1b[2J\x1b[31m",
    "\x9b31m",
    "\r\x08\x0b",
    "\u202egnp.exe",
    "[red]red[/red]",
    "[/]",
    "[link=file:///etc/passwd]x[/link]",
    ":warning:",
)
ACTED_ON = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]")


@pytest.mark.parametrize("order", ORDERS, ids=range(len(ORDERS)))
def test_a_study_on_a_terminal(order):
    study = study_with(order)
    printed = io.StringIO()
    console = Console(file=printed, width=400)
    print_study(study, console, [("report", f"report{order}.html")])
    print_validation(study.validation, console)
    text = printed.getvalue()
    assert not ACTED_ON.search(text)
    if order.startswith("["):
        assert order in text


def test_a_console_of_rich_itself_would_act():
    """What the test above looks for is there without the console of ours."""
    printed = io.StringIO()
    PlainConsole(file=printed, width=80).print("\x1b[2J", markup=False)
    assert ACTED_ON.search(printed.getvalue())


def test_styles_of_our_own_stay():
    printed = io.StringIO()
    console = Console(file=printed, force_terminal=True, color_system="standard", width=80)
    console.print("a", style="bold")
    console.print("[bold]b[/bold] \x1b[2J", highlight=False)
    assert "\x1b[1ma\x1b[0m" in printed.getvalue()
    unstyled = re.sub("\x1b\\[[0-9;]*m", "", printed.getvalue())
    assert "[bold]b[/bold] \N{SYMBOL FOR ESCAPE}[2J" in unstyled


def test_signs_for_what_is_not_seen():
    assert visible("a\tb\nc") == "a\tb\nc"
    assert visible("\x1b[31m\x7f\r") == "␛[31m␡␍"
    assert visible("\x9b\u202e\ud800") == "\N{REPLACEMENT CHARACTER}" * 3


# --- tables and folders --------------------------------------------------------------------------


@pytest.mark.parametrize("start", ["=1+1", "+1", "-1", "@x", "\t=1", "\r=1"])
def test_cells_that_a_spreadsheet_would_compute(start):
    record = make_record(0, -1.5, 1.0, planner=start, parameters=(("platform", start),))
    table = trial_table([record], ["platform"])
    table[start] = table.pop("reason")
    rows = list(csv.reader(io.StringIO(csv_text(table), newline="")))
    assert not [cell for row in rows for cell in row if cell[:1] in "=@+\t\r" and cell]
    cells = dict(zip(*rows, strict=True))
    shown = start.replace("\r", "\n")
    assert cells["platform"] == cells["planner"] == f"'{shown}"
    # Negative numbers are numbers, and the table itself is as it was.
    assert float(cells["throughput_samples_per_s"]) == -1.5
    assert table["platform"] == [start]


@pytest.mark.parametrize("name", ["../../up", "/abs", "a/b\\c", "..", "x" * 200, "€" * 200, "\0"])
def test_a_study_stays_in_the_folder_of_results(tmp_path, monkeypatch, name):
    from dse.search import RunOptions
    from dse.search._start import study_folder

    monkeypatch.chdir(tmp_path)
    folder = study_folder(RunOptions(), name)
    folder.mkdir(parents=True)
    assert folder.resolve().parent == (tmp_path / "results").resolve()


def test_other_files_beside_plans_stay(tmp_path):
    study = run(write_space(tmp_path), RunOptions(out=tmp_path / "study", executor="serial"))
    own = tmp_path / "study" / "plans" / "notes.json"
    own.write_text("{}")
    directory = StudyDirectory(tmp_path / "study")
    parameters = directory.read_header().parameters
    directory.write_tables(study.result, parameters)
    assert own.exists()
    shutil.rmtree(own.parent)
    own.parent.symlink_to(tmp_path)
    with pytest.raises(Exception, match="is a link"):
        directory.write_tables(study.result, parameters)
