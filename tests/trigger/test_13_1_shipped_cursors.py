"""Issue 13, line 1: what we ship for others to copy proves what we say of updates."""

from __future__ import annotations

import re
import runpy
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from sqlalchemy import make_url
from sqlalchemy.engine import Engine

from holdfast import DbConfig, EngineProvider, SqlAlchemySource
from tests.components.processes import REPOSITORY

STARTERS = Path("src/holdfast/cli/starters/function_app")
SHIPPED = {
    "examples/shop/place_orders.py": "sqlite_url",
    "src/holdfast/cli/demo/shop.sql": "sqlite_url",
    str(STARTERS / "schema.sqlite.sql"): "sqlite_url",
    str(STARTERS / "schema.postgres.sql"): "postgres_url",
    str(STARTERS / "schema.mysql.sql"): "mariadb_url",
    "examples/functions/timer/schema.sql": "postgres_url",
}
NOT_RUN_HERE = {str(STARTERS / "schema.mssql.sql")}  # its starter says updates="trusted", and why
POLLED = re.compile(r"\bupdated_at\b.*\bDEFAULT\b", re.IGNORECASE)


@pytest.fixture
def provider() -> Iterator[EngineProvider]:
    made = EngineProvider()
    yield made
    made.dispose_all()


def create(engine: Engine, script: str) -> None:
    if engine.dialect.name == "sqlite":
        with closing(sqlite3.connect(str(make_url(engine.url).database))) as connection:
            connection.executescript(script)
        return
    whole = [script] if engine.dialect.name == "postgresql" else filter(str.strip, script.split(";"))
    with engine.begin() as connection:
        for statements in whole:
            connection.exec_driver_sql(statements)


def script_in(shipped: str) -> str:
    path = REPOSITORY / shipped
    return str(runpy.run_path(str(path))["SCHEMA"]) if path.suffix == ".py" else path.read_text()


def test_13_1_every_shipped_table_that_is_polled_is_looked_at() -> None:
    files = [*(REPOSITORY / "examples").rglob("*"), *(REPOSITORY / "src/holdfast/cli").rglob("*.sql")]
    texts = {path: path.read_text() for path in files if path.suffix in (".sql", ".py")}
    polled = {str(path.relative_to(REPOSITORY)) for path, text in texts.items() if POLLED.search(text)}
    assert polled == {*SHIPPED, *NOT_RUN_HERE}


@pytest.mark.parametrize("shipped", SHIPPED)
def test_13_1_no_shipped_table_starts_with_the_warning(
    shipped: str, request: pytest.FixtureRequest, provider: EngineProvider, caplog: pytest.LogCaptureFixture
) -> None:
    url = request.getfixturevalue(SHIPPED[shipped])
    create(provider.get_engine(DbConfig(connection_url=url)), script_in(shipped))
    source = SqlAlchemySource(
        url=url,
        table="orders",
        cursor_column="updated_at",
        pk_columns=["id"],
        horizon="auto",
        engine_provider=provider,
    )
    assert source.capability().updates == "proved"
    assert "Updates of" not in caplog.text
