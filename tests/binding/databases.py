"""A fresh database of one kind: what a test does to it from outside, and readers and writers on it."""

from __future__ import annotations

from typing import Any

from sqlalchemy import event, text
from sqlalchemy.engine import Engine

from holdfast import DbConfig, DbReader, DbWriter, EngineProvider

_POSTGRES_SCHEMAS = "SELECT nspname FROM pg_namespace WHERE nspname !~ '^pg_' AND nspname <> 'information_schema'"


class Database:
    """One database. ``provider`` is what the code under test shares; ``outside`` has sessions of its own."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.provider = EngineProvider()
        self._others = EngineProvider()
        self.engine = self.provider.get_engine(DbConfig(connection_url=url))
        self.outside: Engine = self._others.get_engine(DbConfig(connection_url=url))
        self.kind = self.engine.dialect.name
        if self.kind == "sqlite":
            event.listen(self.outside, "connect", lambda connection, _: connection.execute("PRAGMA synchronous = OFF"))

    def execute(self, statement: str, **values: object) -> None:
        """Run a statement as somebody else, committed."""
        with self.outside.begin() as connection:
            connection.execute(text(statement), values)

    def raw(self, statement: str) -> None:
        """Run a statement as it is, whatever signs are in it."""
        with self.outside.begin() as connection:
            connection.connection.cursor().execute(statement)

    def rows(self, statement: str, **values: object) -> list[tuple[Any, ...]]:
        """Return what somebody else sees."""
        with self.outside.connect() as connection:
            return [tuple(row) for row in connection.execute(text(statement), values)]

    def value(self, statement: str, **values: object) -> Any:
        """Return the one value somebody else sees."""
        return self.rows(statement, **values)[0][0]

    def reader(self, table: str | None = None, **settings: Any) -> DbReader:
        return DbReader(url=self.url, table=table, **{"engine_provider": self.provider} | settings)

    def writer(self, table: str, **settings: Any) -> DbWriter:
        return DbWriter(url=self.url, table=table, **{"engine_provider": self.provider} | settings)

    def quoted(self, name: str) -> str:
        """Return an identifier in quotes, for ``raw``."""
        quote = "`" if self.kind == "mysql" else '"'
        return quote + name.replace(quote, quote * 2) + quote

    @property
    def driver_error(self) -> type[Exception]:
        """Return what the driver itself raises."""
        found: type[Exception] = self.engine.dialect.loaded_dbapi.Error
        return found

    def empty(self) -> None:
        """Drop all that tests have made here."""
        if self.kind == "postgresql":
            for (schema,) in self.rows(_POSTGRES_SCHEMAS):
                self.raw(f"DROP SCHEMA {self.quoted(schema)} CASCADE")
            self.raw("CREATE SCHEMA public")
        if self.kind == "mysql":
            for (table,) in self.rows(
                "SELECT table_name FROM information_schema.tables WHERE table_schema = DATABASE()"
            ):
                self.raw(f"DROP TABLE {self.quoted(table)}")

    @property
    def connections_in_use(self) -> int:
        return int(self.engine.pool.checkedout())  # type: ignore[attr-defined]  # a QueuePool has it

    def close(self) -> None:
        self.provider.dispose_all()
        self._others.dispose_all()
