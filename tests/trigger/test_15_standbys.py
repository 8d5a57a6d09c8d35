"""A standby as a trigger's source: with a window, and with a claim that says what the window misses."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from sqlalchemy.engine import make_url

from holdfast import EngineProvider, Holdfast
from holdfast.core.errors import SourceConfigurationError
from holdfast.lease.stores.file import FileDocumentStore
from holdfast.trigger.sources import preparation
from tests.clocks import SteppedClock
from tests.components.postgres import PostgresServer, Standby
from tests.components.processes import wait_until
from tests.runtime.workloads import running
from tests.trigger.late_commits import kinds
from tests.trigger.late_commits.items import Items, Poller
from tests.trigger.late_commits.kinds import CursorKind
from tests.trigger.test_horizons_postgres import there

on_windowed = pytest.mark.parametrize("kind", [kinds.PG_TIMESTAMPTZ, kinds.PG_TIMESTAMP, kinds.PG_IDENTITY], ids=str)
on_time = pytest.mark.parametrize("kind", [kinds.PG_TIMESTAMPTZ], ids=str)


@pytest.fixture
def items(kind: CursorKind, postgres_url: str) -> Iterator[Items]:
    opened = Items(kind, postgres_url)
    yield opened
    opened.close()


def late_commit(items: Items, poller: Poller) -> None:
    """Have a row commit after another that is above it was delivered; see that it comes, and nothing twice."""
    slow = items.session()
    slow.run(items.insert(1))
    items.execute(items.insert(2))
    poller.poll_until(2)
    slow.commit()
    poller.poll_until(1)
    items.execute(items.insert(3))
    poller.poll_until(3)
    assert poller.delivered == {(1, 1): 1, (2, 1): 1, (3, 1): 1}


@on_windowed
def test_15_a_standby_is_read_with_a_window(items: Items, standby: Standby) -> None:
    late_commit(items, Poller(there(items, standby, lookback=60)))


@on_time
@pytest.mark.parametrize("asked", ["none", "without a window"])
def test_15_without_the_window_a_standby_loses_a_late_commit(items: Items, standby: Standby, asked: str) -> None:
    source = there(items, standby, "none")
    if asked == "without a window":
        source = there(items, standby, lookback=0.000001)
    poller, slow = Poller(source), items.session()
    slow.run(items.insert(1))
    items.execute(items.insert(2))
    poller.poll_until(2)
    slow.commit()
    items.execute(items.insert(3))
    poller.poll_until(3)
    assert (1, 1) not in poller.delivered


@on_windowed
def test_15_what_a_standby_misses_is_said(items: Items, standby: Standby) -> None:
    found = there(items, standby, lookback=60).capability()
    assert not found.safe_from_late_commits
    amount = "60 behind the newest" if items.kind.insert_only else "60 s late"
    assert found.misses is not None
    assert found.misses.startswith(f"a row that commits more than {amount} is missed")
    assert found.horizon == "none, lookback 60"
    assert found.detects_updates is not items.kind.insert_only


@on_time
def test_15_a_horizon_asked_for_by_name_is_refused_on_a_standby(items: Items, standby: Standby) -> None:
    with pytest.raises(SourceConfigurationError, match="is a standby"):
        there(items, standby, "server_time", lookback=60).open()


@on_time
def test_15_on_the_primary_a_window_keeps_its_horizon(items: Items) -> None:
    assert items.source(lookback=60).capability().safe_from_late_commits


@pytest.fixture
def promoted(postgres_server: PostgresServer) -> Iterator[Standby]:
    """A standby of its own, for whoever promotes it."""
    with Standby(postgres_server) as server:
        yield server


@on_time
def test_15_a_standby_that_is_promoted_gets_its_sound_horizon_back(items: Items, promoted: Standby) -> None:
    clock = SteppedClock()
    source = there(items, promoted, lookback=60, clock=clock)
    assert not source.capability().safe_from_late_commits
    promoted.promote()
    clock.advance(3600)
    source.fetch_changes({}, 10)
    assert source.capability().safe_from_late_commits


@on_time
def test_15_a_trigger_that_finds_itself_on_a_standby_goes_on_with_its_window(
    items: Items, standby: Standby, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = there(items, standby, lookback=60)
    with monkeypatch.context() as patch:  # looked up while the address led to the primary
        patch.setattr(preparation, "_prepared_horizon", lambda connection, horizon, settings: horizon)
        source.open()
    with pytest.raises(SourceConfigurationError, match="is a standby"):
        source.fetch_changes({}, 10)
    late_commit(items, Poller(source))


@on_time
def test_15_a_worker_with_its_state_elsewhere_delivers_from_a_standby(
    items: Items, standby: Standby, tmp_path: Path
) -> None:
    there(items, standby, lookback=60).open()
    url = make_url(standby.url()).set(database=make_url(items.url).database).render_as_string()
    app = Holdfast(url, state=FileDocumentStore(tmp_path), engine_provider=EngineProvider())
    delivered: list[int] = []
    trigger = app.trigger("items", cursor="changed", lookback=60, poll_seconds=0.02)
    trigger(lambda events: delivered.extend(event.pk["id"] for event in events))
    slow = items.session()
    slow.run(items.insert(1))
    with running(app, drain_seconds=1):
        items.execute(items.insert(2))
        wait_until(lambda: 2 in delivered, "the row above")
        slow.commit()
        wait_until(lambda: 1 in delivered, "the late row")
    assert sorted(delivered) == [1, 2]
    app._provider.dispose_all()


@on_time
def test_15_without_a_window_the_worker_names_it(items: Items, standby: Standby, tmp_path: Path) -> None:
    there(items, standby, lookback=60).open()
    url = make_url(standby.url()).set(database=make_url(items.url).database).render_as_string()
    app = Holdfast(url, state=FileDocumentStore(tmp_path), engine_provider=EngineProvider())
    app.trigger("items", cursor="changed")(lambda events: None)
    with pytest.raises(SourceConfigurationError, match="or pass lookback=<seconds>"):
        app.run(handle_signals=False)
    app._provider.dispose_all()
