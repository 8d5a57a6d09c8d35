"""A table that is not there is named, in the log as well: the policy on values must not take its name for one."""

from __future__ import annotations

import logging

import pytest
from sqlalchemy import create_engine

from holdfast import DbReader, HandlerError, SqlAlchemySource
from holdfast.core.errors import DbError
from holdfast.database.error_text import error_text, public_error_text
from holdfast.lease.store import StateStore
from holdfast.lease.stores.memory import MemoryDocumentStore
from holdfast.trigger.poll import PollTrigger

DATABASES = [
    pytest.param("postgres_url", marks=pytest.mark.component("postgres18")),
    pytest.param("mariadb_url", marks=pytest.mark.component("mariadb")),
    "sqlite_url",
]


@pytest.mark.parametrize("database", DATABASES)
def test_13_17_a_missing_table_is_named(
    database: str, request: pytest.FixtureRequest, caplog: pytest.LogCaptureFixture
) -> None:
    url = request.getfixturevalue(database)
    engine = create_engine(url)
    with engine.begin() as connection:
        connection.exec_driver_sql("CREATE TABLE orders (id BIGINT PRIMARY KEY)")
        connection.exec_driver_sql("CREATE TABLE parcels (id BIGINT PRIMARY KEY)")
    source = SqlAlchemySource(url=url, table="orders", cursor_column="id", pk_columns=["id"])
    trigger = PollTrigger(name="ship", source=source, checkpoint_store=StateStore(MemoryDocumentStore()))
    assert trigger.run(timer=None, handler=len) == 0
    with engine.begin() as connection:
        connection.exec_driver_sql("DROP TABLE orders")
    caplog.clear()
    with caplog.at_level(logging.WARNING), pytest.raises(DbError):
        trigger.run(timer=None, handler=len)
    said = "Table 'orders' not found in the database. Tables there: parcels."
    assert said in caplog.text
    assert "Traceback" not in caplog.text, "the sentence says it all"
    with DbReader(url=url, table="orders") as reader, pytest.raises(DbError) as refused:
        reader.get(pk={"id": 1})
    assert said in public_error_text(refused.value)
    engine.dispose()


def test_13_17_a_name_of_ours_is_not_taken_for_the_value_of_an_error_that_is_the_same_word() -> None:
    cause = KeyError("orders")
    error = HandlerError(f"The handler of 'orders' failed on batch batch_1: {error_text(cause)}")
    error.__cause__ = cause
    assert public_error_text(error) == "The handler of 'orders' failed on batch batch_1: KeyError"
    alone = HandlerError("The value 'orders' is not known.")
    alone.__cause__ = cause
    assert public_error_text(alone) == "The value *** is not known."
