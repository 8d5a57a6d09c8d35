"""Appending: in the caller's own transaction, whatever kind of connection it is on, or not at all."""

from __future__ import annotations

import sqlite3
from pathlib import Path
from typing import Any

import psycopg
import pytest
from sqlalchemy import create_engine, text
from sqlalchemy.orm import Session

from holdfast.core.errors import ConfigurationError, MessageError
from holdfast.outbox.message import NewMessage
from holdfast.outbox.reader import OutboxReader, Selection
from tests.outbox.shops import Shop


def stored(shop: Shop) -> list[str]:
    return [row["message_id"] for row in shop.execute("SELECT message_id FROM holdfast_outbox ORDER BY message_id")]


def test_a_message_commits_with_the_callers_data(shop: Shop) -> None:
    """[OUTBOX-1]."""
    with shop.app.database.begin() as connection:
        connection.execute(text("INSERT INTO effects VALUES ('order', 1)"))
        appended = shop.app.outbox.append(connection, "OrderPlaced", {"order": 1}, message_id="m-1")
    assert (appended.message_id, appended.is_new) == ("m-1", True)
    assert (stored(shop), shop.effects()) == (["m-1"], [1])


def test_a_message_is_rolled_back_with_the_callers_data(shop: Shop) -> None:
    """[OUTBOX-1]."""
    with shop.app.database.connect() as connection:
        transaction = connection.begin()
        connection.execute(text("INSERT INTO effects VALUES ('order', 1)"))
        shop.app.outbox.append(connection, "OrderPlaced", {"order": 1})
        transaction.rollback()
    assert (stored(shop), shop.effects()) == ([], [])


def test_a_session_of_the_orm_is_taken(shop: Shop) -> None:
    with Session(shop.app.database) as session:
        shop.app.outbox.append(session, "OrderPlaced", {}, message_id="kept")
        session.commit()
        shop.app.outbox.append(session, "OrderPlaced", {}, message_id="gone")
        session.rollback()
    assert stored(shop) == ["kept"]


@pytest.mark.component("postgres18")
def test_a_psycopg_connection_is_taken(postgres_shop: Shop) -> None:
    dsn = postgres_shop.url.replace("+psycopg", "")
    with psycopg.connect(dsn, row_factory=psycopg.rows.dict_row) as connection:
        postgres_shop.app.outbox.append(connection, "OrderPlaced", {}, message_id="kept")
        connection.commit()
        many = [NewMessage(type="OrderPlaced", data=number, message_id=f"gone-{number}") for number in range(3)]
        postgres_shop.app.outbox.append_many(connection, many)
        connection.rollback()
    with psycopg.connect(dsn, autocommit=True) as connection:
        with pytest.raises(MessageError, match=r"outside a transaction.*connection\.transaction\(\)"):
            postgres_shop.app.outbox.append(connection, "OrderPlaced", {})
        with connection.transaction():
            postgres_shop.app.outbox.append(connection, "OrderPlaced", {}, message_id="kept-too")
    assert stored(postgres_shop) == ["kept", "kept-too"]


def test_a_sqlite3_connection_is_taken(sqlite_shop: Shop) -> None:
    path = sqlite_shop.url.removeprefix("sqlite:///")
    connection = sqlite3.connect(path)
    connection.row_factory = sqlite3.Row
    sqlite_shop.app.outbox.append(connection, "OrderPlaced", {}, message_id="kept")
    connection.commit()
    sqlite_shop.app.outbox.append(connection, "OrderPlaced", {}, message_id="gone")
    connection.rollback()
    connection.isolation_level = None
    with pytest.raises(MessageError, match="outside a transaction"):
        sqlite_shop.app.outbox.append(connection, "OrderPlaced", {})
    connection.close()
    assert stored(sqlite_shop) == ["kept"]


def test_an_append_outside_a_transaction_is_refused(shop: Shop) -> None:
    refused = pytest.raises(MessageError, match=r"outside a transaction.*engine\.begin\(\)")
    with shop.app.database.connect() as connection, refused:
        shop.app.outbox.append(connection, "OrderPlaced", {})
    with shop.app.database.connect() as connection:
        if connection.dialect.name != "sqlite":
            connection = connection.execution_options(isolation_level="AUTOCOMMIT")
            with connection.begin(), pytest.raises(MessageError, match="outside a transaction"):
                shop.app.outbox.append(connection, "OrderPlaced", {})
    assert stored(shop) == []


def test_a_users_own_sqlite_engine_in_autocommit_is_refused(sqlite_shop: Shop) -> None:
    engine = create_engine(sqlite_shop.url, isolation_level="AUTOCOMMIT")
    refused = pytest.raises(MessageError, match="outside a transaction")
    with engine.connect() as connection, connection.begin(), refused:
        sqlite_shop.app.outbox.append(connection, "OrderPlaced", {})
    engine.dispose()
    own = create_engine(sqlite_shop.url)
    with own.begin() as connection:
        sqlite_shop.app.outbox.append(connection, "OrderPlaced", {}, message_id="kept")
    own.dispose()
    assert stored(sqlite_shop) == ["kept"]


def test_a_message_id_that_is_there_already_is_reported_and_changes_nothing(shop: Shop) -> None:
    """[OUTBOX-1]."""
    with shop.app.database.begin() as connection:
        shop.app.outbox.append(connection, "OrderPlaced", {"n": 1}, message_id="same")
    with shop.app.database.begin() as connection:
        again = shop.app.outbox.append(connection, "OrderPlaced", {"n": 2}, message_id="same")
        messages = [NewMessage(type="Paid", data=0, message_id=name) for name in ("same", "new", "new")]
        many = shop.app.outbox.append_many(connection, messages)
    assert again.is_new is False
    assert [item.is_new for item in many] == [False, True, False]
    assert stored(shop) == ["new", "same"]


def test_the_connection_of_another_database_is_refused(sqlite_shop: Shop, tmp_path: Path) -> None:
    class Elsewhere:
        autocommit = False

    Elsewhere.__module__, Elsewhere.__name__ = "psycopg", "Connection"
    with pytest.raises(ConfigurationError, match="outbox is in sqlite, and the connection leads to postgresql"):
        sqlite_shop.app.outbox.append(Elsewhere(), "OrderPlaced", {})


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        ({"data": object()}, "not JSON"),
        ({"data": {1, 2}}, "not JSON"),
        ({"data": float("nan")}, "not JSON"),
        ({"data": "a\x00b"}, "NUL"),
        ({"data": "\ud800"}, "surrogate"),
        ({"data": "x" * 1_100_000}, "at most 1,048,576"),
        ({"type": ""}, "type '' cannot be used: it is empty"),
        ({"type": "x" * 201}, "type .* cannot be used: it has 201 characters"),
        ({"message_id": 7}, "message_id 7 cannot be used: it must be text"),
        ({"key": "a\x00"}, "key .* cannot be used: it holds a NUL"),
        ({"headers": {"trace": object()}}, "headers of 'OrderPlaced' is not JSON"),
    ],
)
def test_what_cannot_be_stored_is_refused_and_nothing_is_appended(
    shop: Shop, arguments: dict[str, Any], told: str
) -> None:
    given: dict[str, Any] = {"type": "OrderPlaced", "data": {}, **arguments}
    with shop.app.database.begin() as connection:
        with pytest.raises(MessageError, match=told):
            shop.app.outbox.append(connection, **given)
        with pytest.raises(MessageError, match=told):
            shop.app.outbox.append_many(connection, [NewMessage(type="Fine", data=1), NewMessage(**given)])
    assert stored(shop) == []


def test_what_is_no_connection_is_refused(shop: Shop) -> None:
    with pytest.raises(ConfigurationError, match=r"of type Engine.*SQLAlchemy Connection or"):
        shop.app.outbox.append(shop.app.database, "OrderPlaced", {})


def test_everything_about_a_message_comes_back_as_it_went_in(shop: Shop) -> None:
    data = {"text": 'Grüße 🚀 \\ " \n', "list": [1, 2.5, None, True, 10**20], "backslash": "\\u0000"}
    with shop.app.database.begin() as connection:
        shop.app.outbox.append(
            connection,
            "OrderPlaced",
            data,
            message_id="m-1",
            key="customer-7",
            correlation_id="order-7",
            causation_id="request-3",
            headers={"tenant": "a", "depth": 3},
        )
        shop.app.outbox.append(connection, "Bare", None, message_id="m-2")
    shop.number()
    reader = OutboxReader(shop.app.database, Selection())
    first, second = reader.read(None, 10).messages
    assert (first.message_id, first.type, first.data, first.key) == ("m-1", "OrderPlaced", data, "customer-7")
    assert (first.correlation_id, first.causation_id) == ("order-7", "request-3")
    assert first.headers == {"tenant": "a", "depth": 3}
    assert (second.data, second.key, second.correlation_id, dict(second.headers)) == (None, None, "m-2", {})
    assert first.appended_at.tzinfo is not None
