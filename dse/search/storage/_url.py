"""URLs of databases, and errors of databases with the next step.

A URL may hold a password. It is used for connecting only; files and messages have stars in its
place.
"""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from dse.errors import ConfigError, OptionalDependencyError, StudyError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

#: Driver of each kind of database unless the URL names another, as `postgresql+psycopg2://`.
_DRIVERS = {
    "postgresql": "postgresql+psycopg",
    "postgres": "postgresql+psycopg",
    "mysql": "mysql+pymysql",
    "mariadb": "mariadb+pymysql",
    "sqlite": "sqlite",
}

#: Extra of dse that brings the driver.
_EXTRAS = {"postgresql": "postgresql", "mysql": "mysql", "mariadb": "mysql"}

_FORMS = "postgresql://user@host/database, mysql://user@host/database or sqlite:///file.db"

_STARS = "***"

#: Drivers do not print passwords; replacing shorter secrets would garble their messages.
_SHORTEST_SECRET = 4

#: Parts of drivers' messages, and the next step.
_STEPS = (
    (
        ("password", "access denied", "authentication"),
        "check user and password (PGPASSWORD and ~/.pgpass count too, for PostgreSQL)",
    ),
    (("does not exist", "unknown database"), "create the database first, or check its name"),
    (("unable to open",), "the folder of the file must exist and be writable"),
    (("readonly", "read-only", "permission denied"), "the user needs the right to write there"),
    (("locked",), "another program keeps it locked; end that one, or use PostgreSQL or MySQL"),
    (("not a database",), "name another file"),
)

#: Seconds until a server that does not answer counts as unreachable.
_CONNECT_TIMEOUT_S = 15

#: Seconds that a writer of a SQLite file waits for the others.
_SQLITE_TIMEOUT_S = 60


@dataclass(frozen=True, slots=True)
class StorageUrl:
    """Where a database is.

    Attributes:
        kind: ``postgresql``, ``mysql``, ``mariadb`` or ``sqlite``.
        full: The URL with driver and password, for connecting.
        shown: The URL as the user gave it, without password.
        secrets: Texts that must not be shown.
        connect_settings: What the driver is given besides the URL.
        default_driver: Whether the URL leaves the choice of the driver to dse.
    """

    kind: str
    full: str = field(repr=False)
    shown: str
    secrets: tuple[str, ...] = field(repr=False)
    connect_settings: Mapping[str, str | int] = field(repr=False)
    default_driver: bool = True

    @property
    def extra(self) -> str:
        """Extra of dse that brings the driver; empty where Python has it."""
        return _EXTRAS.get(self.kind, "")

    def without_secrets(self, text: str) -> str:
        """Returns a text with stars in place of passwords."""
        for secret in self.secrets:
            text = text.replace(secret, _STARS)
        return text


def parse_storage_url(text: str) -> StorageUrl:
    """Reads the URL of a database.

    Args:
        text: As `postgresql://user:password@host:port/database`.

    Raises:
        ConfigError: It is no URL, or of a database that is not supported.
    """
    from sqlalchemy.engine import make_url
    from sqlalchemy.exc import ArgumentError

    scheme, separator, _ = text.partition("://")
    kind, _, driver = scheme.partition("+")
    if not separator or kind not in _DRIVERS:
        # It may hold a password.
        found = f"`{scheme}://…`" if separator and scheme.replace("+", "").isalnum() else "no URL"
        raise ConfigError(f"--storage: expected {_FORMS}; found {found}")
    try:
        url = make_url(text)
        url = url.set(drivername=scheme if driver else _DRIVERS[kind])
    except (ArgumentError, ValueError):
        raise ConfigError(
            f"--storage {kind}://…: not a URL; expected {_FORMS}, with the signs @ : / % of a "
            "password written as %40 %3A %2F %25"
        ) from None
    kind = url.get_backend_name()
    if not url.database or url.database == ":memory:":
        if kind == "sqlite":
            raise ConfigError(
                "--storage sqlite://: names no file, so nothing would be kept; expected "
                "sqlite:///file.db"
            )
        raise ConfigError(f"--storage {kind}://…: names no database; expected {_FORMS}")
    hidden = {name for name in url.query if "pass" in name.lower() or "pwd" in name.lower()}
    hidden = {name for name in hidden if "file" not in name.lower()}
    secrets = [str(url.password or "")]
    secrets += [str(url.query[name]) for name in hidden]
    shown = url.set(
        drivername=scheme, password=_STARS if url.password else None
    ).update_query_dict(dict.fromkeys(hidden, _STARS))
    return StorageUrl(
        kind=kind,
        full=url.render_as_string(hide_password=False),
        shown=shown.render_as_string(hide_password=True).replace("%2A%2A%2A", _STARS),
        secrets=tuple(secret for secret in secrets if len(secret) >= _SHORTEST_SECRET),
        connect_settings=_connect_settings(kind, url.drivername, set(url.query)),
        default_driver=not driver,
    )


def _connect_settings(kind: str, driver: str, given: set[str]) -> dict[str, str | int]:
    if kind == "sqlite":
        return {"timeout": _SQLITE_TIMEOUT_S}
    # Every driver has its own names for its settings.
    known = driver.partition("+")[2] in {"psycopg", "psycopg2", "pymysql", "mysqldb"}
    if not known or "connect_timeout" in given:
        return {}
    return {"connect_timeout": _CONNECT_TIMEOUT_S}


@contextmanager
def database_errors(url: StorageUrl, doing: str) -> Iterator[None]:
    """Turns errors of the database, its driver and Optuna into errors of dse.

    Args:
        url: Where the database is.
        doing: What is tried, as ``reach``.

    Raises:
        OptionalDependencyError: The driver is not installed.
        StudyError: Anything else; with what the database says and what to do.
    """
    from optuna.exceptions import StorageInternalError
    from sqlalchemy import exc

    try:
        yield
    except (ImportError, exc.NoSuchModuleError) as error:
        missing = getattr(error, "name", None) or str(error)
        step = f"pip install '.[{url.extra}]' in the project's folder"
        if not url.default_driver:
            step = f"install it, or leave the driver out of the URL and {step}"
        raise OptionalDependencyError(
            f"--storage {url.shown}: its driver is not installed ({missing}); {step}"
        ) from None
    except StorageInternalError as error:
        raise _study_error(url, doing, error.__cause__ or error) from None
    except (exc.SQLAlchemyError, OSError) as error:
        raise _study_error(url, doing, error) from None


def _study_error(url: StorageUrl, doing: str, error: BaseException) -> StudyError:
    said = str(getattr(error, "orig", None) or error).strip() or type(error).__name__
    lines = [line.strip() for line in said.splitlines() if line.strip()]
    words = url.without_secrets(lines[0])
    lowered = said.lower()
    steps = [step for signs, step in _STEPS if any(sign in lowered for sign in signs)]
    if not steps:
        steps = [
            "check host, port and whether the server runs"
            if doing == "reach"
            else "what is finished is kept there; give the same command again, with --resume for "
            "the same folder"
        ]
    return StudyError(f"cannot {doing} {url.shown}: {words}; {steps[0]}")
