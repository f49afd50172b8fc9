from __future__ import annotations

from typing import ClassVar

import pytest

from dse.config import (
    Document,
    DocumentKind,
    find_document,
    load_document,
    parse_document,
    parse_json,
)
from dse.errors import ConfigError, UnknownNameError
from dse.model import ModelDocument
from dse.search.space import SpaceDocument
from dse.sharding._files import PlanDocument
from tests.conftest import SMALL_SPACE

MODEL = """\
schema_version: 1
kind: dlrm
name: m
source: test
dense_features: 4
bottom_mlp: [8]
interaction: {kind: dot}
top_mlp: [1]
optimizer: {dense: sgd, sparse: sgd}
global_batch_size: 64
tables:
  - {name: a, rows: 10, dim: 8}
"""


def problems(text: str, model=ModelDocument) -> list[str]:
    with pytest.raises(ConfigError) as caught:
        parse_document(text, model, file="f.yaml")
    return [str(problem) for problem in caught.value.diagnostics]


def test_a_good_document_loads():
    assert parse_document(MODEL, ModelDocument).to_model().tables[0].rows == 10


@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [
        (
            "rows: 10",
            "rows: -10",
            "f.yaml:12:21: tables[0].rows: expected at least 1, found `-10`",
        ),
        ("rows: 10", "rows: ten", "f.yaml:12:21: tables[0].rows: expected a whole number, found"),
        ("rows: 10", "rows: 2.5", "f.yaml:12:21: tables[0].rows: expected a whole number"),
        (
            "rows: 10",
            "rows: true",
            "f.yaml:12:21: tables[0].rows: expected a number, found the sw",
        ),
        # Numbers of base 8 and 60, as YAML 1.1 has them: 8 and 90.
        ("rows: 10", "rows: 010", "f.yaml:12:21: tables[0].rows: cannot read `010`"),
        ("rows: 10", "rows: 1:30", "f.yaml:12:21: tables[0].rows: cannot read `1:30`"),
        ("rows: 10", "row: 10", "f.yaml:12:15: tables[0].row: unknown key; did you mean `rows`?"),
        ("rows: 10, ", "", "f.yaml:12:5: tables[0].rows: this field is missing"),
        ("kind: dot", "kind: dots", "f.yaml:7:21: interaction.kind: expected one of `dot`"),
        ("kind: dot", "kind: dots", "did you mean `dot`?"),
        ("dense: sgd", "dense: sdg", "did you mean `sgd`?"),
        ("schema_version: 1", "schema_version: 2", "f.yaml:1:17: schema_version: expected 1"),
        ("name: m", "name: no", "f.yaml:3:7: name: expected text, found the switch `false`"),
        ("source: test", "source: test\nsource: again", "f.yaml:5:1: source: the key `source` is"),
        ("source: test", "source: !!python/object:os.system {}", "is not allowed"),
        ("source: test", "1: test", "`1` must be text"),
        ("[8]", "[9]", "dot interaction needs equal widths"),
        ("top_mlp: [1]", "top_mlp: [1", "f.yaml:9:10: not valid YAML"),
    ],
)
def test_each_problem_has_its_place(old, new, expected):
    found = problems(MODEL.replace(old, new))
    assert any(expected in line for line in found), found


def test_all_problems_come_at_once_in_file_order():
    text = MODEL.replace("rows: 10", "rows: 0").replace("dense_features: 4", "dense_features: x")
    found = problems(text.replace("global_batch_size", "global_batch"))
    assert [line.split(":")[1] for line in found] == ["1", "5", "10", "12"]


class Small(Document):
    """A document.

    Attributes:
        size: How large it is. Larger ones take longer.
        sizes: MLPs of it.
    """

    size: int
    sizes: list[int]
    other: int


def test_a_missing_field_is_explained_by_what_its_class_says():
    assert problems("schema_version: 1\n", Small) == [
        "f.yaml:1:1: other: this field is missing",
        "f.yaml:1:1: size: this field is missing (how large it is)",
        "f.yaml:1:1: sizes: this field is missing (MLPs of it)",
    ]


class Nested(Document):
    """A document with a block in a list."""

    blocks: list[Small]


def test_what_stands_in_place_of_a_block_is_told_the_keys_it_lacks():
    (line,) = problems("schema_version: 1\nblocks: [large]\n", Nested)
    assert line.startswith("f.yaml:2:10: blocks[0]: ")
    assert all(f"`{key}`" in line for key in ("size", "sizes", "other", "large"))


class Named(Document):
    """A document that says what it is called."""

    called: ClassVar = "a thing"

    kind: str
    source: str
    tables: int = 0


@pytest.mark.parametrize(
    ("document", "lines"),
    [
        (
            Named,
            ["f.yaml:1:1: this is a platform, not a thing; give it where a platform is named"],
        ),
        # Kinds of other packages may have any keys.
        (Small, None),
    ],
)
def test_a_file_of_another_kind_is_recognised_by_its_keys(document, lines):
    text = "schema_version: 1\ndevice: 1\nnode: 2\nlinks: 3\n"
    found = problems(text, document)
    assert found == lines if lines else len(found) > 1


def test_a_wrong_file_of_the_right_kind_keeps_its_problems():
    text = "schema_version: 1\nkind: m\nsource: s\ntables: x\nother: 1\n"
    assert len(problems(text, Named)) == 2


def test_the_empty_file_and_plain_text():
    assert problems("") == ["f.yaml:1:1: the file is empty"]
    assert "expected a block of keys and values" in problems("just words")[0]


def test_nesting_is_bounded():
    assert any("levels deep" in line for line in problems("a: " + "[" * 100 + "]" * 100))


def test_merge_keys_work_but_are_checked():
    text = MODEL.replace(
        "  - {name: a, rows: 10, dim: 8}",
        "  - &t {name: a, rows: 10, dim: 8}\n  - {<<: *t, name: b}",
    )
    tables = parse_document(text, ModelDocument).to_model().tables
    assert [(table.name, table.rows) for table in tables] == [("a", 10), ("b", 10)]


def test_relative_paths_of_documents_count_from_the_current_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ConfigError, match="current folder"):
        find_document(DocumentKind.MODEL, "mine.yaml")
    (tmp_path / "mine.yaml").write_text(MODEL)
    assert find_document(DocumentKind.MODEL, "mine.yaml").samefile(tmp_path / "mine.yaml")


def test_units_are_checked_in_place():
    text = SMALL_SPACE + "networks:\n  n: {kind: ib, nics: 1, bandwidth: 25 GB, latency: 5 us}\n"
    assert problems(text, SpaceDocument) == [
        "f.yaml:21:37: networks.n.bandwidth: expected a bandwidth such as `3.35 TB/s`, found "
        "`25 GB`, which is a size; did you mean `GB/s`?"
    ]


def test_missing_and_unreadable_files(tmp_path):
    with pytest.raises(ConfigError, match="no such file"):
        load_document(tmp_path / "none.yaml", ModelDocument)
    with pytest.raises(ConfigError, match="folder"):
        load_document(tmp_path, ModelDocument)
    binary = tmp_path / "binary.yaml"
    binary.write_bytes(b"name: \xff\xfe")
    with pytest.raises(ConfigError, match="not UTF-8"):
        load_document(binary, ModelDocument)


def test_an_integer_of_thousands_of_digits_is_an_error_not_a_traceback():
    with pytest.raises(ConfigError, match="5000 digits, more than the limit of 300"):
        parse_json('{"schema_version": ' + "9" * 5000 + "}", PlanDocument)


def test_json_documents():
    with pytest.raises(ConfigError, match=r"p\.json:1:\d+: not valid JSON"):
        parse_json("{", PlanDocument, file="p.json")
    bad = '{"schema_version": 1, "world_size": 0, "tables": {}}'
    with pytest.raises(
        ConfigError, match=r"p\.json:1:37: world_size: expected at least 1"
    ) as found:
        parse_json(bad, PlanDocument, file="p.json")
    (problem,) = [one for one in found.value.diagnostics if one.field == "world_size"]
    assert (problem.line, problem.column) == (1, bad.index(" 0,") + 2)


def test_catalog():
    assert find_document(DocumentKind.PLATFORM, "h100_sxm").name == "h100_sxm.yaml"
    with pytest.raises(UnknownNameError, match="did you mean `h100_sxm`"):
        find_document(DocumentKind.PLATFORM, "h100_sxn")
    with pytest.raises(ConfigError, match="no such file; the built-in one is called `h100_sxm`"):
        find_document(DocumentKind.PLATFORM, "nowhere/h100_sxm.yaml")
    with pytest.raises(ConfigError):
        find_document(DocumentKind.PLATFORM, "../platforms/none.yaml")
