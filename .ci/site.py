"""Makes the pages of docs/ a site: files outside of docs/ that they link to come along.

On a forge a page links to `../examples/criteo/README.md`; the site has that file as
`examples/criteo/README.html`, and anything that is not a page as it is.
"""

from __future__ import annotations

import os
from pathlib import Path
import re
from typing import TYPE_CHECKING
from urllib.parse import unquote

from mkdocs.structure.files import File, Files

if TYPE_CHECKING:
    from mkdocs.config.defaults import MkDocsConfig
    from mkdocs.structure.pages import Page

ROOT = Path(__file__).resolve().parent.parent
DOCS = ROOT / "docs"

_CODE = re.compile(r"^```.*?^```\s*?$|`[^`\n]*`", re.MULTILINE | re.DOTALL)
_LINK = re.compile(r"(\]\()([^)\s#]+)((?:#[^)\s]*)?\))")
_REFERENCE = re.compile(r"^<!-- (::: \S+) -->$", re.MULTILINE)
_ROLE = re.compile(r":(?:attr|class|data|func|meth|mod):(?=<code>)")


def _outside_code(text: str, change: re.Pattern[str], into: object) -> str:
    """Replaces matches that are in no block and no span of code."""
    pieces, place = [], 0
    for code in _CODE.finditer(text):
        pieces += [change.sub(into, text[place : code.start()]), code.group()]
        place = code.end()
    return "".join([*pieces, change.sub(into, text[place:])])


def _place(path: Path) -> str:
    """Returns where the site has a file of the repository."""
    return str(path.relative_to(DOCS if path.is_relative_to(DOCS) else ROOT))


def _targets(page: Path) -> list[Path]:
    """Returns the files of the repository that a page links to."""
    text = _CODE.sub("", page.read_text())
    found = (page.parent / unquote(link[2]) for link in _LINK.finditer(text) if ":" not in link[2])
    return [path.resolve() for path in found if path.resolve().is_file()]


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Adds the files outside of docs/ that pages link to, and those that these link to."""
    todo = [Path(file.abs_src_path) for file in files.documentation_pages()]
    known = {ROOT / "README.md"}
    while todo:
        for target in _targets(todo.pop()):
            if target.is_relative_to(DOCS) or target in known:
                continue
            known.add(target)
            file = File.generated(config, _place(target), abs_src_path=str(target))
            files.append(file)
            if file.is_documentation_page():
                todo.append(target)
    return files


def on_page_markdown(markdown: str, page: Page, **_: object) -> str:
    """Turns links between files of the repository into links of the site."""
    source = Path(page.file.abs_src_path)

    def moved(link: re.Match[str]) -> str:
        path = (source.parent / unquote(link[2])).resolve()
        if ":" in link[2] or not path.is_file():
            return link.group()
        here = os.path.dirname(page.file.src_uri)
        return f"{link[1]}{os.path.relpath(_place(path), here or '.')}{link[3]}"

    # Where the API reference stands is a remark, so that forges show nothing.
    return _REFERENCE.sub(r"\1", _outside_code(markdown, _LINK, moved))


def on_page_content(html: str, **_: object) -> str:
    """Shows references of docstrings such as :attr:`name` as plain code."""
    return _ROLE.sub("", html)
