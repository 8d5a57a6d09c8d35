"""Slow handlers keep their lease; frozen and killed holders lose it, and can change nothing afterwards."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.components.processes import PythonWorker, wait_until
from tests.faults.orders import OrderBook

LEASE_SECONDS = 1.5


@pytest.fixture(params=["sqlite_url", "postgres_url"])
def url(request: pytest.FixtureRequest) -> str:
    found: str = request.getfixturevalue(request.param)
    return found


@pytest.fixture
def book(url: str) -> Iterator[OrderBook]:
    opened = OrderBook(url)
    yield opened
    opened.close()


def worker(url: str, trigger: str, **environment: str) -> PythonWorker:
    return PythonWorker(
        "-m",
        "tests.faults.worker",
        environment={
            "WORKER_URL": url,
            "WORKER_TRIGGERS": trigger,
            "LEASE_SECONDS": str(LEASE_SECONDS),
            **environment,
        },
    )


def test_a_handler_three_times_as_slow_as_its_lease_delivers_once_while_another_worker_waits(
    url: str, book: OrderBook
) -> None:
    book.place(5)
    with worker(url, "own-0", PAUSE_SECONDS=str(3 * LEASE_SECONDS)) as slow:
        slow.wait_for_line("inside own-0")
        with worker(url, "own-0") as waiting:
            waiting.wait_for_line("starting")
            slow.wait_for_line("leaving own-0")
            wait_until(lambda: (book.hf.state.read("own-0") or book).checkpoint, "the slow batch's commit")  # type: ignore[union-attr]  # it has state by now
            assert not any(line.startswith("handled") for line in waiting.lines), "the waiting worker took over"
            assert book.holder_pid("own-0") == slow.pid
    account = book.account("own-0")
    assert (account.lost, account.duplicated) == (0, 0), account


def test_a_frozen_holder_that_wakes_after_a_takeover_cannot_commit(url: str, book: OrderBook) -> None:
    """On SQLite the frozen handler must not sit inside a transaction: it would lock everybody out, itself included."""
    trigger = "own-0" if url.startswith("sqlite") else "tx-0"
    book.place(5)
    with worker(url, trigger, PAUSE_SECONDS="60") as frozen:
        frozen.wait_for_line(f"inside {trigger}")
        frozen.suspend()
        with worker(url, trigger) as taker:
            handled = taker.wait_for_line("handled")
            assert "token 2" in handled
            wait_until(lambda: book.hf.state.read(trigger).checkpoint, "the new holder's commit")  # type: ignore[union-attr]  # it has state by now
            checkpoint = book.hf.state.read(trigger).checkpoint  # type: ignore[union-attr]  # it has state by now
            frozen.resume()
            frozen.wait_for_line(f"leaving {trigger}")
            frozen.terminate()
            frozen.wait_for_line("stopped")
            assert book.hf.state.read(trigger).checkpoint == checkpoint  # type: ignore[union-attr]  # it has state by now
            assert book.holder_pid(trigger) == taker.pid
    account = book.account(trigger)
    assert account.lost == 0
    assert account.duplicated == (5 if trigger == "own-0" else 0), account


def test_without_the_fence_a_frozen_holder_doubles_its_effects(postgres_url: str) -> None:
    """Planted bug: the same history with the compare-and-set removed must be noticed by the same account."""
    book = OrderBook(postgres_url)
    book.place(5)
    with worker(postgres_url, "tx-0", PAUSE_SECONDS="4", PLANTED_BUG="no fence") as frozen:
        frozen.wait_for_line("inside tx-0")
        frozen.suspend()
        with worker(postgres_url, "tx-0") as taker:
            taker.wait_for_line("handled")
            wait_until(lambda: book.account("tx-0").delivered == 5, "the new holder's commit")
            taker.kill()
        frozen.resume()
        wait_until(lambda: book.account("tx-0").duplicated == 5, "the zombie's commit to get through", 90)
    assert book.account("tx-0").duplicated == 5
    book.close()


def test_a_killed_holder_is_replaced_and_nothing_is_lost(url: str, book: OrderBook) -> None:
    book.place(30)
    with worker(url, "tx-0", BATCH_SIZE="10", PAUSE_SECONDS="60") as first:
        first.wait_for_line("inside tx-0")
        first.kill()
    with worker(url, "tx-0", BATCH_SIZE="10") as second:
        wait_until(lambda: book.account("tx-0").lost == 0, "the rest to be delivered")
        second.terminate()
        second.wait_for_line("stopped")
    account = book.account("tx-0")
    assert (account.lost, account.duplicated) == (0, 0), account


def test_sigterm_lets_the_running_handler_finish_and_releases_the_lease(url: str, book: OrderBook) -> None:
    book.place(3)
    with worker(url, "own-0", PAUSE_SECONDS="1") as draining:
        draining.wait_for_line("inside own-0")
        draining.terminate()
        draining.wait_for_line("stopped")
        assert draining.wait() == 0
        assert any(line == "leaving own-0" for line in draining.lines), "the handler was cut off"
    assert book.holder_pid("own-0") is None
    assert book.hf.state.read("own-0").checkpoint  # type: ignore[union-attr]  # it has state by now
    account = book.account("own-0")
    assert (account.lost, account.duplicated) == (0, 0), account


def test_a_stop_that_arrives_while_the_process_is_frozen_is_not_lost(sqlite_url: str) -> None:
    """Another thread may take the signal when the process goes on: the main thread must still notice."""
    OrderBook(sqlite_url).close()
    for _ in range(5):
        with worker(sqlite_url, "own-0") as stopped:
            stopped.wait_for_line("running")
            stopped.suspend()
            stopped.terminate()
            stopped.resume()
            stopped.wait_for_line("stopped")
            assert stopped.wait() == 0


def test_two_stops_at_once_are_one_wish(sqlite_url: str) -> None:
    OrderBook(sqlite_url).close()
    for _ in range(3):
        with worker(sqlite_url, "own-0") as stopped:
            stopped.wait_for_line("running")
            stopped.interrupt()
            stopped.terminate()
            stopped.wait_for_line("stopped")
            assert stopped.wait() == 0
