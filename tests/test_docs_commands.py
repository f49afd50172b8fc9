"""Commands and Python code on the pages of the documentation are valid."""

from __future__ import annotations

import re
import shlex

import pytest
import typer.main

from dse.cli._app import app
from tests.conftest import ROOT
from tests.documents_of_users import blocks_of
from tests.test_docs_links import PAGES, name

COMMANDS = typer.main.get_command(app)

#: Prompt, `time` and variables before a command.
_BEFORE = re.compile(r"^(?:\$\s+|time\s+|[A-Z_]+=\S*\s+)*")


def lines_of(block):
    """Yields the number and text of each line of a shell block, continued ones as one."""
    number, text = block.line, ""
    for offset, line in enumerate(block.text.splitlines(), start=1):
        if not text:
            number = block.line + offset
        text += line.removesuffix("\\")
        if not line.endswith("\\"):
            yield number, text
            text = ""


def commands_of(text):
    """Yields the arguments of each command of a shell line."""
    words = []
    # Repeated punctuation is one word; a # starts a comment.
    reader = shlex.shlex(text, posix=True, punctuation_chars="&|;<>")
    reader.whitespace_split = True
    for word in [*reader, ";"]:
        if set(word) <= set("&|;"):
            if words:
                yield words
            words = []
        else:
            words.append(word)


def dse_lines():
    for page in PAGES:
        for block in blocks_of(page):
            if block.language != "sh":
                continue
            for number, line in lines_of(block):
                for words in commands_of(_BEFORE.sub("", line)):
                    if words[0] == "dse":
                        yield pytest.param(words[1:], id=f"{name(page)}:{number}")


LINES = list(dse_lines())


def resolve(arguments):
    """Returns a command, its arguments, and the context of its group."""
    command, words = COMMANDS, list(arguments)
    context = command.make_context("dse", ["--help-is-not-asked-for"], resilient_parsing=True)
    while hasattr(command, "commands"):
        assert words, "a command is missing"
        assert words[0] in command.commands, f"there is no command `{words[0]}`"
        command = command.commands[words.pop(0)]
    return command, words, context


def check(arguments):
    """Parses a command line as `dse` does, without running it."""
    command, words, context = resolve(arguments)
    # Redirected input and output belong to the shell.
    cut = next((index for index, word in enumerate(words) if word[0] in "<>"), len(words))
    command.make_context(command.name, words[:cut], parent=context)


@pytest.mark.parametrize("arguments", LINES)
def test_every_command_line_can_be_read(arguments):
    check(arguments)


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("predikt dlrm_tiny", "no command `predikt`"),
        ("trace", "a command is missing"),
        ("trace inform x", "no command `inform`"),
        ("report study --plann x", "--plann"),
        ("run space --trials two", "'--trials'"),
        ("run space --trials 0", "'--trials'"),
        ("list model", "'model'"),
        ("report", "STUDY_DIR"),
        ("report one two", "two"),
        ("rank a --model m --platform p", "--global-batch-size"),
    ],
)
def test_wrong_command_lines_are_found(line, words):
    with pytest.raises(Exception, match=r".") as raised:
        check(shlex.split(line))
    problem = raised.value
    message = problem.format_message() if hasattr(problem, "format_message") else str(problem)
    assert words in message


def spans():
    """Yields commands in the running text, which may be incomplete."""
    for page in PAGES:
        text = re.sub(r"^```.*?^```", "", page.read_text(), flags=re.MULTILINE | re.DOTALL)
        for span in re.findall(r"`(dse [a-z][^`]*)`", text):
            yield pytest.param(" ".join(span.split()), id=f"{name(page)}-{span[:40]}")


@pytest.mark.parametrize("span", list(spans()))
def test_commands_in_the_text_exist(span):
    # `dse schema a|b` names several.
    words = [word for word in re.split(r"[\s=]+", span)[1:] if word not in ("…", "...")]
    if words[0] not in COMMANDS.commands and set(words[0]) & set("|,"):
        words = words[0].replace(",", "|").split("|")[:1]
    command, rest = COMMANDS, list(words)
    while hasattr(command, "commands") and rest:
        assert rest[0] in command.commands, f"there is no command `{rest[0]}`"
        command = command.commands[rest.pop(0)]
    known = {option for one in command.params for option in (*one.opts, *one.secondary_opts)}
    for word in rest[: rest.index("--")] if "--" in rest else rest:
        if word.startswith("--"):
            assert word in known | {"--help"}, f"`dse {command.name}` has no option {word}"


#: Options of other programs that pages mention, without those of benchmarks.
_ELSEWHERE = {
    *("--help", "--no-deps", "--spec"),
    *("--headless", "--print-to-pdf", "--nproc-per-node", "--rotary-base"),
    *("--overlap-moe-expert-parallel-comm", "--add-qkv-bias"),
}


def options_of(command):
    """Yields the options of a command and of those below it."""
    for one in command.params:
        yield from (*one.opts, *one.secondary_opts)
    for below in getattr(command, "commands", {}).values():
        yield from options_of(below)


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_options_in_the_text_exist(page):
    scripts = "".join(path.read_text() for path in (ROOT / "benchmarks").glob("*.py"))
    text = re.sub(r"^```.*?^```", "", page.read_text(), flags=re.MULTILINE | re.DOTALL)
    named = set(re.findall(r"(?<![\w-])--[a-z][a-z-]+", text))
    unknown = named - set(options_of(COMMANDS)) - _ELSEWHERE
    assert {option for option in unknown if option not in scripts} == set()


def test_command_lines_are_found():
    pages = {param.id.partition(":")[0] for param in LINES}
    assert len(LINES) >= 50
    assert {"README.md", "docs/tutorial.md", "docs/validate.md"} <= pages
    assert list(commands_of("dse a --b 1 && dse c | head # dse d")) == [
        ["dse", "a", "--b", "1"],
        ["dse", "c"],
        ["head"],
    ]


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_python_on_pages_can_be_read(page):
    for block in blocks_of(page):
        if block.language == "python":
            compile(block.text, f"{name(page)}:{block.line}", "exec")
