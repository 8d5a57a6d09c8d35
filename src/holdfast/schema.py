"""Which tables an application needs in its database, and which of them are missing."""

from __future__ import annotations

import logging
import os

from sqlalchemy.engine import Engine

from .core.config import safe_url
from .core.errors import ConfigurationError
from .database.migrations import Difference, Migration, difference
from .jobs.schema import MIGRATIONS as JOB_MIGRATIONS
from .lease.schema import MIGRATIONS as STATE_MIGRATIONS
from .outbox.schema import MIGRATIONS as OUTBOX_MIGRATIONS
from .records.schema import MIGRATIONS as RECORD_MIGRATIONS

MIGRATIONS = (*STATE_MIGRATIONS, *RECORD_MIGRATIONS, *JOB_MIGRATIONS, *OUTBOX_MIGRATIONS)
_log = logging.getLogger("holdfast.worker")
_HAS_JOBS = ("postgresql", "mysql", "mariadb", "sqlite")


def wanted_migrations(
    dialect_name: str, *, has_state: bool, has_queue: bool, has_outbox: bool
) -> tuple[Migration, ...]:
    """Return the migrations of what is kept in the database; an application with its state there has everything."""
    state = STATE_MIGRATIONS if has_state else ()
    if dialect_name not in _HAS_JOBS:
        return state
    return (
        *state,
        *(RECORD_MIGRATIONS if has_state or has_queue or has_outbox else ()),
        *(JOB_MIGRATIONS if has_state or has_queue else ()),
        *(OUTBOX_MIGRATIONS if has_state or has_outbox else ()),
    )


def has_records(migrations: tuple[Migration, ...]) -> bool:
    """Return whether dead letters, a history and an audit are among the tables."""
    return any(step in RECORD_MIGRATIONS for step in migrations)


def has_queue(migrations: tuple[Migration, ...]) -> bool:
    """Return whether the queue is among the tables."""
    return any(step in JOB_MIGRATIONS for step in migrations)


def compared_tables(database: Engine, wanted: tuple[Migration, ...]) -> Difference:
    """Return which migrations were not applied yet, and which were that this version does not know.

    Raises:
        ConfigurationError: there is no such file, or the tables are those of a version too new for this one.
    """
    if not wanted:
        return Difference([], [], [])
    path = database.url.database
    if database.dialect.name == "sqlite" and path and not path.startswith("file:") and not os.path.exists(path):
        raise ConfigurationError(
            f"There is no SQLite file '{path}'. Check the path, or create it with 'holdfast migrate'."
        )
    found = difference(database, wanted, MIGRATIONS)
    if found.too_new:
        raise ConfigurationError(
            f"The tables in {safe_url(database.url)} are those of a newer Holdfast, and since "
            f"{', '.join(found.too_new)} this one cannot work with them. Upgrade it."
        )
    return found


def require_tables(database: Engine, wanted: tuple[Migration, ...]) -> None:
    """Refuse tables that are missing or out of date; note those of a newer version, with which this one works.

    Raises:
        ConfigurationError: what to run.
    """
    found, where = compared_tables(database, wanted), safe_url(database.url)
    if found.missing:
        raise ConfigurationError(
            f"The tables of Holdfast are missing or out of date in {where} ({', '.join(found.missing)}). Run 'holdfast "
            "migrate', or call hf.migrate()."
        )
    if found.newer:
        newer = ", ".join(found.newer)
        _log.info("The tables in %s are those of a newer Holdfast (%s), and this one can work on them", where, newer)
