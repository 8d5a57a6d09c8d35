"""How a row could be skipped on PostgreSQL, one test for each trap; and what is refused because nothing is sound."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from datetime import datetime

import pytest
from sqlalchemy import create_engine, text
from sqlalchemy.engine import Engine, make_url
from sqlalchemy.exc import OperationalError

from holdfast import SqlAlchemySource
from holdfast.core.errors import MissingGrantError, SourceConfigurationError
from holdfast.database import postgres_writers
from holdfast.trigger.sources.horizons import postgres, ticks
from tests.components.postgres import PostgresServer
from tests.components.postgres_pair import Standby
from tests.components.processes import wait_until
from tests.trigger.late_commits import kinds, plants, scenarios
from tests.trigger.late_commits.items import Count, Items, Poller
from tests.trigger.late_commits.kinds import CursorKind

on_every_kind = pytest.mark.parametrize("kind", kinds.POSTGRES, ids=str)
on_updatable = pytest.mark.parametrize("kind", [kinds.PG_XID8, kinds.PG_TIMESTAMPTZ, kinds.PG_TIMESTAMP], ids=str)
on_each_horizon = pytest.mark.parametrize("kind", [kinds.PG_XID8, kinds.PG_TIMESTAMPTZ, kinds.PG_IDENTITY], ids=str)
on_seconds = pytest.mark.parametrize("kind", [kinds.PG_TIMESTAMPTZ_0], ids=str)
on_time = pytest.mark.parametrize("kind", [kinds.PG_TIMESTAMPTZ], ids=str)
on_identity = pytest.mark.parametrize("kind", [kinds.PG_IDENTITY], ids=str)
on_xid8 = pytest.mark.parametrize("kind", [kinds.PG_XID8], ids=str)


@pytest.fixture
def items(kind: CursorKind, postgres_url: str) -> Iterator[Items]:
    opened = Items(kind, postgres_url)
    yield opened
    opened.close()


@on_every_kind
def test_a_late_commit_is_delivered(items: Items) -> None:
    assert scenarios.late_commit(items, items.poller()) == Count(2, 2, 0, frozenset())


@on_every_kind
def test_without_a_horizon_a_late_commit_is_lost(items: Items) -> None:
    assert scenarios.late_commit(items, items.poller("none")).lost == {1}


@on_each_horizon
def test_rows_under_savepoints_are_delivered(items: Items) -> None:
    assert scenarios.savepoints(items, items.poller()).lost == frozenset()


@on_updatable
def test_an_update_that_waited_for_a_row_lock_is_delivered(items: Items) -> None:
    assert scenarios.update_that_waited(items, items.poller()).lost == frozenset()


@on_updatable
def test_without_a_horizon_an_update_that_waited_is_lost(items: Items) -> None:
    assert scenarios.update_that_waited(items, items.poller("none")).lost >= {1}


@on_seconds
def test_a_lower_key_updated_later_in_the_same_second_is_delivered(items: Items) -> None:
    assert scenarios.lower_key_in_the_same_tick(items, items.poller()).lost == frozenset()


@on_seconds
def test_without_a_horizon_a_lower_key_in_the_same_second_is_lost(items: Items) -> None:
    assert scenarios.lower_key_in_the_same_tick(items, items.poller("none")).lost >= {1}


@contextmanager
def prepared(items: Items, name: str, *statements: str) -> Iterator[Callable[[], None]]:
    """Prepare a transaction; the block commits it, or it is rolled back in the end."""
    session, outside = items.session(), items.session(autocommit=True)
    for each in statements:
        session.run(each)
    session.run(f"PREPARE TRANSACTION '{name}'")
    session.rollback()
    try:
        yield lambda: outside.run(f"COMMIT PREPARED '{name}'")
    finally:
        if outside.scalar(f"SELECT count(*) FROM pg_prepared_xacts WHERE gid = '{name}'"):
            outside.run(f"ROLLBACK PREPARED '{name}'")


def late_prepared_commit(items: Items, poller: Poller) -> Count:
    with prepared(items, f"late {items.kind}", items.insert(1)) as commit:
        items.execute(items.insert(2))
        items.let_tick_pass(2)
        items.look(poller, 2)
        commit()
    return items.drain(poller)


@on_each_horizon
def test_a_prepared_transaction_is_waited_for(items: Items) -> None:
    poller = items.poller()
    with prepared(items, f"slow {items.kind}", items.insert(1)) as commit:
        items.execute(items.insert(2))
        items.look(poller, 2)
        restarted = items.poller()
        items.look(restarted, 2)
        assert not poller.delivered
        assert not restarted.delivered
        assert "prepared transaction" in poller.held_back_by[0]
        commit()
    assert items.drain(poller) == Count(2, 2, 0, frozenset())


@on_identity
def test_a_listed_session_that_prepares_its_transaction_is_still_waited_for(items: Items) -> None:
    poller, session, outside = items.poller(), items.session(), items.session(autocommit=True)
    session.run(items.insert(1))
    items.execute(items.insert(2))
    poller.poll()
    session.run("PREPARE TRANSACTION 'moved'")
    session.rollback()
    items.look(poller, 2)
    outside.run("COMMIT PREPARED 'moved'")
    assert items.drain(poller).lost == frozenset()


@on_each_horizon
def test_a_database_that_always_has_a_prepared_transaction_is_read_nevertheless(items: Items) -> None:
    poller, outside = items.poller(), items.session(autocommit=True)
    names = [f"{items.kind} {at}" for at in range(6)]
    for at, name in enumerate(names):
        session = items.session()
        session.run(items.insert(at + 1))
        session.run(f"PREPARE TRANSACTION '{name}'")
        session.rollback()
        poller.poll()
        if at:
            outside.run(f"COMMIT PREPARED '{names[at - 1]}'")
    items.look(poller, 4)
    read_meanwhile = {key for key, _ in poller.delivered}
    outside.run(f"COMMIT PREPARED '{names[-1]}'")
    assert {1, 2, 3} <= read_meanwhile
    assert items.drain(poller) == Count(6, 6, 0, frozenset())


PARTITIONED = {
    "identity": (
        "CREATE TABLE items (id BIGINT GENERATED ALWAYS AS IDENTITY, version INT NOT NULL DEFAULT 1, "
        "PRIMARY KEY (id, version)) PARTITION BY LIST (version)",
        "CREATE TABLE leaf PARTITION OF items FOR VALUES IN (1)",
    ),
    "shared sequence, two levels": (
        "CREATE SEQUENCE item_ids",
        "CREATE TABLE items (id BIGINT NOT NULL DEFAULT nextval('item_ids'), version INT NOT NULL DEFAULT 1, "
        "PRIMARY KEY (id, version)) PARTITION BY LIST (version)",
        "CREATE TABLE branch PARTITION OF items FOR VALUES IN (1) PARTITION BY RANGE (id)",
        "CREATE TABLE leaf PARTITION OF branch DEFAULT",
    ),
}


@pytest.mark.parametrize("statements", PARTITIONED.values(), ids=PARTITIONED)
def test_a_direct_insert_into_a_partition_is_waited_for(statements: tuple[str, ...], postgres_url: str) -> None:
    items = Items(CursorKind("partitioned", "postgres_url", statements, "identity", cursor="id"), postgres_url)
    poller, slow = items.poller(), items.session()
    slow.run("INSERT INTO leaf (version) VALUES (1)")
    items.execute(items.insert(2))
    items.look(poller, 2)
    slow.commit()
    assert items.drain(poller) == Count(2, 2, 0, frozenset())
    items.close()


def ignore_prepared(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(postgres, "_PREPARED", text(f"{postgres._PREPARED} AND false"))
    writers = text(f"{postgres_writers._WRITERS} AND pid IS NOT NULL")
    monkeypatch.setattr(postgres_writers, "_WRITERS", writers)


def do_not_round(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(postgres, "floor_to_precision", lambda moment, digits: moment)


def ignore_sessions(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(postgres, "_OLDEST_TRANSACTION", text(f"{postgres._OLDEST_TRANSACTION} AND false"))


def read_past_the_oldest_xid(monkeypatch: pytest.MonkeyPatch) -> None:
    newest = str(postgres._OLDEST_RUNNING_XID).replace("pg_snapshot_xmin", "pg_snapshot_xmax")
    monkeypatch.setattr(postgres, "_OLDEST_RUNNING_XID", text(newest.replace(":", "\\:")))


@pytest.mark.parametrize(
    ("kind", "plant", "scenario"),
    [
        (kinds.PG_TIMESTAMPTZ, ignore_prepared, late_prepared_commit),
        (kinds.PG_IDENTITY, ignore_prepared, late_prepared_commit),
        (kinds.PG_IDENTITY, plants.do_not_wait, scenarios.late_commit),
        (kinds.PG_TIMESTAMPTZ, ignore_sessions, scenarios.late_commit),
        (kinds.PG_TIMESTAMPTZ_0, do_not_round, scenarios.lower_key_in_the_same_tick),
        (kinds.PG_TIMESTAMPTZ_0, plants.read_up_to_the_bound, scenarios.lower_key_in_the_same_tick),
        (kinds.PG_XID8, read_past_the_oldest_xid, scenarios.late_commit),
    ],
    ids=lambda given: getattr(given, "__name__", str(given)),
)
def test_a_planted_bug_is_caught(
    items: Items,
    plant: Callable[[pytest.MonkeyPatch], None],
    scenario: Callable[[Items, Poller], Count],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    plant(monkeypatch)
    assert scenario(items, items.poller()).lost >= {1}


@on_xid8
def test_rows_of_another_cluster_are_refused(items: Items) -> None:
    items.execute("INSERT INTO items (id, changed) VALUES (1, '9000000000000')")
    with pytest.raises(SourceConfigurationError, match="restored from another cluster"):
        items.source().open()


@on_xid8
def test_what_holds_an_xid_back_is_named(items: Items) -> None:
    poller, slow = items.poller(), items.session()
    slow.run(items.insert(1))
    pid = slow.scalar("SELECT pg_backend_pid()")
    wait_until(lambda: poller.poll() or poller.held_back_by, "the transaction is worth telling")
    assert poller.held_back_by == (f"transaction of pid {pid}",)
    slow.rollback()


@pytest.fixture
def reader(items: Items) -> Iterator[tuple[SqlAlchemySource, str]]:
    """A source that reads as a role of its own, which has no more than SELECT, and the name of that role."""
    role = f"reader_{make_url(items.url).database}"
    items.execute(f'CREATE ROLE "{role}" LOGIN')
    items.execute(f'GRANT SELECT ON items TO "{role}"')
    url = make_url(items.url).set(username=role).render_as_string(hide_password=False)
    source = SqlAlchemySource(
        url=url,
        table="items",
        cursor_column=items.kind.cursor,
        pk_columns=["id"],
        horizon="auto",
        horizon_margin_seconds=0,
        engine_provider=items.provider,
    )
    yield source, role
    items.provider.dispose_all()
    items.execute(f'DROP OWNED BY "{role}"')
    items.execute(f'DROP ROLE "{role}"')


@on_time
def test_a_role_that_cannot_see_other_sessions_is_refused_until_it_is_granted(
    items: Items, reader: tuple[SqlAlchemySource, str]
) -> None:
    source, role = reader
    with pytest.raises(MissingGrantError, match=f'GRANT pg_read_all_stats TO "{role}"'):
        source.open()
    items.execute(f'GRANT pg_read_all_stats TO "{role}"')
    items.execute(items.insert(1))
    items.let_tick_pass(1)
    assert [row["id"] for row in source.fetch_changes({}, 10).records] == [1]
    items.execute(f'REVOKE pg_read_all_stats FROM "{role}"')
    with pytest.raises(MissingGrantError, match="GRANT pg_read_all_stats"):
        source.fetch_changes({}, 10)


@pytest.mark.parametrize("kind", [kinds.PG_IDENTITY, kinds.PG_XID8], ids=str)
def test_ids_and_xids_need_no_grant(items: Items, reader: tuple[SqlAlchemySource, str]) -> None:
    items.execute(items.insert(1))
    assert [row["id"] for row in reader[0].fetch_changes({}, 10).records] == [1]


@on_time
def test_a_session_that_does_not_report_its_transaction_is_not_overlooked(items: Items) -> None:
    poller, unseen = items.poller(), items.session()
    unseen.run("SET track_activities = off")
    unseen.commit()
    unseen.run(items.insert(1))
    with pytest.raises(SourceConfigurationError, match="track_activities = off"):
        poller.poll()
    unseen.commit()
    unseen.run("SET track_activities = on")
    unseen.commit()
    assert items.drain(poller).lost == frozenset()


SEQUENCES = {
    "owned, cached": (
        ("CREATE TABLE items (id BIGINT GENERATED ALWAYS AS IDENTITY (CACHE 32) PRIMARY KEY)",),
        "ALTER SEQUENCE items_id_seq CACHE 1",
    ),
    "not owned, cached": (
        ("CREATE SEQUENCE ids CACHE 32", "CREATE TABLE items (id BIGINT PRIMARY KEY DEFAULT nextval('ids'))"),
        "ALTER SEQUENCE ids CACHE 1",
    ),
    "downwards": (
        ("CREATE TABLE items (id BIGINT GENERATED ALWAYS AS IDENTITY (INCREMENT BY -1) PRIMARY KEY)",),
        "INCREMENT BY 1 NO CYCLE",
    ),
    "cyclic": (
        ("CREATE TABLE items (id BIGINT GENERATED ALWAYS AS IDENTITY (CYCLE) PRIMARY KEY)",),
        "INCREMENT BY 1 NO CYCLE",
    ),
    "one for each partition": (
        (
            "CREATE TABLE items (id BIGSERIAL, part INT, PRIMARY KEY (id, part)) PARTITION BY LIST (part)",
            "CREATE TABLE other (id BIGSERIAL, part INT NOT NULL)",
            "ALTER TABLE items ATTACH PARTITION other FOR VALUES IN (2)",
        ),
        "same sequence",
    ),
    "unknown": (
        ("CREATE SEQUENCE ids", "CREATE TABLE items (id BIGINT PRIMARY KEY DEFAULT nextval('ids'::text))"),
        "nextval('name'::regclass)",
    ),
}


@pytest.mark.parametrize(("statements", "advice"), SEQUENCES.values(), ids=SEQUENCES)
def test_a_sequence_that_does_not_grow_one_by_one_is_refused(
    statements: tuple[str, ...], advice: str, postgres_url: str
) -> None:
    items = Items(CursorKind("sequence", "postgres_url", statements, "identity", cursor="id"), postgres_url)
    with pytest.raises(SourceConfigurationError) as refused:
        items.source().open()
    assert advice in str(refused.value)
    items.close()


@on_each_horizon
def test_a_subscribed_table_is_refused(items: Items, postgres_server: PostgresServer) -> None:
    publisher = postgres_server.create_database()
    there = Items(items.kind, postgres_server.url(publisher))
    there.execute("CREATE PUBLICATION all_items FOR TABLE items")
    there.close()
    session = items.session(autocommit=True)
    session.run(
        f"CREATE SUBSCRIPTION copied CONNECTION '{postgres_server.dsn(publisher)}' PUBLICATION all_items "
        "WITH (create_slot = false, slot_name = NONE, enabled = false)"
    )
    with pytest.raises(SourceConfigurationError, match="filled by a subscription"):
        items.source().open()
    session.run("DROP SUBSCRIPTION copied")
    items.source().open()
    postgres_server.drop_database(publisher)


@pytest.fixture(scope="session")
def standby(postgres_server: PostgresServer) -> Iterator[PostgresServer]:
    with Standby(postgres_server) as server:
        yield server


@on_each_horizon
def test_a_standby_is_refused(items: Items, standby: PostgresServer) -> None:
    url = make_url(standby.url()).set(database=make_url(items.url).database)
    there = create_engine(url)
    wait_until(lambda: has_items(there), "the standby has the table")
    there.dispose()
    source = SqlAlchemySource(
        url=url.render_as_string(),
        table="items",
        cursor_column=items.kind.cursor,
        pk_columns=["id"],
        engine_provider=items.provider,
    )
    with pytest.raises(SourceConfigurationError, match="is a standby"):
        source.open()


def has_items(engine: Engine) -> bool:
    with suppress(OperationalError), engine.connect() as connection:
        return connection.execute(text("SELECT to_regclass('items')")).scalar() is not None
    return False


def test_the_hour_that_summer_time_repeats_is_read_only_after_it_has_passed_twice(postgres_url: str) -> None:
    items = Items(kinds.PG_TIMESTAMP, postgres_url)
    with items.engine.connect() as connection:

        def bound(moment: str) -> str:
            ahead = ticks.moments_ahead(datetime.fromisoformat(moment))
            return str(postgres._local_times(connection, ahead, "items", "America/New_York").bound)

        assert bound("2026-11-01 04:59:30Z") == "2026-11-01 00:59:30"
        assert bound("2026-11-01 05:01:30Z") == "2026-11-01 01:00:00"
        assert bound("2026-11-01 05:59:30Z") == "2026-11-01 01:00:00"
        assert bound("2026-11-01 06:01:30Z") == "2026-11-01 01:01:30"
    items.close()
