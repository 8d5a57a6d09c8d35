"""A process that starts while its database takes no writes is told so in one sentence, and begins nothing.

One that works already goes on trying: `test_13_17_survey.py`, and the fail-overs of `tests/jobs`.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import create_engine, make_url, text
from sqlalchemy.exc import OperationalError

from holdfast import EngineProvider, Holdfast
from holdfast.cli.exits import ExitCode, exit_code_of
from holdfast.core.errors import DbError, WriteError
from holdfast.database import server_roles
from holdfast.jobs.grpc.server import JobsServer
from holdfast.lease.stores.file import FileDocumentStore
from holdfast.lease.stores.sql import SqlDocumentStore
from tests.causes.roles import Role
from tests.components.postgres import PostgresServer, Standby
from tests.components.prepared import postgres_url as postgres_url
from tests.components.processes import wait_until
from tests.jobs.failover import ordinary_user, read_only
from tests.runtime.workloads import running


@pytest.fixture
def provider() -> Iterator[EngineProvider]:
    made = EngineProvider()
    yield made
    made.dispose_all()


def on_standby(url: str, standby: Standby) -> str:
    """Return the URL of the same database there, once it has Holdfast's tables."""
    there = make_url(standby.url()).set(database=make_url(url).database).render_as_string()
    engine = create_engine(there)

    def has_tables() -> bool:
        try:
            with engine.connect() as connection:
                return connection.execute(text("SELECT to_regclass('holdfast_outbox')")).scalar() is not None
        except OperationalError:
            return False

    wait_until(has_tables, "the standby to have the tables")
    engine.dispose()
    return there


def refusal(act: Callable[[], object]) -> str:
    with pytest.raises(WriteError) as refused:
        act()
    assert exit_code_of(refused.value) == ExitCode.FAILED  # a supervisor that restarts helps
    sentence = str(refused.value)
    assert "\n" not in sentence
    assert "Nothing was begun" in sentence
    return sentence


def declaring(app: Holdfast) -> dict[str, Callable[[], Any]]:
    """Return what declares each workload alone."""
    return {
        "job": lambda: app.job("greet")(lambda: None),
        "trigger": lambda: app.trigger("orders", cursor="id")(lambda events: None),
        "processor": lambda: app.processor("totals")(lambda messages: None),
        "engine": lambda: app.engine("mail")(lambda context, message: None),
    }


@pytest.mark.parametrize("workload", ["job", "trigger", "processor", "engine"])
def test_15_a_standby_as_the_applications_database_is_refused(
    workload: str, postgres_url: str, standby: Standby, provider: EngineProvider
) -> None:
    app = Holdfast(on_standby(postgres_url, standby), engine_provider=provider)
    declaring(app)[workload]()
    sentence = refusal(lambda: app.run(handle_signals=False))
    assert f"/{make_url(postgres_url).database} is a standby and takes no writes. " in sentence
    assert "target_session_attrs=read-write" in sentence
    assert refusal(app.validate) == sentence


def test_15_of_several_servers_the_one_that_takes_writes_is_found(
    postgres_url: str, postgres_server: PostgresServer, standby: Standby, provider: EngineProvider
) -> None:
    on_standby(postgres_url, standby)
    hosts = "&".join(f"host=127.0.0.1:{server.port}" for server in (standby, postgres_server))
    url = f"postgresql://postgres@/{make_url(postgres_url).database}?{hosts}&target_session_attrs=read-write"
    app = Holdfast(url, engine_provider=provider)
    app.job("greet")(lambda: app.stop()).enqueue()
    assert app.run(handle_signals=False)


def test_15_a_standby_as_the_state_store_is_refused(
    postgres_url: str, standby: Standby, tmp_path: Path, provider: EngineProvider
) -> None:
    state = SqlDocumentStore(create_engine(on_standby(postgres_url, standby)))
    app = Holdfast(f"sqlite:///{tmp_path}/shop.db", state=state, engine_provider=provider)
    app.trigger("orders", cursor="id")(lambda events: None)
    with app.database.begin() as connection:
        connection.execute(text("CREATE TABLE orders (id INTEGER PRIMARY KEY AUTOINCREMENT)"))
    assert " is a standby and takes no writes" in refusal(lambda: app.run(handle_signals=False))
    state.engine.dispose()


def test_15_a_standby_that_is_read_only_by_a_trigger_is_not_refused(
    postgres_url: str, standby: Standby, tmp_path: Path, provider: EngineProvider
) -> None:
    url = on_standby(postgres_url, standby)
    app = Holdfast(url, state=FileDocumentStore(tmp_path), engine_provider=provider)
    app.trigger("orders", cursor="id")(lambda events: None)
    with pytest.raises(DbError) as refused:  # there are no orders
        app.validate()
    assert not isinstance(refused.value, WriteError)


def test_15_a_jobs_server_on_a_standby_serves_none(
    postgres_url: str, standby: Standby, provider: EngineProvider
) -> None:
    app = Holdfast(on_standby(postgres_url, standby), engine_provider=provider)
    refusal(JobsServer(app.jobs.store, "127.0.0.1:0").start)


def test_15_a_role_whose_sessions_are_read_only_is_refused_until_they_are_not(role: Role) -> None:
    if not role.is_postgres:
        pytest.skip("MariaDB has no such setting of a role")
    role.grant_everything_but("", "")
    role.do("ALTER ROLE {role} SET default_transaction_read_only = on")
    sentence = refusal(lambda: role.app.run(handle_signals=False))
    assert "default_transaction_read_only = on (set by: user)" in sentence
    role.do("ALTER ROLE {role} RESET default_transaction_read_only")
    role.greet.enqueue()
    assert role.app.run(handle_signals=False)
    assert role.runs == ["greet"]


def test_15_a_read_only_mariadb_is_refused_until_it_is_not(role: Role) -> None:
    if role.is_postgres:
        pytest.skip("is about MariaDB")
    role.grant_everything_but("", "")
    role.do("SET GLOBAL read_only = 1")
    try:
        sentence = refusal(lambda: role.app.run(handle_signals=False))
        assert " takes no writes: (1290, " in sentence
        assert "--read-only" in sentence
        role.owner.validate()  # root may write all the same
    finally:
        role.do("SET GLOBAL read_only = 0")
    role.greet.enqueue()
    assert role.app.run(handle_signals=False)
    assert role.runs == ["greet"]


@pytest.mark.parametrize("setting", ["tx_read_only"])
def test_15_sessions_of_mariadb_that_are_read_only_are_refused(role: Role, setting: str) -> None:
    if role.is_postgres:
        pytest.skip("is about MariaDB")
    role.grant_everything_but("", "")
    role.do(f"SET GLOBAL {setting} = 1")
    try:
        assert " takes no writes: (1792, " in refusal(lambda: role.app.run(handle_signals=False))
    finally:
        role.do(f"SET GLOBAL {setting} = 0")


def greeting(url: str, greet: Callable[[], None] = lambda: None) -> Holdfast:
    """Return an application with one job, and sessions of its own."""
    app = Holdfast(url, engine_provider=EngineProvider())
    app.job("greet", name="greet")(greet)
    return app


@pytest.mark.parametrize("database", ["postgres_url", "mariadb_url"])
def test_15_a_process_that_works_outlives_a_database_that_takes_no_writes_for_a_while(
    database: str, request: pytest.FixtureRequest
) -> None:
    greeting(request.getfixturevalue(database)).migrate()
    with ordinary_user(request.getfixturevalue(database)) as url:
        is_at_work, done = threading.Event(), threading.Event()
        app = greeting(url, done.set)
        with running(app, drain_seconds=1, on_started=is_at_work.set):
            assert is_at_work.wait(30)
            with read_only(url):
                refusal(lambda: greeting(url).run(handle_signals=False))
            greeting(url).jobs.definitions[0].enqueue()
            wait_until(done.is_set, "the job after the fail-over")
        app._provider.dispose_all()


def test_15_without_the_check_a_read_only_process_starts(role: Role, monkeypatch: pytest.MonkeyPatch) -> None:
    if not role.is_postgres:
        pytest.skip("one database shows it")
    role.grant_everything_but("", "")
    role.do("ALTER ROLE {role} SET default_transaction_read_only = on")
    monkeypatch.setattr(server_roles, "_SERVERS", ())
    role.app.validate()
