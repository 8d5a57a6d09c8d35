"""One budget of connections: fixed sizes that add up, sessions that begin as they should, waits that are told of."""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest
from sqlalchemy import text
from sqlalchemy.engine import Engine

from holdfast import ConfigurationError, DbConfig, EngineProvider, Holdfast, SqlAlchemySource
from holdfast.core.config import ResolvedDbConfig
from holdfast.core.errors import Unavailable
from holdfast.database import bounded_pool, budget, connection_slots
from holdfast.database.bounded_pool import BoundedPool
from holdfast.database.budget import Budget, PoolName
from holdfast.database.connection_slots import slots_of
from holdfast.database.pools import Pools, _providers
from holdfast.jobs.model import NewJob
from holdfast.jobs.store import job_store
from tests.components.prepared import mariadb_url as mariadb_url
from tests.components.prepared import postgres_url as postgres_url

POSTGRES, MARIADB = "postgresql://app@db/shop", "mariadb://app@db/shop"
JOB = NewJob(topic="email", operation="send", payload="{}")
IN_USE = {
    "postgresql": "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database()",
    "mysql": "SELECT count(*) FROM information_schema.processlist WHERE db = DATABASE()",
}


@pytest.fixture(autouse=True)
def close_everything() -> Iterator[None]:
    yield
    for provider in list(_providers):
        provider.dispose_all()


def pools_of(url: str, max_connections: int = 8, **options: object) -> Pools:
    config = ResolvedDbConfig(connection_url=url, **options)  # type: ignore[arg-type] # as the test gives them
    return Pools(EngineProvider(), Budget(config, max_connections))


@pytest.mark.parametrize("url", [POSTGRES, MARIADB])
@pytest.mark.parametrize("most", [5, 8, 40])
def test_the_sizes_of_the_pools_add_up_to_the_budget(url: str, most: int) -> None:
    shared = Budget(ResolvedDbConfig(connection_url=url), most)
    assert sum(shared.reserved.values()) + shared.size(PoolName.HANDLERS) == most
    assert shared.reserved.keys() >= {PoolName.BEATS, PoolName.WORK}
    assert shared.size(PoolName.SERVING) <= shared.size(PoolName.HANDLERS)  # instead of it, in another process


def test_every_pool_is_bounded_and_none_is_shared() -> None:
    pools = pools_of(POSTGRES, engine_kwargs={"max_overflow": 50})
    engines = {name: pools.engine(name) for name in PoolName}
    assert engines.pop(PoolName.SOURCES) is engines[PoolName.HANDLERS]  # where no session needs a zone of its own
    assert len(set(engines.values())) == len(engines)
    for name, engine in engines.items():
        assert isinstance(engine.pool, BoundedPool)
        assert (engine.pool.size(), engine.pool._max_overflow) == (pools.budget.size(name), 0)


@pytest.mark.parametrize(
    ("pool_size", "expected"), [(5, 36), (3, 3), (90, 36)], ids=["not chosen", "fewer", "more than are left"]
)
def test_a_chosen_pool_size_bounds_the_handlers(pool_size: int, expected: int) -> None:
    config = ResolvedDbConfig(connection_url=POSTGRES, pool_size=pool_size)
    assert Budget(config, 40).size(PoolName.HANDLERS) == expected


@pytest.mark.parametrize(
    ("url", "most", "said"),
    [
        (POSTGRES, 4, "1 for beats \\+ 2 for work \\+ 1 for listening \\+ 1 for handlers are 5.*to 5 or more"),
        (MARIADB, 4, "1 for beats \\+ 2 for work \\+ 1 for sources \\+ 1 for handlers are 5"),
        (POSTGRES, 0, "max_connections=0 cannot be used"),
        (POSTGRES, True, "max_connections=True cannot be used"),
        (POSTGRES, "8", "max_connections='8' cannot be used"),
    ],
)
def test_too_few_connections_are_refused_when_the_application_is_made(url: str, most: int, said: str) -> None:
    with pytest.raises(ConfigurationError, match=said):
        Holdfast(url, max_connections=most)


def test_sqlite_is_exempt() -> None:
    app = Holdfast("sqlite:///shop.db", max_connections=1)
    assert not isinstance(app.database.pool, BoundedPool)
    assert app._resources.pools.budget.for_handlers is None


def test_applications_that_share_a_provider_share_the_budget() -> None:
    provider = EngineProvider()
    one, other = (Holdfast(POSTGRES, engine_provider=provider) for _ in range(2))
    assert one.database is other.database
    assert one.jobs.database() is other.jobs.database()
    assert Holdfast(POSTGRES, engine_provider=provider, max_connections=9).database is not one.database


def test_a_trigger_on_the_applications_own_url_reads_through_its_budget(postgres_url: str) -> None:
    app = Holdfast(postgres_url)
    with app.database.begin() as connection:
        connection.execute(text("CREATE TABLE things (id INT PRIMARY KEY, updated_at TIMESTAMPTZ NOT NULL)"))

    @app.trigger("things", cursor="updated_at", url=postgres_url)
    def see(events: list[object]) -> None: ...

    source = app.runner("things").source
    assert isinstance(source, SqlAlchemySource)
    assert source.database is app.database


# Sessions


def shown(engine: Engine, *names: str) -> list[str]:
    with engine.connect() as connection:
        return [str(connection.execute(text(f"SHOW {name}")).scalar_one()) for name in names]


PLANNED = ("enable_seqscan", "enable_hashjoin", "lock_timeout", "idle_in_transaction_session_timeout")


def test_settings_of_postgresql_are_start_up_options_of_our_own_sessions(postgres_url: str) -> None:
    pools = pools_of(postgres_url)
    assert shown(pools.engine(PoolName.WORK), *PLANNED) == ["off", "off", "10s", "10s"]
    assert shown(pools.engine(PoolName.BEATS), *PLANNED) == ["off", "off", "2s", "10s"]
    assert shown(pools.engine(PoolName.HANDLERS), *PLANNED) == ["on", "on", "0", "0"]
    with pools.engine(PoolName.WORK).connect() as connection:  # what a pooler gives the next one: nothing was SET
        connection.exec_driver_sql("RESET ALL")
        assert connection.exec_driver_sql("SHOW enable_seqscan").scalar_one() == "off"


@pytest.mark.parametrize("way", ["arguments", "url", "environment"])
def test_the_applications_own_start_up_options_are_kept_and_come_last(
    way: str, postgres_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    theirs = "-c enable_seqscan=on -c application_name=shop"
    if way == "environment":
        monkeypatch.setenv("PGOPTIONS", theirs)
    url = f"{postgres_url}?options={theirs.replace(' ', '%20')}" if way == "url" else postgres_url
    pools = pools_of(url, connect_args={"options": theirs} if way == "arguments" else None)
    names = ("enable_seqscan", "application_name", "enable_hashjoin")
    assert shown(pools.engine(PoolName.WORK), *names) == ["on", "shop", "off"]
    assert shown(pools.engine(PoolName.HANDLERS), *names) == ["on", "shop", "on"]


@pytest.mark.parametrize("name", list(PoolName))
def test_every_pool_notices_a_silent_server(name: PoolName, postgres_url: str) -> None:
    pools = pools_of(f"{postgres_url}?connect_timeout=3")
    with pools.engine(name).connect() as connection:
        known = connection.connection.driver_connection.info.get_parameters()  # type: ignore[union-attr] # psycopg's
    expected = ("5000", "2") if name is PoolName.BEATS else ("30000", "10")
    assert (known["tcp_user_timeout"], known["keepalives_idle"]) == expected
    assert known["connect_timeout"] == "3"  # as the URL says


def test_settings_of_mariadb_are_those_of_our_own_sessions(mariadb_url: str) -> None:
    pools = pools_of(mariadb_url, connect_args={"init_command": "SET @mine = 1"})
    asked = text("SELECT @@innodb_lock_wait_timeout, @@idle_transaction_timeout, @@time_zone, @mine")
    found = {}
    for name in (PoolName.BEATS, PoolName.WORK, PoolName.SOURCES, PoolName.HANDLERS):
        with pools.engine(name).connect() as connection:
            found[name] = tuple(connection.execute(asked).one())
    theirs = found[PoolName.HANDLERS]
    assert found[PoolName.BEATS] == (2, 10, theirs[2], 1)
    assert found[PoolName.WORK] == (10, 10, theirs[2], 1)
    assert found[PoolName.SOURCES] == (*theirs[:2], "+00:00", 1)
    assert theirs[1] == 0


# Waiting


@pytest.fixture(params=["postgres_url", "mariadb_url"])
def url(request: pytest.FixtureRequest) -> str:
    found: str = request.getfixturevalue(request.param)
    return found


def test_handlers_that_hold_all_their_connections_can_still_enqueue(url: str) -> None:
    app = Holdfast(url, db_config=None)
    with ThreadPoolExecutor(1) as others:
        held = [app.database.connect() for _ in range(app.database.pool.size())]  # type: ignore[attr-defined]
        assert others.submit(lambda: app.jobs.store.enqueue(JOB)).result().is_new
        with held[0] as connection:
            dialect = connection.dialect.name.replace("mariadb", "mysql")
            assert connection.execute(text(IN_USE[dialect])).scalar_one() <= 8
        for each in held:
            each.close()


def test_planted_one_pool_for_all_would_leave_them_waiting(postgres_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Budget, "_present", lambda self, name: PoolName.HANDLERS)
    pools = pools_of(postgres_url, engine_kwargs={"pool_timeout": 0})
    store = job_store(pools.engine(PoolName.WORK))
    held = [pools.engine(PoolName.HANDLERS).connect() for _ in range(pools.budget.size(PoolName.HANDLERS))]
    with pytest.raises(Unavailable, match=r"all 4 of the pool 'handlers'.*max_connections=8.*Raise max_connections"):
        store.enqueue(JOB)
    for each in held:
        each.close()


def test_a_long_wait_is_logged_once_with_who_holds_the_connections(
    postgres_url: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(bounded_pool, "LONG_WAIT_SECONDS", 0.02)
    pools = pools_of(postgres_url, engine_kwargs={"pool_timeout": 0.1})
    engine = pools.engine(PoolName.BEATS)
    with engine.connect(), ThreadPoolExecutor(1, "waiting") as others, caplog.at_level(logging.WARNING, "holdfast"):
        refused = others.submit(engine.connect).exception()
    [line] = [record.getMessage() for record in caplog.records]
    assert line.startswith("waiting_0 has waited for 0.02 s for a connection of the pool 'beats', which has 1")
    assert f"held by {threading.current_thread().name} (" in line
    assert "all 1 of the pool 'beats' were in use for 0.1 s" in str(refused)


def test_whoever_waits_long_in_the_line_of_transactions_says_so(
    postgres_url: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(connection_slots, "LONG_WAIT_SECONDS", 0.02)
    pools = pools_of(postgres_url, max_connections=5)
    slots = slots_of(pools.engine(PoolName.HANDLERS))
    assert slots is not None
    assert slots is slots_of(pools.engine(PoolName.HANDLERS))  # one line for jobs, triggers and processors
    slots.take()
    with ThreadPoolExecutor(1, "waiting") as others, caplog.at_level(logging.WARNING, "holdfast"):
        waiting = others.submit(slots.take)
        while not caplog.records:
            threading.Event().wait(0.01)
        slots.give_back()
        waiting.result()
    assert "pool 'handlers'" in caplog.text


def test_transactions_leave_one_connection_to_all_else() -> None:
    slots = slots_of(pools_of(POSTGRES).engine(PoolName.HANDLERS))
    assert slots is not None
    assert slots._free == Budget(ResolvedDbConfig(connection_url=POSTGRES)).size(PoolName.HANDLERS) - 1


def test_elsewhere_the_message_names_pool_size(postgres_url: str) -> None:
    config = DbConfig(connection_url=postgres_url, pool_size=1, engine_kwargs={"max_overflow": 0, "pool_timeout": 0})
    engine = EngineProvider().create_isolated_engine(config)
    with engine.connect(), pytest.raises(Unavailable, match=r"No free connection to .*: raise pool_size"):
        job_store(engine).enqueue(JOB)
    engine.dispose()


def test_the_budget_is_documented_as_it_is() -> None:
    assert budget.MAX_CONNECTIONS == 8
