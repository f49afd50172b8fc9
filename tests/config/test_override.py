"""Overrides of plain documents."""

from __future__ import annotations

import pytest

from dse.config import (
    Bytes,
    Document,
    Fraction,
    Seconds,
    StrictModel,
    UnitKind,
    check_data,
    exact_quantity,
    override,
    parse_document,
    parse_quantity,
)
from dse.errors import ConfigError, UnknownNameError


class Disk(StrictModel):
    size: Bytes
    delay: Seconds
    spare: Bytes | None = None


class Cache(StrictModel):
    size: Bytes
    source: str


class Store(Document):
    disks: dict[str, Disk]
    cache: Cache | None = None
    used: Fraction = 0.0
    heads: int = 2


STORE = parse_document(
    "schema_version: 1\ndisks:\n  a.b: {size: 1 GiB, delay: 3 ms}\n"
    "  c: {size: 2 GB, delay: 0.1 s, spare: 1 MB}\nused: 8 %\n",
    Store,
)
DATA = STORE.model_dump(mode="json")


def after(path, value, **options):
    return check_data(override(DATA, path, value, **options)[0], Store, file="store")


def test_what_is_dumped_reads_back():
    assert check_data(DATA, Store, file="store") == STORE
    for kind in UnitKind:
        assert parse_quantity(exact_quantity(0.1 + 0.2, kind), kind) == 0.1 + 0.2


def test_one_entry_or_all():
    assert after("disks.a.b.size", "5 GB").disks["a.b"].size == 5e9
    assert after("disks.a.b.size", "5 GB").disks["c"] == STORE.disks["c"]
    both = after("disks.delay", "-50%").disks
    assert [disk.delay for disk in both.values()] == [0.0015, 0.05]
    # Entries without the figure stay without it.
    changed, changes = override(DATA, "disks.spare", "*2")
    assert [(change.path, change.before, change.after) for change in changes] == [
        ("disks.c.spare", "976.6 KiB", "1.907 MiB")
    ]
    assert changed["disks"]["a.b"] == DATA["disks"]["a.b"]


def test_plain_numbers_and_missing_blocks():
    assert after("heads", "*1.5").heads == 3
    assert after("used", "*2").used == pytest.approx(0.16)
    assert after("cache.size", "1 kB", new_block={"source": "guess"}).cache.size == 1000
    with pytest.raises(ConfigError, match=r"cache\.source"):
        after("cache.size", "1 kB")


@pytest.mark.parametrize(
    ("path", "value", "error"),
    [
        ("disk.size", "1 GB", UnknownNameError),
        ("disks.d.size", "1 GB", UnknownNameError),
        ("disks.c.sise", "1 GB", UnknownNameError),
        ("heads.first", "1", UnknownNameError),
        ("cache.size", "+10%", ConfigError),
        ("disks.c", "+10%", ConfigError),
        ("heads", "-101%", ConfigError),
        ("heads", "2.5", ConfigError),
        ("used", "110 %", ConfigError),
        ("disks.c.size", "1 s", ConfigError),
    ],
)
def test_wrong_paths_and_values(path, value, error):
    with pytest.raises(error):
        after(path, value)


def test_the_original_stays():
    override(DATA, "disks.size", "*2")
    assert STORE.model_dump(mode="json") == DATA
