"""A database that takes no writes for a while, as in a failover, and a server that hangs up when that begins."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import psycopg
import pymysql
from sqlalchemy import event
from sqlalchemy.engine import URL, make_url
from sqlalchemy.pool import Pool

_USER = "works_here"  # on MariaDB, root may write whatever read_only says


@contextmanager
def ordinary_user(url: str) -> Iterator[str]:
    """Yield the URL of somebody whom a read-only server refuses."""
    parsed = make_url(url)
    if parsed.get_backend_name() != "mysql":
        yield url
        return
    user = f"'{_USER}'@'{parsed.host}'"
    _on_mariadb(parsed, f"CREATE OR REPLACE USER {user}", f"GRANT ALL ON `{parsed.database}`.* TO {user}")
    yield parsed.set(username=_USER).render_as_string(hide_password=False)
    _on_mariadb(parsed, f"DROP USER {user}")


@contextmanager
def read_only(url: str) -> Iterator[None]:
    """Let the database refuse writes inside the block; sessions end when it begins.

    On PostgreSQL sessions that are made inside the block stay read-only after it, as those to a former primary do.
    """
    parsed = make_url(url)
    match parsed.get_backend_name():
        case "postgresql":
            yield from _postgres(parsed)
        case "mysql":
            yield from _mariadb(parsed)
        case _:
            yield from _sqlite()


def _postgres(url: URL) -> Iterator[None]:
    name = f'"{url.database}"'
    others = url.set(database="postgres", drivername="postgresql").render_as_string(hide_password=False)
    end = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = %s"
    with psycopg.connect(others, autocommit=True) as administrator:
        administrator.execute(f"ALTER DATABASE {name} SET default_transaction_read_only = on")
        administrator.execute(end, [url.database])
        try:
            yield
        finally:
            administrator.execute(f"ALTER DATABASE {name} RESET default_transaction_read_only")


def _mariadb(url: URL) -> Iterator[None]:
    _on_mariadb(url, "SET GLOBAL read_only = 1", f"KILL USER '{_USER}'@'{url.host}'")
    try:
        yield
    finally:
        _on_mariadb(url, "SET GLOBAL read_only = 0", f"KILL USER '{_USER}'@'{url.host}'")


def _on_mariadb(url: URL, *statements: str) -> None:
    with (
        pymysql.connect(host=url.host, port=url.port or 0, user="root", autocommit=True, ssl_disabled=True) as root,
        root.cursor() as cursor,
    ):
        for statement in statements:
            cursor.execute(statement)


def _sqlite() -> Iterator[None]:
    def refuse(connection: Any, _record: object, _proxy: object) -> None:
        connection.execute("PRAGMA query_only = ON")

    def allow(connection: Any, _record: object) -> None:
        connection.execute("PRAGMA query_only = OFF")

    event.listen(Pool, "checkout", refuse)
    event.listen(Pool, "checkin", allow)
    try:
        yield
    finally:
        event.remove(Pool, "checkout", refuse)
        event.remove(Pool, "checkin", allow)
