"""Issue 13, line 3: whatever keeps a trigger from being run is shown and recorded at each try."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from holdfast import Holdfast
from holdfast.core.errors import FetchError, LeaseConflictError
from holdfast.lease.document import failure_of, parse_time
from holdfast.records.history import HistoryEntry, HistoryFilter
from tests.clocks import HurriedClock
from tests.components.processes import wait_until
from tests.trigger.shop import Shop
from tests.trigger.test_claims import Gauges
from tests.trigger.test_worker import running


@pytest.fixture(params=["sqlite_url", "postgres_url", "mariadb_url"])
def shop(request: pytest.FixtureRequest) -> Iterator[Shop]:
    opened = Shop(request.getfixturevalue(request.param), clock=HurriedClock(), metrics=Gauges())
    yield opened
    opened.close()


@pytest.fixture
def sqlite_shop(sqlite_url: str) -> Iterator[Shop]:
    opened = Shop(sqlite_url, clock=HurriedClock())
    yield opened
    opened.close()


def quiet(changes: object) -> None:
    """Do nothing."""


def failure(shop: Shop, name: str = "orders") -> dict[str, Any]:
    view = shop.hf.state.read(name)
    return {} if view is None else failure_of(view.document) or {}


def recorded(shop: Shop, name: str = "orders") -> list[HistoryEntry]:
    return list(shop.hf.history.page(HistoryFilter(engine=f"trigger:{name}")).items)


def has_failed(shop: Shop, times: int, name: str = "orders") -> dict[str, Any]:
    """Wait until so many tries have failed, and return what is kept of the last: its next try is yet to come."""

    def found() -> dict[str, Any] | None:
        kept = failure(shop, name)
        return kept if kept.get("count", 0) >= times and len(recorded(shop, name)) >= times else None

    kept = wait_until(found, f"{times} failures")
    assert parse_time(kept["next_try_at"]) > parse_time(kept["at"])
    return kept


def is_held(shop: Shop, name: str = "orders") -> bool:
    view = shop.hf.state.read(name)
    return view is not None and view.lease is not None and view.lease.owner_id is not None


def lag_of(shop: Shop) -> float | None:
    gauges = shop.hf._resources.metrics
    assert isinstance(gauges, Gauges)
    return gauges.lag


def rename(shop: Shop, table: str, new_name: str) -> None:
    with shop.engine.begin() as connection:
        connection.exec_driver_sql(f"ALTER TABLE {table} RENAME TO {new_name}")


def changed_source(hf: Holdfast) -> None:
    """Declare a trigger whose checkpoint is another source's, and one that runs."""
    other = Holdfast(hf._config.connection_url)
    other.trigger("orders", cursor="id", horizon="none", name="broken")(quiet)
    other.runner("broken").tick()
    other._provider.dispose_all()
    hf.trigger("orders", cursor="updated_at", name="broken")(quiet)
    hf.trigger("orders", cursor="updated_at")(quiet)


def test_13_3_a_table_that_is_gone_under_a_worker_is_told_at_each_try_until_it_is_back(shop: Shop) -> None:
    shop.hf.trigger("orders", cursor="updated_at", poll_seconds=0.01)(quiet)
    with running(shop.hf):
        wait_until(lambda: is_held(shop), "a running trigger")
        rename(shop, "orders", "gone")
        kept = has_failed(shop, 3)
        assert "Table 'orders' not found in the database. Tables there:" in kept["error"]
        entries = recorded(shop)
        assert [entry.attempt for entry in entries][-3:] == [3, 2, 1]
        assert all("SourceConfigurationError: Table 'orders' not found" in (entry.error or "") for entry in entries)
        assert all("in reflect_table" in (entry.traceback or "") for entry in entries)
        assert (lag_of(shop) or 0) > 0, "rows may wait all the while"
        rename(shop, "gone", "orders")
        wait_until(lambda: not failure(shop), "a round that finds nothing")


def test_13_3_a_source_that_has_changed_is_told_at_each_try_from_the_start(shop: Shop) -> None:
    shop.place([1])
    changed_source(shop.hf)
    with running(shop.hf):
        kept = has_failed(shop, 2, "broken")
    assert "The source of trigger 'broken' has changed" in kept["error"]
    assert len(recorded(shop, "broken")) >= 2
    assert shop.hf.state.load_checkpoint("broken")["cursor"], "telling it has changed the checkpoint"


def test_13_3_a_fault_is_not_written_while_someone_runs_the_trigger_or_it_is_stopped(sqlite_shop: Shop) -> None:
    state = sqlite_shop.hf.state
    lease = state.acquire("orders", ttl_seconds=30)
    with pytest.raises(LeaseConflictError):
        state.keep_failure("orders", "no such table", 2)
    lease.commit({"cursor": 1})
    lease.stop("its handler ended its transaction")
    with pytest.raises(LeaseConflictError):
        state.keep_failure("orders", "no such table", 2)
    assert failure(sqlite_shop) == {}


def test_13_3_who_only_slept_writes_nothing_after_a_fault_was_told(sqlite_shop: Shop) -> None:
    state = sqlite_shop.hf.state
    former = state.acquire("orders", ttl_seconds=30)
    token = former.fencing_token
    former.release()
    assert [state.keep_failure("orders", "no such table", 2)["count"] for _ in range(2)] == [1, 2]
    held = state.acquire("orders", ttl_seconds=30)
    assert held.fencing_token > token + 2
    held.commit({"cursor": 1})
    assert failure(sqlite_shop) == {}


def broken_source(error: Exception) -> Callable[[], Any]:
    def make() -> Any:
        raise error

    return make


@pytest.mark.parametrize("error", [FetchError("the other database does not answer"), ZeroDivisionError("a bug")])
def test_13_3_what_keeps_a_source_from_being_made_is_logged_and_recorded(
    sqlite_shop: Shop, error: Exception, caplog: pytest.LogCaptureFixture
) -> None:
    """No step has begun, so nobody but the part itself can tell it."""
    sqlite_shop.hf.trigger("orders", cursor="updated_at")(quiet)
    sqlite_shop.place([1])
    sqlite_shop.hf.trigger(source=sqlite_shop.hf.runner("orders").source, name="broken")(quiet)
    declared = sqlite_shop.hf.triggers["broken"]
    with running(sqlite_shop.hf):
        wait_until(lambda: is_held(sqlite_shop, "broken"), "a running trigger")
        rename(sqlite_shop, "orders", "gone")
        has_failed(sqlite_shop, 1, "broken")
        declared.make_source = broken_source(error)
        declared.made = None
        wait_until(lambda: type(error).__name__ in str(recorded(sqlite_shop, "broken")[0].error), "the other fault")
    told = [record.getMessage() for record in caplog.records if "Trigger 'broken' does not run" in record.getMessage()]
    assert len(told) == 2, "each fault is logged once"
