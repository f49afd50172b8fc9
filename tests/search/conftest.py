"""Fixtures of several tests of the search."""

from __future__ import annotations

import random

import pytest

from dse.search.execute import SerialExecutor
from tests.search.databases import NoPostgresError, postgres


@pytest.fixture
def out_of_order(monkeypatch):
    """Has runs from now on get their answers in another order, as from several workers.

    Half of what is known of the next round is answered in this one.
    """

    class OutOfOrder(SerialExecutor):
        left = ()

        def run(self, proposals, wanted=None, ahead=None):
            now = [*self.left, *proposals]
            later = ahead() if ahead is not None and now else ()
            self.left = later[1::2]
            records = list(super().run([*now, *later[::2]]))
            random.Random(len(records)).shuffle(records)
            yield from records

    def start():
        monkeypatch.setattr(
            "dse.search._run.make_executor", lambda name, context, *settings: OutOfOrder(context)
        )

    return start


@pytest.fixture(scope="session")
def postgres_server():
    """A PostgreSQL that is started for the tests."""
    server = postgres()
    try:
        found = server.__enter__()
    except NoPostgresError as error:
        pytest.skip(f"no PostgreSQL: {error}")
    yield found
    server.__exit__(None, None, None)
