"""A PostgreSQL database in SQL_ASCII is refused at the first connection, by name, and not with a TypeError."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator

import psycopg
import pytest

from holdfast import DbReader, DbWriter, EngineProvider, Holdfast
from holdfast.core.errors import DbError
from tests.components.postgres import PostgresServer

REFUSED = r"has the encoding SQL_ASCII.* Add client_encoding=utf8 to the URL's options .* encoding UTF8\."


@pytest.fixture
def ascii_url(postgres_server: PostgresServer) -> Iterator[str]:
    name = f"ascii_{uuid.uuid4().hex[:12]}"
    with psycopg.connect(postgres_server.dsn(), autocommit=True) as connection:
        connection.execute(
            f"CREATE DATABASE {name} TEMPLATE template0 ENCODING 'SQL_ASCII' LC_COLLATE 'C' LC_CTYPE 'C'"
        )
    yield postgres_server.url(name)
    postgres_server.drop_database(name)


def greet() -> None:
    """Do nothing."""


def enqueue(app: Holdfast) -> object:
    return app.job("later")(greet).enqueue()


def application(url: str) -> Holdfast:
    app = Holdfast(url, engine_provider=EngineProvider())
    app.job("greet")(greet)
    app.trigger("orders", cursor="id")(print)
    app.processor("totals")(print)
    return app


def append(app: Holdfast) -> object:
    with app.database.begin() as connection:
        return app.outbox.append(connection, "paid", {"order": 1})


WAYS: dict[str, Callable[[str], object]] = {
    "migrate": lambda url: application(url).migrate(),
    "validate": lambda url: application(url).validate(),
    "run": lambda url: application(url).run(handle_signals=False),
    "enqueue": lambda url: enqueue(application(url)),
    "append": lambda url: append(application(url)),
    "read": lambda url: DbReader(url=url, table="orders").get(pk={"id": 1}),
    "write": lambda url: DbWriter(url=url, table="orders").insert(data={"id": 1}),
    "leases": lambda url: application(url).state.acquire("orders", ttl_seconds=10),
}


@pytest.mark.parametrize("way", WAYS)
def test_13_17_sql_ascii_is_refused_by_name(ascii_url: str, way: str) -> None:
    with pytest.raises(DbError, match=REFUSED):
        WAYS[way](ascii_url)


def test_13_17_text_that_is_said_to_be_utf8_is_used(ascii_url: str) -> None:
    app = application(f"{ascii_url}?client_encoding=utf8")
    assert app.migrate()
    append(app)
    seen: list[str] = []
    app.processor("names")(lambda messages: seen.extend(message.type for message in messages))
    assert app.processors.run_until_caught_up("names") == 1
    assert seen == ["paid"]
    app._provider.dispose_all()
