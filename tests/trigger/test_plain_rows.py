"""A page read past SQLAlchemy's row objects holds the very values that SQLAlchemy would have handed out."""

from __future__ import annotations

import pytest
from sqlalchemy import MetaData, Table, create_engine, select, text
from sqlalchemy.engine import Connection

from holdfast import EngineProvider, SqlAlchemySource
from holdfast.core.config import parse_url
from holdfast.trigger.sources import statement

PLAIN = {
    "postgres_url": "id int PRIMARY KEY, amount numeric(12, 2), ratio float8, at timestamptz, day date, raw bytea, "
    "tag uuid, flag boolean, note text, data jsonb",
    "mariadb_url": "id int PRIMARY KEY, amount numeric(12, 2), at datetime(6), day date, note text",
}
CONVERTED = {
    "postgres_url": "id int PRIMARY KEY, span int4range, tags text[]",
    "mariadb_url": "id int PRIMARY KEY, flags bit(8)",
}
VALUES = {
    "postgres_url": {
        PLAIN["postgres_url"]: "(1, 1.50, 0.1, '2026-01-02 03:04:05.678901+02', '2026-01-02', '\\x00ff', "
        "'00000000-0000-0000-0000-000000000001', true, 'text', '{\"a\": [1, null]}')",
        CONVERTED["postgres_url"]: "(1, '[1,5)', ARRAY['a', 'b'])",
    },
    "mariadb_url": {
        PLAIN["mariadb_url"]: "(1, 1.50, '2026-01-02 03:04:05.678901', '2026-01-02', 'text')",
        CONVERTED["mariadb_url"]: "(1, b'101')",
    },
}


def reflected(connection: Connection, columns: str, values: str) -> Table:
    """Make a table with one row of values and one of NULLs."""
    connection.execute(text(f"CREATE TABLE things ({columns})"))
    connection.exec_driver_sql(f"INSERT INTO things VALUES {values}".replace("%", "%%"))
    connection.execute(text("INSERT INTO things (id) VALUES (2)"))
    return Table("things", MetaData(), autoload_with=connection)


@pytest.mark.parametrize("database", ["postgres_url", "mariadb_url"])
@pytest.mark.parametrize(("tables", "is_plain"), [(PLAIN, True), (CONVERTED, False)])
def test_rows_are_read_plainly_only_where_the_values_are_the_same(
    request: pytest.FixtureRequest, database: str, tables: dict[str, str], is_plain: bool
) -> None:
    columns = tables[database]
    engine = create_engine(parse_url(request.getfixturevalue(database)))
    with engine.connect() as connection:
        table = reflected(connection, columns, VALUES[database][columns])
        query = statement.over_table(table, "id", ["id"], None, engine.dialect.name)
        page = query.page(has_cursor=False, has_bound=False, limit=10)
        result = connection.execute(page)
        assert query.is_plain(result) is is_plain
        if is_plain:
            wanted = [tuple(row) for row in connection.execute(select(table).order_by(table.c.id)).all()]
            assert [tuple(row) for row in statement.plain_rows(result)] == wanted
    engine.dispose()


def test_doubles_of_mariadb_are_delivered_as_the_floats_they_are(mariadb_url: str) -> None:
    """SQLAlchemy by itself would hand out decimals of ten places."""
    engine, provider = create_engine(parse_url(mariadb_url)), EngineProvider()
    with engine.begin() as connection:
        connection.execute(text("CREATE TABLE sizes (id integer PRIMARY KEY, d double, r real)"))
        connection.execute(text("INSERT INTO sizes VALUES (1, 1 / 3e0, 2.5e-300)"))
    source = SqlAlchemySource(
        url=mariadb_url,
        table="sizes",
        cursor_column="id",
        pk_columns=["id"],
        horizon="none",
        engine_provider=provider,
    )
    [record] = source.fetch_changes({}, 10).records
    assert dict(record) == {"id": 1, "d": 1 / 3, "r": 2.5e-300}
    assert {type(record["d"]), type(record["r"])} == {float}
    provider.dispose_all()
    engine.dispose()
