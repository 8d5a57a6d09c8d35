"""``input``: what is read before the handler runs, and how it is asked for."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from holdfast import ConfigurationError, DbBindings, DbConfig, NotFoundError, QueryError
from tests.binding.databases import Database

db = DbBindings()


@pytest.fixture
def users(database: Database) -> Database:
    database.execute("CREATE TABLE users (org integer, id integer, name varchar(20), PRIMARY KEY (org, id))")
    database.execute("INSERT INTO users VALUES (1, 1, 'Ada'), (1, 2, 'Grace'), (2, 1, 'Edsger')")
    return database


ADA = {"org": 1, "id": 1, "name": "Ada"}
ORG_1 = "SELECT name FROM users WHERE org = :org ORDER BY id"


def test_a_fixed_key_gives_one_row(users: Database) -> None:
    @db.input("user", url=users.url, table="users", pk={"org": 1, "id": 1}, engine_provider=users.provider)
    def handler(user: Any) -> Any:
        return user

    assert handler() == ADA


def test_a_key_can_come_from_the_other_arguments(users: Database) -> None:
    @db.input(
        "user",
        url=users.url,
        table="users",
        pk=lambda req, org: {"id": req["id"], "org": org},
        engine_provider=users.provider,
    )
    def handler(req: Any, org: int, user: Any) -> Any:
        return req, user

    assert handler(req={"id": 1}, org=1) == ({"id": 1}, ADA)
    assert handler({"id": 1}, 1) == ({"id": 1}, ADA)
    assert handler({"id": 9}, org=1) == ({"id": 9}, None)


def test_a_query_gives_many_rows(users: Database) -> None:
    @db.input("found", url=users.url, query=ORG_1, params={"org": 1}, engine_provider=users.provider)
    def fixed(found: Any) -> Any:
        return found

    @db.input("found", url=users.url, query=ORG_1, params=lambda req: {"org": req}, engine_provider=users.provider)
    def asked(req: int, found: Any) -> Any:
        return found

    @db.input("found", url=users.url, query="SELECT count(*) AS n FROM users", engine_provider=users.provider)
    def without(found: Any) -> Any:
        return found

    assert fixed() == [{"name": "Ada"}, {"name": "Grace"}]
    assert asked(req=2) == [{"name": "Edsger"}]
    assert asked(3) == []
    assert without() == [{"n": 3}]


def test_async_handlers_get_the_same(users: Database) -> None:
    @db.input(
        "user", url=users.url, table="users", pk=lambda req: req, on_not_found="raise", engine_provider=users.provider
    )
    async def one(req: Any, user: Any) -> Any:
        return user

    @db.input("found", url=users.url, query=ORG_1, params=lambda req: req, engine_provider=users.provider)
    async def many(req: Any, found: Any) -> Any:
        return found

    async def calls() -> None:
        assert await one(req={"org": 1, "id": 1}) == ADA
        assert await one({"org": 1, "id": 1}) == ADA
        assert await many(req={"org": 1}) == [{"name": "Ada"}, {"name": "Grace"}]
        with pytest.raises(NotFoundError):
            await one(req={"org": 9, "id": 9})

    asyncio.run(calls())


def test_a_row_that_is_not_there_is_none_or_an_error_as_was_asked(users: Database) -> None:
    target: dict[str, Any] = {"url": users.url, "table": "users", "engine_provider": users.provider}

    @db.input("user", pk={"org": 9, "id": 9}, **target)
    def lenient(user: Any) -> Any:
        return user

    @db.input("user", pk={"org": 9, "id": 9}, on_not_found="raise", **target)
    def strict(user: Any) -> None:
        pytest.fail("must not be called")

    assert lenient() is None
    with pytest.raises(NotFoundError, match=r"table 'users' has no row with \{'org': 9, 'id': 9\}"):
        strict()


def test_the_database_is_looked_for_when_the_handler_is_called(
    users: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    @db.input("user", url="%USERS_DB%", table="users", pk={"org": 1, "id": 1})
    def handler(user: Any) -> Any:
        return user

    with pytest.raises(ConfigurationError, match="'USERS_DB' is not set"):
        handler()
    monkeypatch.setenv("USERS_DB", users.url)
    assert handler() == ADA


def test_a_config_can_be_given_instead_of_a_url(users: Database) -> None:
    config = DbConfig(connection_url=users.url, pool_size=2)

    @db.input("user", db_config=config, table="users", pk={"org": 1, "id": 1}, engine_provider=users.provider)
    def handler(user: Any) -> Any:
        return user

    assert handler() == ADA
    assert users.provider.get_engine(config).pool.size() == 2  # type: ignore[attr-defined]  # a QueuePool has it


def test_a_schema_can_be_given(postgres: Database) -> None:
    postgres.execute("CREATE SCHEMA south")
    postgres.execute("CREATE TABLE south.sites (id integer PRIMARY KEY)")
    postgres.execute("INSERT INTO south.sites VALUES (1)")

    @db.input("site", url=postgres.url, table="sites", schema="south", pk={"id": 1}, engine_provider=postgres.provider)
    def handler(site: Any) -> Any:
        return site

    assert handler() == {"id": 1}


def test_a_resolver_is_given_defaults_the_handler_has(users: Database) -> None:
    @db.input("found", url=users.url, query=ORG_1, params=lambda org: {"org": org}, engine_provider=users.provider)
    def handler(found: Any, org: int = 2) -> Any:
        return found, org

    assert handler() == ([{"name": "Edsger"}], 2)
    assert handler(org=1) == ([{"name": "Ada"}, {"name": "Grace"}], 1)


def test_what_a_resolver_raises_comes_through(users: Database) -> None:
    @db.input("user", url=users.url, table="users", pk=lambda req: {"id": req["id"]}, engine_provider=users.provider)
    def handler(req: Any, user: Any) -> None:
        pytest.fail("must not be called")

    with pytest.raises(KeyError, match="id"):
        handler(req={})
    with pytest.raises(ConfigurationError, match=r"The primary key of 'users' is \(org, id\), but pk has \(id\)"):
        handler(req={"id": 1})


def test_a_resolver_must_return_a_dict(users: Database) -> None:
    @db.input("user", url=users.url, table="users", pk=lambda req: req, engine_provider=users.provider)
    def handler(req: Any, user: Any) -> None:
        pytest.fail("must not be called")

    for wrong in (None, 7, [("org", 1)]):
        with pytest.raises(ConfigurationError, match=r"input pk: the callable must return a dict, not"):
            handler(req=wrong)


def test_the_handler_does_not_run_when_the_read_fails(sqlite: Database) -> None:
    @db.input("found", url=sqlite.url, query="SELECT * FROM nowhere", engine_provider=sqlite.provider)
    def handler(found: Any) -> None:
        pytest.fail("must not be called")

    with pytest.raises(QueryError, match="nowhere"):
        handler()


def test_what_the_handler_gets_is_its_own(sqlite: Database) -> None:
    """A handler may change what it got, and the dict it gave us, without the next call noticing."""
    sqlite.execute("CREATE TABLE users (id integer PRIMARY KEY, name text)")
    sqlite.execute("INSERT INTO users VALUES (1, 'Ada')")
    key: dict[str, object] = {"id": 1}

    @db.input("user", url=sqlite.url, table="users", pk=key, engine_provider=sqlite.provider)
    def handler(user: Any) -> Any:
        user["name"] = "changed"
        return user

    key["id"] = 99
    assert handler() == handler() == {"id": 1, "name": "changed"}


URL = "sqlite:///unused.db"
REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"url": URL, "table": "t"}, "pass exactly one of pk .* or query"),
    ({"url": URL, "table": "t", "pk": {"id": 1}, "query": "SELECT 1"}, "pass exactly one of pk .* or query"),
    ({"url": URL, "table": "t", "pk": {}}, "pk must not be empty: name every column of the primary key"),
    ({"url": URL, "query": ""}, "query must be a SQL text"),
    ({"url": URL, "query": " \n"}, "query must be a SQL text"),
    ({"url": URL, "query": 7}, "query must be a SQL text"),
    ({"url": URL, "pk": {"id": 1}}, "pk needs table="),
    ({"url": URL, "table": "", "pk": {"id": 1}}, "table must not be empty"),
    ({"url": URL, "table": "t", "pk": {"id": 1}, "params": {"a": 1}}, "params belong to query"),
    ({"url": URL, "query": "SELECT 1", "on_not_found": "ignore"}, "must be 'none' or 'raise', not 'ignore'"),
    ({"url": URL, "query": "SELECT 1", "on_not_found": "raise"}, "on_not_found='raise' belongs to pk; a query that"),
    ({"url": URL, "query": "SELECT 1", "engine_provider": "x"}, "engine_provider must be an EngineProvider, not str"),
    ({"db_config": URL, "query": "SELECT 1"}, "input: db_config must be a DbConfig; pass a URL as url="),
    ({"url": "%DB_URL", "query": "SELECT 1"}, "write it as %DB_URL%"),
    ({"table": "t", "pk": {"id": 1}}, "exactly one of url and db_config"),
    (
        {"url": URL, "db_config": DbConfig(connection_url=URL), "table": "t", "pk": {"id": 1}},
        "exactly one of url and db_config",
    ),
    ({"url": "", "table": "t", "pk": {"id": 1}}, "url must not be empty"),
    ({"url": "not a url", "table": "t", "pk": {"id": 1}}, "cannot be parsed"),
    ({"url": URL, "table": "t", "pk": 7}, "input pk: pass a dict, or a callable that returns one, not int"),
    ({"url": URL, "query": "SELECT 1", "params": [1]}, "input params: pass a dict, .* not list"),
    (
        {"url": URL, "table": "t", "pk": lambda nobody: {}},
        "asks for 'nobody', which handler 'handler' has not. It has: req",
    ),
    ({"url": URL, "table": "t", "pk": lambda user: {}}, "asks for 'user', which handler 'handler' has not"),
    (
        {"url": URL, "table": "t", "pk": lambda *req: {}},
        r"named parameters only, not '\*req'. Name those .* needs: req",
    ),
    ({"url": URL, "table": "t", "pk": lambda **req: {}}, r"named parameters only, not '\*\*req'"),
    ({"url": URL, "table": "t", "pk": lambda req, /: {}}, "named parameters only, not 'req'"),
    ({"url": URL, "table": "t", "pk": {}.get}, "parameters of .* cannot be seen|named parameters only"),
    ({"url": URL, "query": "SELECT 1", "params": lambda nobody: {}}, "input params: the callable asks for 'nobody'"),
    ({"url": URL, "query": "SELECT 1", "model": int}, "model must be a Pydantic BaseModel or a dataclass, but 'int'"),
    ({"url": URL, "query": "SELECT 1", "model": 7}, "but 'int' is neither"),
]


@pytest.mark.parametrize(("settings", "said"), REFUSED, ids=[said for _, said in REFUSED])
def test_what_cannot_work_is_refused_when_the_decorator_is_applied(settings: dict[str, Any], said: str) -> None:
    def handler(req: Any, user: Any) -> None: ...

    with pytest.raises(ConfigurationError, match=said) as caught:
        db.input("user", **settings)(handler)
    assert "\n" not in str(caught.value)


def test_an_async_resolver_is_refused() -> None:
    async def key(req: Any) -> dict[str, object]:
        return {}

    def handler(req: Any, user: Any) -> None: ...

    with pytest.raises(ConfigurationError, match="must be a plain function, not an async one"):
        db.input("user", url=URL, table="t", pk=key)(handler)  # type: ignore[arg-type]  # what is refused


def test_a_parameter_that_cannot_be_given_by_name_is_refused() -> None:
    def handler(req: Any, /, user: Any) -> None: ...

    with pytest.raises(ConfigurationError, match=r"'req' of 'handler' can be given by position only.* Remove the /"):
        db.input("user", url=URL, table="t", pk={"id": 1})(handler)
