"""One table of items: writing to it, polling it, and telling what of it was lost."""

from __future__ import annotations

import json
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from sqlalchemy import text
from sqlalchemy.engine import Connection, Engine

from holdfast import DbConfig, EngineProvider, SqlAlchemySource
from holdfast.core.types import JsonObject
from holdfast.database.pools import writing
from tests.components.processes import wait_until
from tests.trigger.late_commits.kinds import SENTINEL, CursorKind

Change = tuple[int, int]
"""A row's key and its version."""

PAUSE_SECONDS = 0.005
LOOKS_SECONDS = 0.5


@dataclass(frozen=True, slots=True)
class Count:
    """What became of the changes."""

    rows: int
    delivered: int
    duplicated: int
    lost: frozenset[int]

    def __str__(self) -> str:
        return f"{self.rows} rows, {self.delivered} delivered, {self.duplicated} duplicated, {len(self.lost)} lost"


class Poller:
    """A reader that keeps nothing but its checkpoint, as JSON, and notes what it was given."""

    def __init__(self, source: SqlAlchemySource) -> None:
        self.source = source
        self.checkpoint: JsonObject = {}
        self.delivered: Counter[Change] = Counter()
        self.held_back_by: tuple[str, ...] = ()
        self.last_key = 0

    def poll(self, limit: int = 100) -> list[int]:
        """Fetch one page and return its keys."""
        found = self.source.fetch_changes(json.loads(json.dumps(self.checkpoint)), limit)
        changes = [(int(row["id"]), int(row["version"])) for row in found.records]  # type: ignore[call-overload]  # two INT columns
        self.delivered.update(changes)
        self.held_back_by = found.held_back_by
        if found.next_checkpoint is not None:
            self.checkpoint = found.next_checkpoint
        if changes:
            self.last_key = changes[-1][0]
        return [key for key, _ in changes]

    def poll_until(self, key: int) -> None:
        """Poll until a key has come."""
        wait_until(lambda: key in self.poll(), f"delivery of {key}; held back by {self.held_back_by}")


class Session:
    """A connection with a thread of its own, so that a statement which has to wait does not stop the test."""

    def __init__(self, connection: Connection) -> None:
        self.connection = connection
        self._thread = ThreadPoolExecutor(max_workers=1)

    def run(self, statement: str) -> None:
        """Execute a statement and wait for it."""
        self.start(statement).result(timeout=30)

    def start(self, statement: str) -> Future[None]:
        """Execute a statement in the background."""
        return self._thread.submit(self._execute, statement)

    def commit(self) -> None:
        self._thread.submit(self.connection.commit).result(timeout=30)

    def rollback(self) -> None:
        self._thread.submit(self.connection.rollback).result(timeout=30)

    def scalar(self, statement: str) -> Any:
        return self._thread.submit(lambda: self.connection.execute(text(statement)).scalar()).result(timeout=30)

    def close(self) -> None:
        self._thread.submit(self.connection.close).result(timeout=30)
        self._thread.shutdown()

    def vanish(self) -> None:
        """Close the connection to the server without ending the transaction."""
        self._thread.submit(self.connection.invalidate).result(timeout=30)

    def _execute(self, statement: str) -> None:
        self.connection.execute(text(statement))


class Items:
    """The table, freshly made in an empty database."""

    def __init__(self, kind: CursorKind, url: str) -> None:
        self.kind = kind
        self.url = url
        self.provider = EngineProvider()
        self.engine: Engine = self.provider.create_isolated_engine(_writer_config(url))
        self._sessions: list[Session] = []
        for statement in kind.statements:
            self.execute(statement)

    def close(self) -> None:
        for session in self._sessions:
            session.close()
        self.engine.dispose()
        self.provider.dispose_all()

    def execute(self, statement: str) -> None:
        """Execute a statement in a transaction of its own."""
        if statement.startswith("PRAGMA"):
            with self.engine.connect().execution_options(holdfast_begin="none") as connection:
                connection.execute(text(statement))
            return
        with writing(self.engine) as connection, connection.begin():
            connection.execute(text(statement))

    def scalar(self, statement: str) -> Any:
        with self.engine.connect() as connection:
            return connection.execute(text(statement)).scalar()

    def session(self, *, autocommit: bool = False) -> Session:
        """Open a session; unless it autocommits, its first statement opens a transaction."""
        connection = writing(self.engine)
        if autocommit:
            connection = connection.execution_options(isolation_level="AUTOCOMMIT")
        opened = Session(connection)
        self._sessions.append(opened)
        return opened

    def source(self, horizon: str | None = "auto", **options: Any) -> SqlAlchemySource:
        return SqlAlchemySource(
            db_config=DbConfig(connection_url=self.url, connect_args=_patience(self.url)),
            table="items",
            cursor_column=self.kind.cursor,
            pk_columns=["id"],
            horizon=horizon,
            engine_provider=self.provider,
            **options,
        )

    def poller(self, horizon: str | None = "auto", margin: float = 0.0) -> Poller:
        return Poller(self.source(horizon, horizon_margin_seconds=margin))

    def insert(self, *keys: int) -> str:
        """Return the statement that inserts rows; with a generated key the keys only say how many."""
        if self.kind.insert_only:
            return "INSERT INTO items (version) VALUES " + ", ".join("(1)" for _ in keys)
        return "INSERT INTO items (id) VALUES " + ", ".join(f"({key})" for key in keys)

    def update(self, key: int) -> str:
        """Return the statement that changes a row; with a generated key that is nothing a trigger could see."""
        changed = "version" if self.kind.insert_only else "version + 1"
        return f"UPDATE items SET version = {changed} WHERE id = {key}"

    def changed(self, key: int) -> object:
        """Return a row's cursor."""
        return self.scalar(f"SELECT {self.kind.cursor} FROM items WHERE id = {key}")

    def let_tick_pass(self, key: int) -> None:
        """Wait until the database's clock has left the tick of a row behind."""
        if self.kind.clock:
            passed = f"SELECT changed < {self.kind.clock} FROM items WHERE id = {key}"
            wait_until(lambda: self.scalar(passed), f"the tick of {key} has passed")

    def look(self, poller: Poller, key: int) -> None:
        """Give the reader every chance to read a row: at once, or after a few looks where they are paced."""
        if self.engine.dialect.name != "mysql":
            poller.poll()
            poller.poll()
            return
        since = self.scalar("SELECT NOW(6)")
        looked = f"SELECT NOW(6) > '{since}' + INTERVAL {LOOKS_SECONDS} SECOND"
        wait_until(lambda: key in poller.poll() or self.scalar(looked), "several looks of the reader")

    def drain(self, poller: Poller) -> Count:
        """Write a row above all others, read up to it, and count."""
        if self.kind.insert_only:
            self.execute(self.insert(0))
            last = int(self.scalar("SELECT MAX(id) FROM items"))
        else:
            last = SENTINEL
            self.execute(self.insert(last))
        if last not in (key for key, _ in poller.delivered):
            poller.poll_until(last)
        return self.count(poller, last)

    def count(self, poller: Poller, sentinel: int) -> Count:
        with self.engine.connect() as connection:
            found = connection.execute(text(f"SELECT id, version FROM items WHERE id <> {sentinel}")).all()
        committed = {(int(row[0]), int(row[1])) for row in found}
        return Count(
            rows=len(committed),
            delivered=poller.delivered.total() - 1,
            duplicated=sum(times - 1 for times in poller.delivered.values()),
            lost=frozenset(key for key, _ in committed - poller.delivered.keys()),
        )


def _patience(url: str) -> dict[str, Any] | None:
    """SQLite's reader gives up quickly when someone writes; a trigger simply polls again."""
    return {"timeout": 0.05} if url.startswith("sqlite") else None


def _writer_config(url: str) -> DbConfig:
    arguments: dict[str, object] | None = {"timeout": 30} if url.startswith("sqlite") else None
    return DbConfig(connection_url=url, connect_args=arguments, pool_size=20)


@contextmanager
def reading(poller: Poller, limits: Callable[[], int]) -> Iterator[None]:
    """Poll in the background while the block runs."""
    stop = threading.Event()

    def poll() -> None:
        while not stop.is_set():
            if not poller.poll(limits()):
                stop.wait(PAUSE_SECONDS)

    with ThreadPoolExecutor(max_workers=1) as thread:
        polling = thread.submit(poll)
        try:
            yield
        finally:
            stop.set()
            polling.result(timeout=60)
