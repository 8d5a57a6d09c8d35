"""Texts of ours are equal only if their bytes are: each text column of each table of ours, in each database."""

from __future__ import annotations

import random
from collections.abc import Iterator
from datetime import UTC, datetime
from itertools import count
from typing import Any

import pytest
from sqlalchemy import (
    CHAR,
    Boolean,
    Column,
    DateTime,
    Integer,
    LargeBinary,
    String,
    Table,
    delete,
    func,
    insert,
    inspect,
    literal,
    select,
)
from sqlalchemy.dialects import mysql, postgresql
from sqlalchemy.engine import Engine

from holdfast import EngineProvider, Holdfast
from holdfast.core.config import DbConfig
from holdfast.core.errors import DbError
from holdfast.database.reflection import reflect_table

DATABASES = [
    pytest.param("postgres_url", marks=pytest.mark.component("postgres18")),
    pytest.param("mariadb_url", marks=pytest.mark.component("mariadb")),
    pytest.param("mariadb dialect", marks=pytest.mark.component("mariadb")),
    "sqlite_url",
]
_LONGEST = {"topic": 140, "operation": 140}  # where the database has no limit; history and dead letters have one
_LETTERS = [*"aAáßöøÅ0%_日", "a\u0301", "ss", "fi", "\ufb01", "\u0130", "\u0131", "\u212b", "\N{CRAB}"]
_BLANKS = [*" \t\n\x01\x1f\x7f\\'", "\u00a0", "\u200b", "\ufeff"]
_TIMES = ("_at", "_until")  # which are texts in SQLite


def keys_of(longest: int) -> list[str]:
    """Return texts that some collation takes for equal: by padding, case, accents, normal forms or ignored letters."""
    chosen = random.Random(14)
    known = ["", " ", "  ", "\x01", "a", "a ", " a", "a  ", "a\t", "a\n", "a\x01", "a\x02", "A", "á", "a\u0301"]
    made = ["".join(chosen.choices(_LETTERS + _BLANKS, k=chosen.randint(1, 4))) for _ in range(30)]
    full = [letter * longest for letter in ("k", "K", "é", "😀")] + ["k" * (longest - 1), "k" * (longest - 1) + " "]
    return list(dict.fromkeys(key for key in (*known, *made, *full) if len(key) <= longest))


@pytest.fixture(params=DATABASES)
def engine(request: pytest.FixtureRequest) -> Iterator[Engine]:
    """A database with every table of ours; once by the other name that MariaDB's dialect has."""
    provider = EngineProvider()
    if request.param == "mariadb dialect":
        url = request.getfixturevalue("empty_mariadb_url").replace("mysql+", "mariadb+")
        Holdfast(url, engine_provider=provider).migrate()
    else:
        url = request.getfixturevalue(request.param)
    yield provider.get_engine(DbConfig(connection_url=url))
    provider.dispose_all()


def own_tables(engine: Engine) -> list[Table]:
    names = [name for name in inspect(engine).get_table_names() if name.startswith("holdfast_")]
    return [reflect_table(engine, name, None, DbError) for name in names]


def text_columns(table: Table) -> list[Column[Any]]:
    """Return the columns that texts of users may be in; ``char`` is for ids that we make up ourselves."""
    texts = [column for column in table.columns if isinstance(column.type, String)]
    return [column for column in texts if not isinstance(column.type, CHAR) and not column.name.endswith(_TIMES)]


def rows_with(table: Table, column: Column[Any], keys: list[str]) -> list[dict[str, Any]]:
    """Return a row for each key, with nothing else but what must be there."""
    numbers = count(100)
    needed = [
        other
        for other in table.columns
        if other is not column
        and not other.nullable
        and other.server_default is None
        and other is not table.autoincrement_column
    ]
    rows = [{column.name: key, **{other.name: _filling(other, next(numbers)) for other in needed}} for key in keys]
    if column.name == "locked_by":  # a rule of the queue: it has a holder as long as it runs
        rows = [{**row, "status": "running", "lease_until": _filling(table.c["lease_until"], 1)} for row in rows]
    return rows


def _filling(column: Column[Any], number: int) -> object:
    match column.type:
        case postgresql.JSONB():
            return {}
        case String():
            return f"x{number}" if column.name not in ("operations", "payload") else "{}"
        case mysql.TINYINT():
            return 1
        case Boolean():
            return True
        case Integer():
            return number
        case LargeBinary():
            return b""
        case DateTime():
            return datetime.now(UTC)
    return number


def test_14_1_equal_only_if_equal_bytes_in_every_column_of_ours(engine: Engine) -> None:
    checked = 0
    for table in own_tables(engine):
        for column in text_columns(table):
            check(engine, table, column)
            checked += 1
    assert checked > 70


def check(engine: Engine, table: Table, column: Column[Any]) -> None:
    """Have a column hold every key once, and find each by itself alone: by comparison, by joining and by grouping."""
    longest = getattr(column.type, "length", None) or _LONGEST.get(column.name, 200)
    keys = keys_of(longest)
    same, other = select(func.count()).select_from(table), table.alias("other")
    with engine.connect() as connection:
        connection.begin()
        connection.execute(delete(table))
        connection.execute(insert(table), rows_with(table, column, keys))
        found = [same.where(column == literal(key)).scalar_subquery() for key in keys]
        assert connection.execute(select(*found)).one() == (1,) * len(keys), column
        joined = select(func.count()).select_from(table.join(other, column == other.c[column.name]))
        assert connection.execute(joined).scalar_one() == len(keys), column
        grouped = connection.execute(select(column).group_by(column)).scalars().all()
        assert sorted(grouped) == sorted(keys), column
        connection.rollback()
