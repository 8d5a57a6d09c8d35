"""The queue's store for a database."""

from __future__ import annotations

from collections.abc import Callable

from sqlalchemy.engine import Engine

from ..core.config import safe_url
from ..core.errors import ConfigurationError
from .stores.base import SqlJobStore
from .stores.mysql import MysqlJobStore
from .stores.postgres import PostgresJobStore
from .stores.sqlite import SqliteJobStore

_STORES: dict[str, type[SqlJobStore]] = {
    "postgresql": PostgresJobStore,
    "mysql": MysqlJobStore,
    "mariadb": MysqlJobStore,
    "sqlite": SqliteJobStore,
}


def job_store(
    engine: Engine,
    *,
    ahead_seconds: Callable[[], float] = lambda: 0.0,
    application: str | None = None,
    listening: Engine | None = None,
) -> SqlJobStore:
    """Return the queue in this database, as an application sees it; None where nothing is declared through it.

    ``listening`` is where news is listened for; the same engine when left out.

    Raises:
        ConfigurationError: jobs cannot be kept in such a database.
    """
    store = _STORES.get(engine.dialect.name)
    if store is None:
        raise ConfigurationError(
            f"Jobs cannot be kept in {safe_url(engine.url)}. Use PostgreSQL, MariaDB, MySQL or SQLite."
        )
    made = store(engine, ahead_seconds=ahead_seconds, application=application)
    made.listening = listening or engine
    return made
