"""Every database's errors mean the same to everybody: each is provoked once, on the real database."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager
from dataclasses import replace
from functools import partial

import pytest
from sqlalchemy.engine import Engine, make_url
from sqlalchemy.exc import DBAPIError, SQLAlchemyError

from holdfast.core.config import DbConfig
from holdfast.core.errors import Ambiguous, ConfigurationError, DbError, JobError, StateStoreError, Unavailable
from holdfast.database.errors import PASSING, TRIED_AGAIN, Failure, Kind, classified, kind_of, may_be_tried_again
from holdfast.database.pools import EngineProvider
from holdfast.jobs.stores.answers import _as_ours as queue_answer
from holdfast.jobs.stores.answers import translated as queue_translated
from holdfast.lease.stores.sql import _as_ours as state_answer
from holdfast.records.database import _as_ours as records_answer
from holdfast.records.database import translated as records_translated
from holdfast.runtime.refusals import refuses_commit
from tests.driver_errors import situations
from tests.driver_errors.situations import Situation, saying

POSTGRES: dict[str, tuple[Situation, Kind]] = {
    "deadlock": (situations.deadlock, Kind.CONTENTION),
    "serialization failure": (situations.serialization_failure, Kind.CONTENTION),
    "lock time-out": (situations.lock_timeout, Kind.CONTENTION),
    "unique key": (saying("INSERT INTO things VALUES (1, 0)"), Kind.CONSTRAINT),
    "check": (saying("UPDATE things SET amount = 100"), Kind.CONSTRAINT),
    "missing table": (saying("SELECT * FROM missing_things"), Kind.MISSING_TABLE),
    "missing column": (saying("SELECT colour FROM things"), Kind.MISSING_COLUMN),
    "no right": (saying("SET LOCAL ROLE pg_monitor", "SELECT * FROM things"), Kind.DENIED),
    "read-only transaction": (saying("SET TRANSACTION READ ONLY", "DELETE FROM things"), Kind.READ_ONLY),
    "full disk": (saying("DO $$ BEGIN RAISE 'full' USING ERRCODE = 'disk_full'; END $$"), Kind.DISK_FULL),
    "too many columns": (saying(f"SELECT {', '.join(['1'] * 2000)}"), Kind.TOO_LARGE),
    "killed session": (situations.killed_session, Kind.BROKEN),
    "statement time-out": (saying("SET LOCAL statement_timeout = 1", "SELECT pg_sleep(60)"), Kind.UNAVAILABLE),
    "nobody listens": (situations.no_server, Kind.UNREACHABLE),
    "wrong user": (situations.wrong_user, Kind.UNREACHABLE),
    "missing database": (situations.no_database, Kind.UNREACHABLE),
    "empty pool": (situations.empty_pool, Kind.NO_FREE_CONNECTION),
    "wrong syntax": (saying("SELEKT 1"), Kind.OTHER),
    "a rule's own word": (saying("DO $$ BEGIN RAISE 'no'; END $$"), Kind.OTHER),
}
MARIADB: dict[str, tuple[Situation, Kind]] = {
    "deadlock": (situations.deadlock, Kind.CONTENTION),
    "lock time-out": (situations.lock_timeout, Kind.CONTENTION),
    "unique key": (saying("INSERT INTO things VALUES (1, 0)"), Kind.CONSTRAINT),
    "check": (saying("UPDATE things SET amount = 100"), Kind.CONSTRAINT),
    "missing table": (saying("SELECT * FROM missing_things"), Kind.MISSING_TABLE),
    "missing table, in German": (
        saying("SET lc_messages = 'de_DE'", "SELECT * FROM missing_things"),
        Kind.MISSING_TABLE,
    ),
    "missing column": (saying("SELECT colour FROM things"), Kind.MISSING_COLUMN),
    "no right": (situations.without_rights, Kind.DENIED),
    "read-only transaction": (saying("START TRANSACTION READ ONLY", "DELETE FROM things"), Kind.READ_ONLY),
    "full table": (
        saying(
            "SET SESSION max_heap_table_size = 16384",
            "CREATE OR REPLACE TEMPORARY TABLE small (word CHAR(200)) ENGINE = MEMORY",
            "INSERT INTO small SELECT 'x' FROM seq_1_to_5000",
        ),
        Kind.DISK_FULL,
    ),
    "too large a row": (saying("CREATE TABLE wide (a VARCHAR(10000), b VARCHAR(10000))"), Kind.TOO_LARGE),
    "killed session": (situations.killed_session, Kind.BROKEN),
    "statement time-out": (
        saying("SET STATEMENT max_statement_time = 0.001 FOR SELECT SUM(seq MOD 7) FROM seq_1_to_100000000"),
        Kind.UNAVAILABLE,
    ),
    "nobody listens": (situations.no_server, Kind.UNREACHABLE),
    "wrong user": (situations.wrong_user, Kind.UNREACHABLE),
    "missing database": (situations.no_database, Kind.UNREACHABLE),
    "empty pool": (situations.empty_pool, Kind.NO_FREE_CONNECTION),
    "wrong syntax": (saying("SELEKT 1"), Kind.OTHER),
    "a rule's own word": (saying("SIGNAL SQLSTATE '45000' SET MESSAGE_TEXT = 'no'"), Kind.OTHER),
    "a value that is none": (saying("INSERT INTO things VALUES (3, CAST('x' AS INT))"), Kind.OTHER),
}
SQLITE: dict[str, tuple[Situation, Kind]] = {
    "busy": (situations.busy_file, Kind.CONTENTION),
    "locked table": (situations.locked_table, Kind.CONTENTION),
    "unique key": (saying("INSERT INTO things VALUES (1, 0)"), Kind.CONSTRAINT),
    "check": (saying("UPDATE things SET amount = 100"), Kind.CONSTRAINT),
    "missing table": (saying("SELECT * FROM missing_things"), Kind.MISSING_TABLE),
    "missing column": (saying("SELECT colour FROM things"), Kind.MISSING_COLUMN),
    "missing column, written": (saying("INSERT INTO things (colour) VALUES (1)"), Kind.MISSING_COLUMN),
    "read-only": (saying("PRAGMA query_only = ON", "DELETE FROM things"), Kind.READ_ONLY),
    "full": (situations.full_file, Kind.DISK_FULL),
    "too big a value": (situations.too_big_a_value, Kind.TOO_LARGE),
    "closed": (situations.closed_file, Kind.BROKEN),
    "missing folder": (situations.missing_folder, Kind.UNREACHABLE),
    "wrong syntax": (saying("SELEKT 1"), Kind.OTHER),
}


@pytest.fixture
def engine(request: pytest.FixtureRequest) -> Iterator[Engine]:
    engine = EngineProvider().create_isolated_engine(DbConfig(connection_url=request.getfixturevalue(request.param)))
    situations.make_things(engine)
    yield engine
    engine.dispose()


def provoked(engine: Engine, situation: Situation) -> Exception:
    with pytest.raises(SQLAlchemyError) as caught:
        situation(engine)
    return caught.value


def cases(database: str, table: dict[str, tuple[Situation, Kind]]) -> list[object]:
    return [pytest.param(database, *case, id=f"{database}: {name}") for name, case in table.items()]


ALL = [*cases("postgres_url", POSTGRES), *cases("mariadb_url", MARIADB), *cases("sqlite_url", SQLITE)]


@pytest.mark.parametrize(("engine", "situation", "kind"), ALL, indirect=["engine"])
def test_an_error_is_what_its_code_says(engine: Engine, situation: Situation, kind: Kind) -> None:
    error = provoked(engine, situation)
    assert kind_of(error) is kind
    raw = getattr(error, "orig", None)
    if raw is not None and kind not in (Kind.BROKEN, Kind.UNREACHABLE):
        assert kind_of(raw) is kind, "the driver's own error means the same"
    if isinstance(error, DBAPIError):
        assert may_be_tried_again(error) is (kind in TRIED_AGAIN)
        assert refuses_commit(error) is (kind not in PASSING)


@pytest.mark.parametrize(("engine", "situation", "kind"), ALL, indirect=["engine"])
def test_the_queue_and_the_records_agree_on_what_may_pass(engine: Engine, situation: Situation, kind: Kind) -> None:
    for translated in (queue_translated(engine), records_translated(engine, writes=True)):
        with pytest.raises(DbError) as caught, translated:
            situation(engine)
        assert may_be_tried_again(caught.value) is (kind is Kind.CONTENTION)
        assert isinstance(caught.value, Unavailable) or kind not in (Kind.CONTENTION, Kind.READ_ONLY, Kind.DISK_FULL)
        assert isinstance(caught.value, Ambiguous) is (kind is Kind.BROKEN)
        assert "guessed" not in str(caught.value)


@pytest.mark.parametrize("engine", ["mariadb_url"], indirect=True)
def test_more_than_mariadb_takes_at_once_is_too_large_or_breaks_the_connection(engine: Engine) -> None:
    """Which of both depends on whether the server's answer was read before it hung up."""
    assert kind_of(provoked(engine, situations.large_packet)) in (Kind.TOO_LARGE, Kind.BROKEN)


@pytest.mark.parametrize("engine", ["postgres_url", "mariadb_url", "sqlite_url"], indirect=True)
def test_only_our_own_missing_tables_are_ours(engine: Engine) -> None:
    ours = provoked(engine, saying("SELECT * FROM holdfast_jobs"))
    theirs = provoked(engine, saying("SELECT * FROM missing_things"))
    assert classified(engine.url, ours).is_ours
    assert not classified(engine.url, theirs).is_ours
    assert _told(queue_translated(engine), ours, JobError).startswith("The tables of the queue are missing in ")
    told = _told(records_translated(engine, writes=True), ours, ConfigurationError)
    assert told.startswith("Holdfast's tables are missing in ")


@pytest.mark.parametrize("engine", ["postgres_url", "mariadb_url", "sqlite_url"], indirect=True)
def test_a_missing_column_of_ours_is_an_older_schema(engine: Engine) -> None:
    saying("CREATE TABLE holdfast_jobs (id INTEGER)")(engine)
    for statement in ("INSERT INTO holdfast_jobs (colour) VALUES (1)", "SELECT colour FROM holdfast_jobs"):
        error = provoked(engine, saying(statement))
        for told in (
            _told(queue_translated(engine), error, JobError),
            _told(records_translated(engine, writes=True), error, ConfigurationError),
        ):
            assert told.endswith("are older than it is. Run 'holdfast migrate'.")


def _told(translated: AbstractContextManager[None], error: Exception, kind: type[DbError]) -> str:
    with pytest.raises(kind) as caught, translated:
        raise error
    return str(caught.value)


def test_ours_that_promise_nothing_are_not_tried_again() -> None:
    assert not may_be_tried_again(Unavailable("nobody knows why"))
    assert not may_be_tried_again(StateStoreError("no"))
    assert not may_be_tried_again(ValueError("no"))


PARTS = {
    "state": (partial(state_answer, False), StateStoreError),
    "queue": (partial(queue_answer, False), JobError),
    "records": (partial(records_answer, True), ConfigurationError),
}


@pytest.mark.parametrize("part", PARTS)
def test_a_missing_table_is_one_of_ours_only_where_the_error_names_one(part: str) -> None:
    answer, refused = PARTS[part]
    url = make_url("sqlite:///shop.db")
    missing = Failure(Kind.MISSING_TABLE, url, "no such table: holdfast_x", True, True, DBAPIError("", {}, Exception()))
    assert type(answer(missing)) is refused
    assert "holdfast migrate" in str(answer(missing))
    theirs = answer(replace(missing, why="no such table: {orders}", is_ours=False))
    assert "could not be used: no such table: {orders}" in str(theirs)
    assert "migrate" not in str(theirs)
