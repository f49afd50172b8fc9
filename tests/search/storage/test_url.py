"""URLs of databases, and what is said when one cannot be used."""

from __future__ import annotations

import sys

from hypothesis import given
from hypothesis import strategies as st
from optuna.exceptions import StorageInternalError
import pytest
from sqlalchemy import exc
from sqlalchemy.engine import make_url

from dse.errors import ConfigError, DseError, OptionalDependencyError, StudyError
from dse.search import RunOptions, run
from dse.search.storage._database import pieces, whole
from dse.search.storage._url import database_errors, parse_storage_url
from tests.search.databases import PASSWORD


@pytest.mark.parametrize(
    ("text", "kind", "full"),
    [
        ("postgresql://me@host/db", "postgresql", "postgresql+psycopg://me@host/db"),
        ("postgres://me@host:99/db", "postgresql", "postgresql+psycopg://me@host:99/db"),
        ("postgresql+psycopg2://me@host/db", "postgresql", "postgresql+psycopg2://me@host/db"),
        ("mysql://me@host/db", "mysql", "mysql+pymysql://me@host/db"),
        ("mariadb://me@host/db", "mariadb", "mariadb+pymysql://me@host/db"),
        ("sqlite:///some/file.db", "sqlite", "sqlite:///some/file.db"),
    ],
)
def test_kinds_and_their_drivers(text, kind, full):
    url = parse_storage_url(text)
    assert (url.kind, url.full, url.shown) == (kind, full, text)
    assert url.default_driver == ("psycopg2" not in text)


def test_passwords_are_not_shown():
    text = "postgresql://me:s3cret%40@host:5432/db?sslmode=require&sslpassword=hid%2Fden"
    url = parse_storage_url(text)
    assert url.shown == "postgresql://me:***@host:5432/db?sslmode=require&sslpassword=***"
    assert "s3cret" in url.full
    assert make_url(url.full).password == "s3cret@"
    assert url.without_secrets("told s3cret@ and hid/den") == "told *** and ***"
    assert "s3cret" not in repr(url)
    assert "s3cret" not in repr(RunOptions(storage=text))


@given(st.text(min_size=4, max_size=20))
def test_no_password_is_shown_whatever_it_is(password):
    url = make_url("postgresql://me@host/db").set(password=password)
    shown = parse_storage_url(url.render_as_string(hide_password=False)).shown
    assert shown == "postgresql://me:***@host/db"


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("oracle://me:s3cret@host/db", "found `oracle://…`"),
        ("me:s3cret@host", "found no URL"),
        ("s3cret@x://host", "found no URL"),
        ("postgresql://me:s3cret@host", "names no database"),
        ("postgresql://me:s3cret@host:port/db", "not a URL"),
        ("sqlite://", "names no file"),
        ("sqlite:///:memory:", "names no file"),
    ],
)
def test_what_is_no_url_of_a_database(small_space, tmp_path, text, words):
    with pytest.raises(ConfigError, match=words) as caught:
        run(small_space, RunOptions(out=tmp_path / "a", storage=text))
    assert "s3cret" not in str(caught.value)
    assert not (tmp_path / "a").exists()


# --- what goes wrong ----------------------------------------------------------------------


def refusal(space, folder, text):
    with pytest.raises(DseError) as caught:
        run(space, RunOptions(out=folder / "a", storage=text))
    assert not (folder / "a").exists()
    return caught.value


def test_a_server_that_is_not_there(small_space, tmp_path):
    error = refusal(small_space, tmp_path, "postgresql://me:s3cret@127.0.0.1:1/db")
    assert isinstance(error, StudyError)
    assert "cannot reach postgresql://me:***@127.0.0.1:1/db" in str(error)
    assert "check host, port and whether the server runs" in str(error)
    assert "s3cret" not in str(error)


def test_a_wrong_password_and_a_missing_database(small_space, tmp_path, postgres_server):
    error = refusal(small_space, tmp_path, postgres_server.url("postgres", "wr0ng-one"))
    assert "check user and password" in str(error)
    assert "wr0ng-one" not in str(error)
    error = refusal(small_space, tmp_path, postgres_server.url("nowhere"))
    assert "create the database first" in str(error)
    assert PASSWORD not in str(error)


def test_files_that_cannot_be_databases(small_space, tmp_path):
    error = refusal(small_space, tmp_path, "sqlite:////nowhere/at/all.db")
    assert "the folder of the file must exist" in str(error)
    error = refusal(small_space, tmp_path, f"sqlite:///{small_space}")
    assert "name another file" in str(error)
    assert small_space.read_text().startswith("schema_version")


@pytest.mark.parametrize(
    ("text", "module", "words"),
    [
        ("postgresql://me@127.0.0.1:1/db", "psycopg", r"psycopg.*pip install '\.\[postgresql\]'"),
        ("mysql://me@127.0.0.1:1/db", "pymysql", r"pymysql.*pip install '\.\[mysql\]'"),
        ("mysql+abacus://me@127.0.0.1:1/db", "", r"abacus.*leave the driver out"),
    ],
)
def test_missing_drivers(small_space, tmp_path, monkeypatch, text, module, words):
    if module:
        monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(OptionalDependencyError, match=words):
        run(small_space, RunOptions(out=tmp_path / "a", storage=text))


def test_a_connection_that_is_lost():
    url = parse_storage_url("postgresql://me:s3cret@host/db")
    lost = exc.OperationalError("SELECT 1", None, RuntimeError("gone: s3cret\nand more"))
    wrapped = StorageInternalError("it happens")
    wrapped.__cause__ = lost
    for error in (lost, wrapped):
        with pytest.raises(StudyError) as caught, database_errors(url, "write to"):
            raise error
        assert str(caught.value) == (
            "cannot write to postgresql://me:***@host/db: gone: ***; what is finished is kept "
            "there; give the same command again, with --resume for the same folder"
        )
        assert caught.value.__cause__ is None


# --- long values --------------------------------------------------------------------------


def test_long_values_are_cut_into_pieces():
    value = {"text": 'a "quoted" text, ' * 40, "numbers": [1, 2.5, None, True]}
    held = pieces("record", value, limit=100)
    assert len(held) > 5
    assert list(held)[-1] == "record"
    assert whole(held, "record") == value
    assert pieces("record", value) == {"record": value}
    assert whole({}, "record") is None
    del held["record.3"]
    with pytest.raises(ValueError, match="a piece of `record` is missing"):
        whole(held, "record")


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
)


@given(st.dictionaries(st.text(), JSON), st.integers(1, 30))
def test_pieces_make_the_whole(value, limit):
    if set(value) == {"pieces"}:
        return
    assert whole(pieces("key", value, limit), "key") == value
