"""Ways to get each error from a real database. Every one of them is a function of an engine that raises it."""

from __future__ import annotations

import sqlite3
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

from sqlalchemy import text
from sqlalchemy.engine import URL, Connection, Engine, create_engine, make_url
from sqlalchemy.exc import DBAPIError

from tests.components.processes import wait_until

Situation = Callable[[Engine], object]
_CHANGE = text("UPDATE things SET amount = amount + 1 WHERE id = :id")
_WAITS = text("SELECT count(*) FROM pg_locks WHERE pid = :pid AND NOT granted")
_MORE = "INSERT INTO things SELECT 1000 + seq, 0 FROM seq_1_to_200"


def make_things(engine: Engine) -> None:
    """Make a table with two rows."""
    with engine.begin() as connection:
        connection.exec_driver_sql("CREATE TABLE things (id INTEGER PRIMARY KEY, amount INTEGER CHECK (amount < 100))")
        connection.exec_driver_sql("INSERT INTO things VALUES (1, 0), (2, 0)")


def saying(*statements: str) -> Situation:
    """Return a situation that arises from statements, one after the other in one transaction."""

    def say(engine: Engine) -> None:
        with engine.begin() as connection:
            for statement in statements:
                connection.exec_driver_sql(statement)

    return say


def deadlock(engine: Engine) -> None:
    """Be the victim of one."""
    with engine.connect() as ours, engine.connect() as theirs, theirs.begin():
        ours.execute(_CHANGE, {"id": 1})
        if engine.dialect.name != "postgresql":
            theirs.exec_driver_sql(_MORE)  # the lighter transaction is the victim
        theirs.execute(_CHANGE, {"id": 2})
        with _beside(lambda: theirs.execute(_CHANGE, {"id": 1})):
            if engine.dialect.name == "postgresql":
                ours.exec_driver_sql("SET LOCAL deadlock_timeout = '1ms'")
                _until_it_waits(engine, theirs)
            ours.execute(_CHANGE, {"id": 2})


def serialization_failure(engine: Engine) -> None:
    """Change what another transaction has changed since ours began."""
    with engine.connect().execution_options(isolation_level="SERIALIZABLE") as ours:
        ours.exec_driver_sql("SELECT * FROM things").all()
        saying("UPDATE things SET amount = 5 WHERE id = 1")(engine)
        ours.execute(_CHANGE, {"id": 1})


def lock_timeout(engine: Engine) -> None:
    """Wait for a row that another transaction holds."""
    limit = "SET LOCAL lock_timeout = '1ms'" if engine.dialect.name == "postgresql" else _SHORTEST_WAIT
    with engine.connect() as theirs, engine.connect() as ours:
        theirs.execute(_CHANGE, {"id": 1})
        ours.exec_driver_sql(limit)
        ours.execute(_CHANGE, {"id": 1})


_SHORTEST_WAIT = "SET SESSION innodb_lock_wait_timeout = 0"


def killed_session(engine: Engine) -> None:
    """Say something in a session that an administrator has ended."""
    is_postgres = engine.dialect.name == "postgresql"
    with engine.connect() as ours, engine.connect() as administrator:
        own = ours.exec_driver_sql("SELECT pg_backend_pid()" if is_postgres else "SELECT CONNECTION_ID()").scalar_one()
        end = f"SELECT pg_terminate_backend({own}, 10000)" if is_postgres else f"KILL {own}"
        administrator.exec_driver_sql(end)
        ours.exec_driver_sql("SELECT 1")


def no_server(engine: Engine) -> None:
    """Connect to a port where nobody listens."""
    with _other_engine(engine.url.set(port=1)) as other:
        other.connect()


def wrong_user(engine: Engine) -> None:
    """Connect as somebody whom the server does not know."""
    with _other_engine(engine.url.set(username="nobody_of_that_name", password="guessed")) as other:
        other.connect()


def no_database(engine: Engine) -> None:
    """Connect to a database that is not there."""
    with _other_engine(engine.url.set(database="nowhere_at_all")) as other:
        other.connect()


def without_rights(engine: Engine) -> None:
    """Read a table as a user who may only connect."""
    user = f"'of_{engine.url.database}'@'{engine.url.host}'"
    saying(f"CREATE USER {user}", f"GRANT CREATE ON `{engine.url.database}`.* TO {user}")(engine)
    try:
        with _other_engine(engine.url.set(username=f"of_{engine.url.database}")) as other:
            saying("SELECT * FROM things")(other)
    finally:
        saying(f"DROP USER {user}")(engine)


def empty_pool(engine: Engine) -> None:
    """Ask a pool for more than it has."""
    with _other_engine(engine.url, pool_size=1, max_overflow=0, pool_timeout=0) as small, small.connect():
        small.connect()


def large_packet(engine: Engine) -> None:
    """Send MariaDB more than it takes at once."""
    with engine.connect() as connection:
        most = int(connection.exec_driver_sql("SELECT @@max_allowed_packet").scalar_one())
        connection.exec_driver_sql(f"SELECT LENGTH(REPEAT('x', {most} + 1)), '{'x' * (most + 1)}'")


def driver(connection: Connection) -> Any:
    """Return the driver's own connection."""
    return connection.connection.driver_connection


def busy_file(engine: Engine) -> None:
    """Write to a SQLite file while somebody else does."""
    with engine.connect() as theirs, engine.connect() as ours:
        theirs.execute(_CHANGE, {"id": 1})
        driver(ours).execute("PRAGMA busy_timeout = 0")
        ours.execute(_CHANGE, {"id": 1})


def locked_table(engine: Engine) -> None:
    """Drop a table that the same connection is reading."""
    with engine.connect() as connection:
        reading = driver(connection).execute("SELECT * FROM things")
        reading.fetchone()
        connection.exec_driver_sql("DROP TABLE things")


def full_file(engine: Engine) -> None:
    """Write more pages than a SQLite file may have."""
    with engine.connect() as connection:
        pages = int(connection.exec_driver_sql("PRAGMA page_count").scalar_one())
        connection.exec_driver_sql(f"PRAGMA max_page_count = {pages}")
        connection.exec_driver_sql("CREATE TABLE blobs AS SELECT zeroblob(20000) AS content")


def too_big_a_value(engine: Engine) -> None:
    """Give SQLite a text longer than it takes."""
    with engine.connect() as connection:
        driver(connection).setlimit(sqlite3.SQLITE_LIMIT_LENGTH, 1000)
        connection.exec_driver_sql("SELECT ?", ("x" * 2000,))


def closed_file(engine: Engine) -> None:
    """Say something on a SQLite connection that was closed."""
    with engine.connect() as connection:
        driver(connection).close()
        connection.exec_driver_sql("SELECT 1")


def missing_folder(engine: Engine) -> None:
    """Open a SQLite file in a folder that is not there."""
    with _other_engine(make_url("sqlite:////nowhere/at/all.db")) as other:
        other.connect()


@contextmanager
def _other_engine(url: URL, **options: Any) -> Iterator[Engine]:
    other = create_engine(url, **options)
    try:
        yield other
    finally:
        other.dispose()


@contextmanager
def _beside(act: Callable[[], object]) -> Iterator[None]:
    """Do something in another thread that may fail."""

    def attempt() -> None:
        with suppress(DBAPIError):
            act()

    thread = threading.Thread(target=attempt)
    thread.start()
    try:
        yield
    finally:
        thread.join()


def _until_it_waits(engine: Engine, theirs: Connection) -> None:
    pid = driver(theirs).info.backend_pid
    with engine.connect() as third:
        wait_until(lambda: third.execute(_WAITS, {"pid": pid}).scalar_one(), "the other transaction to wait")
