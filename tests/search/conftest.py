"""What several tests of the search share."""

from __future__ import annotations

import pytest

from tests.search.databases import NoPostgresError, postgres


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
