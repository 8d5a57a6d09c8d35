"""A PostgreSQL pair for tests in which rows are taken back, and a trigger whose state is kept beside the database."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import psycopg
from sqlalchemy import text
from sqlalchemy.engine import create_engine

from holdfast import EngineProvider, RowChange, SqlAlchemySource
from holdfast.core.errors import FetchError, StateStoreError
from holdfast.core.types import JsonObject
from holdfast.lease.documents import DocumentStore
from holdfast.lease.store import StateStore
from holdfast.trigger.runner import PollRunner
from tests.components.postgres import PostgresServer, Standby
from tests.components.processes import wait_until

ORDERS = (
    "CREATE TABLE orders (id bigint PRIMARY KEY, tx xid8 NOT NULL DEFAULT pg_current_xact_id());"
    "CREATE INDEX ON orders (tx, id);"
)


class Follower(Standby):
    """A standby whose primary dies with what it has not sent."""

    def catch_up(self) -> None:
        """Wait until it has replayed everything that the primary has written."""
        position = asked(self.primary, "SELECT pg_current_wal_insert_lsn()::text")
        wait_until(
            lambda: bool(asked(self, f"SELECT pg_last_wal_replay_lsn() >= '{position}'")), "the standby caught up"
        )

    def stop_following(self) -> int:
        """Freeze what sends to it; return the process."""
        sender = int(str(asked(self.primary, "SELECT pid FROM pg_stat_replication")))
        os.kill(sender, signal.SIGSTOP)
        return sender

    def take_over(self, sender: int) -> None:
        """Become the primary when the present one has died with all that it has not sent."""
        os.kill(self.primary.pid, signal.SIGQUIT)
        os.kill(sender, signal.SIGKILL)
        self.primary.stop()
        self.promote()

    def promote(self) -> None:
        asked(self, "SELECT pg_promote()")
        wait_until(lambda: asked(self, "SELECT pg_is_in_recovery()") is False, "the standby was promoted")


def asked(server: PostgresServer, sql: str, database: str = "postgres") -> object:
    with psycopg.connect(server.dsn(database), autocommit=True) as connection:
        cursor = connection.execute(sql)
        row = None if cursor.description is None else cursor.fetchone()
        return None if row is None else row[0]


@contextmanager
def pair(binaries: Path) -> Iterator[tuple[PostgresServer, Follower, str]]:
    """Yield a primary, its standby and the name of a database that both have, with a table of orders."""
    with PostgresServer(binaries) as primary:
        database = primary.create_database()
        asked(primary, ORDERS, database)
        asked(primary, "CREATE ROLE reader LOGIN; ")
        asked(primary, "GRANT SELECT ON orders TO reader", database)
        with Follower(primary) as standby:
            wait_until(lambda: asked(primary, "SELECT count(*) FROM pg_stat_replication") == 1, "the standby streams")
            yield primary, standby, database


def address(servers: Iterable[PostgresServer], database: str, role: str = "reader") -> str:
    """Return a URL that leads to whichever of the servers takes writes."""
    hosts = "&".join(f"host=127.0.0.1:{server.port}" for server in servers)
    return f"postgresql+psycopg://{role}@/{database}?{hosts}&target_session_attrs=read-write"


def place(url: str, ids: Iterable[int]) -> None:
    """Place orders, each in a transaction of its own."""
    engine = create_engine(url, isolation_level="AUTOCOMMIT")
    with engine.connect() as connection:
        for each in ids:
            connection.execute(text("INSERT INTO orders (id) VALUES (:id)"), {"id": each})
    engine.dispose()


class Reader:
    """A trigger over the orders that remembers what it got, and with which tokens."""

    def __init__(self, url: str, documents: DocumentStore, *, cursor: str = "tx", batch_size: int = 3) -> None:
        self.seen: list[int] = []
        self.tokens: list[int] = []
        self.provider = EngineProvider()
        self.store = StateStore(documents, app_name="shop")
        self.source = SqlAlchemySource(
            url=url,
            table="orders",
            cursor_column=cursor,
            pk_columns=["id"],
            horizon="auto",
            engine_provider=self.provider,
        )
        self.runner = PollRunner(
            name="orders",
            source=self.source,
            state_store=self.store,
            handler=self._take,
            batch_size=batch_size,
            max_batches_per_tick=100,
        )

    def _take(self, changes: list[RowChange], context: object) -> None:
        self.seen += [int(str(change.pk["id"])) for change in changes]
        self.tokens.append(context.fencing_token)  # type: ignore[attr-defined]  # a PollContext

    def run(self) -> None:
        """Deliver what there is now."""
        self.runner.tick()

    def run_after_death(self) -> None:
        """Deliver what there is now, once it has been noticed that the server is another one."""
        for _ in range(2):
            with suppress(FetchError, StateStoreError):  # one of its sessions has died
                return self.run()
        return self.run()

    def document(self) -> JsonObject:
        view = self.store.read("orders")
        assert view is not None
        return view.document

    def close(self) -> None:
        self.provider.dispose_all()
