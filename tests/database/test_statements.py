"""Every statement of ours is one that its database can plan, as a whole; what statements share is written once."""

from __future__ import annotations

import re
from collections.abc import Iterator
from importlib import resources

import pytest
from sqlalchemy.engine import Connection

from holdfast import DbConfig, EngineProvider
from holdfast.database.statements import NamedSql
from tests.components.prepared import mariadb_url, postgres_url, sqlite_url

__all__ = ["mariadb_url", "postgres_url", "sqlite_url"]

PACKAGES = ("holdfast.jobs", "holdfast.outbox")
DIALECTS = ("postgresql", "mysql", "sqlite")
EXPLAIN = {"postgresql": "EXPLAIN (GENERIC_PLAN)", "mysql": "EXPLAIN", "sqlite": "EXPLAIN"}
_PLANNED = ("SELECT", "INSERT", "UPDATE", "DELETE", "WITH", "REPLACE")
_VALUES: dict[str, object] = {"batch": "[]", "wanted": "[]", "ids": (1,), "claims": ((1, 1),)}


@pytest.fixture(
    params=[
        pytest.param(name, marks=pytest.mark.component(component))
        for name, component in (("postgresql", "postgres18"), ("mysql", "mariadb"))
    ]
    + ["sqlite"]
)
def database(request: pytest.FixtureRequest) -> Iterator[tuple[str, Connection]]:
    fixture = {"postgresql": "postgres_url", "mysql": "mariadb_url", "sqlite": "sqlite_url"}[request.param]
    engine = EngineProvider().get_engine(DbConfig(connection_url=request.getfixturevalue(fixture)))
    with engine.connect() as connection:
        yield request.param, connection
    engine.dispose()


def _values(sql: str, dialect: str) -> dict[str, object]:
    names = re.findall(r"%\((\w+)\)s" if dialect != "sqlite" else r"(?<![:\w]):([a-z_]+)", sql)
    return {name: _VALUES.get(name, 1) for name in names}


def _explain(connection: Connection, dialect: str, sql: str) -> None:
    """Have the database plan a statement. Raises what it says when it cannot."""
    if dialect == "postgresql":  # any plan will do, so no value is needed: parameters by number
        names = list(dict.fromkeys(re.findall(r"%\((\w+)\)s", sql)))
        for number, name in enumerate(names, 1):
            sql = sql.replace(f"%({name})s", f"${number}")
        cursor = connection.connection.driver_connection.pgconn  # type: ignore[union-attr]
        result = cursor.exec_(f"{EXPLAIN[dialect]} {sql.replace('%%', '%')}".encode())
        assert not result.error_message, result.error_message.decode()
        return
    connection.exec_driver_sql(f"{EXPLAIN[dialect]} {sql}", _values(sql, dialect))


def test_the_database_can_plan_every_statement(database: tuple[str, Connection]) -> None:
    dialect, connection = database
    planned, refused = 0, []
    for package in PACKAGES:
        named = NamedSql(package)
        for name in named.names(dialect):
            if name.startswith(("schema", "add_", "order_of", "store_checkpoint_function")):
                continue  # what makes the tables is run by every test that needs them
            for sql in named.script(dialect, name):
                if not sql.startswith(_PLANNED):
                    continue
                try:
                    _explain(connection, dialect, sql)
                    planned += 1
                except Exception as error:
                    refused.append(f"{package} {name}: {error}")
    assert refused == []
    assert planned > 70


@pytest.mark.parametrize("package", PACKAGES)
def test_nothing_is_written_for_each_dialect_that_is_the_same_for_all(package: str) -> None:
    named = NamedSql(package)
    own = [named._sections(dialect) for dialect in DIALECTS]
    common = {name for _, name, _ in named._written(("any",))}
    same = {name for name in set.intersection(*map(set, own)) if own[0][name] == own[1][name] == own[2][name]}
    assert same == common


@pytest.mark.parametrize("package", PACKAGES)
@pytest.mark.parametrize("dialect", DIALECTS)
def test_parts_are_shared(package: str, dialect: str) -> None:
    sections = NamedSql(package)._sections(dialect)
    everything = " ".join(text for _, text in sections.values())
    parts = {name for name, (kind, _) in sections.items() if kind == "part"}
    assert {name for name in parts if f"{{{{{name}}}}}" not in everything} == set()
    named = set(re.findall(r"\{\{([a-z_]+)\}\}", everything)) - {"key_collation"}
    assert named <= parts


def test_a_section_says_what_it_is_for() -> None:
    for package in PACKAGES:
        for file in resources.files(package).joinpath("sql").iterdir():
            for theme in file.iterdir():
                sections = re.split(r"^-- (?:name|part): ", theme.read_text("utf-8"), flags=re.MULTILINE)[1:]
                silent = [section.split("\n")[0] for section in sections if not section.split("\n")[1].startswith("--")]
                assert silent == [], f"{theme.name}: say in a comment what {silent} are for and which rows to expect"
