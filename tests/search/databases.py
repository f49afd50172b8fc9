"""A PostgreSQL of our own for tests: a fresh one in a temporary folder, gone afterwards."""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import dataclass
from itertools import count
import os
from pathlib import Path
import pwd
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

    import pytest

USER = "explorer"
PASSWORD = "open-sesame"

INITDB_SETTINGS = ("-A", "scram-sha-256", "-E", "UTF8", "--locale=C", "--no-sync")
SERVER_SETTINGS = ("-c", "listen_addresses=127.0.0.1", "-c", "fsync=off")


class NoPostgresError(Exception):
    """There is no PostgreSQL to start here; says why."""


@dataclass(frozen=True)
class Postgres:
    """A running server."""

    port: int

    def url(self, database: str, password: str = PASSWORD) -> str:
        return f"postgresql://{USER}:{password}@127.0.0.1:{self.port}/{database}"

    def create(self, database: str) -> str:
        """Creates a database and returns its URL."""
        import psycopg

        with psycopg.connect(self.url("postgres"), autocommit=True) as connection:
            connection.execute(f'CREATE DATABASE "{database}"')
        return self.url(database)

    def cut(self, database: str, *, for_good: bool) -> None:
        """Ends all connections to a database, and allows new ones again or not."""
        import psycopg

        with psycopg.connect(self.url("postgres"), autocommit=True) as connection:
            allowed = "false" if for_good else "true"
            connection.execute(f'ALTER DATABASE "{database}" ALLOW_CONNECTIONS {allowed}')
            connection.execute(
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = %s",
                [database],
            )


@contextmanager
def postgres() -> Iterator[Postgres]:
    """Starts a server and stops it."""
    psycopg = _driver()
    initdb, server = _program("initdb"), _program("postgres")
    folder = Path(tempfile.mkdtemp(prefix="dse-postgres-"))
    try:
        as_user = _unprivileged(folder)
        secret = folder / "password"
        secret.write_text(PASSWORD)
        secret.chmod(0o644)
        data = folder / "data"
        made = subprocess.run(
            [*as_user, initdb, "-D", data, "-U", USER, *INITDB_SETTINGS, f"--pwfile={secret}"],
            capture_output=True,
            text=True,
            cwd=folder,
            check=False,
        )
        if made.returncode:
            raise NoPostgresError(f"initdb failed: {made.stderr.strip()}")
        port = _free_port()
        process = subprocess.Popen(
            [*as_user, server, "-D", data, "-p", str(port), "-k", folder, *SERVER_SETTINGS],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
            cwd=folder,
        )
        found = Postgres(port)
        try:
            deadline = time.monotonic() + 60
            while True:
                if process.poll() is not None:
                    raise NoPostgresError(f"postgres ended: {process.stderr.read().strip()}")
                try:
                    psycopg.connect(found.url("postgres"), connect_timeout=5).close()
                    break
                except psycopg.OperationalError:
                    if time.monotonic() > deadline:
                        raise
                    time.sleep(0.1)
            yield found
        finally:
            process.send_signal(signal.SIGINT)
            process.communicate(timeout=60)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _driver():
    try:
        import psycopg
    except ImportError:
        raise NoPostgresError("psycopg is not installed: pip install '.[postgresql]'") from None
    return psycopg


def _program(name: str) -> str:
    found = sorted(Path("/usr/lib/postgresql").glob(f"*/bin/{name}"))
    program = shutil.which(name) or (str(found[-1]) if found else "")
    if not program:
        raise NoPostgresError(f"there is no {name} on the PATH or below /usr/lib/postgresql")
    return program


def _unprivileged(folder: Path) -> list[str]:
    """Returns what a command has to start with, since PostgreSQL refuses to run as root."""
    if os.geteuid() != 0:
        return []
    setpriv = shutil.which("setpriv")
    if setpriv is None:
        raise NoPostgresError("PostgreSQL does not run as root, and there is no setpriv")
    for name in ("postgres", "nobody"):
        try:
            user = pwd.getpwnam(name)
        except KeyError:
            continue
        os.chown(folder, user.pw_uid, user.pw_gid)
        return [setpriv, f"--reuid={user.pw_uid}", f"--regid={user.pw_gid}", "--clear-groups"]
    raise NoPostgresError("PostgreSQL does not run as root, and there is no user for it")


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


_NUMBERS = count()


def database_of(kind: str, request: pytest.FixtureRequest, folder: Path) -> str:
    """Returns the URL of an empty database of a kind; skips where there is none."""
    if kind == "sqlite":
        return f"sqlite:///{folder}/shared.db"
    server: Postgres = request.getfixturevalue("postgres_server")
    return server.create(f"shared_{next(_NUMBERS)}")
