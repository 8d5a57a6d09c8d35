"""Rows that a fail-over or restore takes back are noticed, and what was written since is delivered, none left out."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from holdfast import Holdfast
from holdfast.core.errors import ConfigurationError, FetchError, RestoredSourceError
from holdfast.database.pools import EngineProvider
from holdfast.lease.document import TOKENS_LEFT_OUT
from holdfast.lease.stores.file import FileDocumentStore
from holdfast.trigger.history_watch import HistoryWatch
from holdfast.trigger.source_history import SourceHistory
from tests.components.postgres import PostgresServer, find_postgres15, find_postgres18, runnable
from tests.trigger.failing_over import Follower, Reader, address, asked, pair, place

pytestmark = pytest.mark.component("postgres18")
KEPT, LOST, ADDED = range(1, 6), range(6, 11), range(11, 19)
Pair = tuple[PostgresServer, Follower, str]


def binaries_18() -> Path:
    found = find_postgres18()
    assert found is not None
    return runnable(found)


@pytest.fixture
def servers() -> Iterator[Pair]:
    with pair(binaries_18()) as both:
        yield both


@pytest.fixture
def documents(tmp_path: Path) -> FileDocumentStore:
    return FileDocumentStore(tmp_path / "state")


def deliver_then_lose(servers: Pair, reader: Reader) -> None:
    """Deliver ten orders of which the standby has five when it takes over; then place eight more."""
    primary, standby, database = servers
    url = address(servers[:2], database, "postgres")
    place(url, KEPT)
    reader.run()
    standby.catch_up()
    sender = standby.stop_following()
    place(url, LOST)
    reader.run()
    assert reader.seen == [*KEPT, *LOST]
    standby.take_over(sender)
    place(url, ADDED)
    assert not primary.running


def without_guard(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(HistoryWatch, "read", lambda self, lease, fetch: fetch())


def test_what_a_fail_over_has_taken_back_hides_nothing(
    servers: Pair, documents: FileDocumentStore, caplog: pytest.LogCaptureFixture
) -> None:
    """The numbers of the run that lost rows: 10 delivered, 5 taken back, 8 added; by a role without any grant."""
    reader = Reader(address(servers[:2], servers[2]), documents)
    deliver_then_lose(servers, reader)
    before = reader.tokens[-1]
    reader.run_after_death()
    assert reader.seen == [*KEPT, *LOST, *ADDED]
    assert reader.tokens[-1] > before + TOKENS_LEFT_OUT
    assert "rows that it has delivered were taken back" in caplog.text
    reader.run()
    assert reader.seen[-1] == ADDED[-1]
    reader.close()


def test_without_the_guard_rows_are_lost(
    servers: Pair, documents: FileDocumentStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    without_guard(monkeypatch)
    reader = Reader(address(servers[:2], servers[2]), documents)
    deliver_then_lose(servers, reader)
    reader.run_after_death()
    assert not set(ADDED) <= set(reader.seen)
    reader.close()


def test_it_is_noticed_under_a_lease_that_goes_on(servers: Pair, documents: FileDocumentStore) -> None:
    """Nobody takes the lease anew: the source's session is a new one, though at first nothing new can be read."""
    _, standby, database = servers
    reader = Reader(address(servers[:2], database), documents)
    url = address(servers[:2], database, "postgres")
    place(url, KEPT)
    standby.catch_up()
    sender = standby.stop_following()
    with reader.runner.leased() as lease:
        while reader.runner.process_batch(lease).delivered:
            pass
        place(url, LOST)
        while reader.runner.process_batch(lease).delivered:
            pass
        standby.take_over(sender)
        place(url, [11, 12])
        with pytest.raises(FetchError):  # its session has died
            reader.runner.process_batch(lease)
        while reader.runner.process_batch(lease).delivered:
            pass
    assert {11, 12} <= set(reader.seen)
    reader.close()


def test_where_the_fork_cannot_be_read_the_grant_is_named_and_is_enough(
    servers: Pair, documents: FileDocumentStore
) -> None:
    """A server that was restarted since it was promoted has forgotten how far it had followed."""
    _, standby, database = servers
    reader = Reader(address(servers[:2], database), documents)
    deliver_then_lose(servers, reader)
    standby.restart(immediate=False)
    with suppress(FetchError):
        reader.run()
    choices = r"GRANT EXECUTE ON FUNCTION pg_read_file\(text\) TO reader.*trigger adopt orders.*reset-to-beginning"
    for _ in range(2):
        with pytest.raises(RestoredSourceError, match=choices):
            reader.run()
    assert not set(ADDED) & set(reader.seen)
    asked(standby, "GRANT EXECUTE ON FUNCTION pg_read_file(text) TO reader", database)
    reader.run()
    assert set(ADDED) <= set(reader.seen)
    reader.close()


def test_a_fail_over_that_takes_nothing_back_repeats_nothing(
    servers: Pair, documents: FileDocumentStore, caplog: pytest.LogCaptureFixture
) -> None:
    primary, standby, database = servers
    reader = Reader(address(servers[:2], database), documents)
    url = address(servers[:2], database, "postgres")
    place(url, KEPT)
    reader.run()
    standby.catch_up()
    primary.stop(immediate=False)
    standby.promote()
    place(url, LOST)
    reader.run_after_death()
    assert reader.seen == [*KEPT, *LOST]
    assert "nothing that it has delivered was taken back" in caplog.text
    assert max(reader.tokens) < TOKENS_LEFT_OUT
    reader.close()


def test_state_in_the_same_database_went_back_with_the_rows(servers: Pair, caplog: pytest.LogCaptureFixture) -> None:
    """Decision 0019: a new timeline alone refuses nothing; but tokens were taken back, too, and are not given twice."""
    database = servers[2]
    hf = Holdfast(address(servers[:2], database, "postgres"), app_name="shop", engine_provider=EngineProvider())
    hf.migrate()
    reader = Reader(address(servers[:2], database, "postgres"), hf.state.documents)
    deliver_then_lose(servers, reader)
    before = max(reader.tokens)
    reader.run_after_death()
    assert [each for each in reader.seen if each in ADDED] == [*ADDED]
    assert min(reader.tokens[-2:]) > before
    assert "its checkpoint went back with the rows" in caplog.text
    reader.close()
    hf._provider.dispose_all()


def test_a_dump_restored_into_another_cluster_is_refused_not_waited_for(
    servers: Pair, documents: FileDocumentStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its transaction ids are far below the checkpoint's: 0 of 30 were delivered, with a lag of 0 s."""
    primary, _, database = servers
    asked(primary, "DO $$ BEGIN FOR i IN 1..3000 LOOP PERFORM pg_current_xact_id(); COMMIT; END LOOP; END $$")
    url = primary.url(database)
    place(url, KEPT)
    reader = Reader(url, documents)
    reader.run()
    with PostgresServer(primary.binaries) as other:
        asked(other, f"CREATE DATABASE {database}")
        dump = [str(primary.binaries / "pg_dump"), "--no-owner", "--no-acl", "-d", primary.dsn(database)]
        script = subprocess.run(dump, check=True, capture_output=True).stdout
        load = [str(other.binaries / "psql"), "-q", "-v", "ON_ERROR_STOP=1", "-d", other.dsn(database)]
        subprocess.run(load, check=True, input=script, capture_output=True)
        asked(other, "UPDATE orders SET tx = pg_current_xact_id()", database)
        place(other.url(database), range(100, 130))
        moved = Reader(other.url(database), documents)
        with pytest.raises(RestoredSourceError, match=r"stands at a transaction of|rows were restored elsewhere"):
            moved.run()
        history = SourceHistory.of("orders", moved.source, moved.store)
        assert history is not None
        with pytest.raises(ConfigurationError, match="cannot be kept: it is behind transaction"):
            history.to_adopt(moved.document())
        without_guard(monkeypatch)
        moved.run()
        assert moved.seen == []
        moved.close()
    reader.close()


def test_a_role_that_may_not_ask_is_told_the_grant(servers: Pair, documents: FileDocumentStore) -> None:
    primary, _, database = servers
    asked(primary, "REVOKE EXECUTE ON FUNCTION pg_control_system() FROM PUBLIC", database)
    place(primary.url(database), KEPT)
    reader = Reader(address([primary], database), documents)
    capability = reader.source.capability()
    assert not capability.notices_restore
    assert "GRANT EXECUTE ON FUNCTION pg_control_system() TO reader" in capability.restore
    reader.run()
    assert reader.seen == [*KEPT]
    asked(primary, "GRANT EXECUTE ON FUNCTION pg_control_system() TO reader", database)
    assert reader.source.capability().notices_restore
    reader.close()


@pytest.mark.component("postgres15")
def test_postgresql_15_tells_the_same(tmp_path: Path) -> None:
    found = find_postgres15()
    assert found is not None
    with pair(runnable(found)) as servers:
        reader = Reader(address(servers[:2], servers[2]), FileDocumentStore(tmp_path / "state"))
        deliver_then_lose(servers, reader)
        reader.run_after_death()
        assert set(ADDED) <= set(reader.seen)
        asked(servers[1], "REVOKE EXECUTE ON FUNCTION pg_control_system() FROM PUBLIC", servers[2])
        assert "GRANT EXECUTE ON FUNCTION pg_control_system()" in reader.source.capability().restore
        reader.close()
