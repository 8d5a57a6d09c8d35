"""What is said before the handler's first statement goes out at once on PostgreSQL, and begins as its database does."""

from __future__ import annotations

import pytest
from sqlalchemy import create_engine, event, text
from sqlalchemy.engine import Engine

from holdfast.database.drivers import beginning
from holdfast.runtime.transaction import HandlerTransaction

LEVELS = {"READ COMMITTED": "read committed", "REPEATABLE READ": "repeatable read", "SERIALIZABLE": "serializable"}


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("is_listened_to", [False, True], ids=["", "listened to"])
def test_a_transaction_has_the_isolation_level_of_its_database(
    postgres_url: str, level: str, is_listened_to: bool
) -> None:
    engine = create_engine(postgres_url, isolation_level=level)
    if is_listened_to:
        event.listen(engine, "before_cursor_execute", lambda *_: None)
    for _ in range(2):  # once more on a connection that was used before
        transaction = HandlerTransaction(engine, 30.0)
        connection = transaction.connection
        assert beginning(connection.driver) is None, "it was begun"
        assert connection.scalar(text("SHOW transaction_isolation")) == LEVELS[level]
        assert connection.scalar(text("SHOW idle_in_transaction_session_timeout")) == "30s"
        transaction.settle(lambda _: None)
    engine.dispose()


def test_a_pooled_connection_that_died_meanwhile_is_replaced(postgres_url: str) -> None:
    engine, other = create_engine(postgres_url), create_engine(postgres_url)
    end_pooled_session(engine, other)
    transaction = HandlerTransaction(engine, 30.0)
    assert transaction.connection.scalar(text("SELECT 1")) == 1
    transaction.close()
    engine.dispose()
    other.dispose()


def end_pooled_session(engine: Engine, other: Engine) -> None:
    with engine.connect() as connection:
        session = connection.scalar(text("SELECT pg_backend_pid()"))
    with other.connect() as connection:
        assert connection.scalar(text("SELECT pg_terminate_backend(:id, 5000)"), {"id": session})
