"""A worker outlives errors, stands by for others, and gives up the leases of handlers that do not finish."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

from holdfast import Holdfast, RowChange
from tests.components.processes import wait_until
from tests.trigger.shop import Shop, order_ids


@contextmanager
def running(hf: Holdfast, drain_seconds: float = 30.0) -> Iterator[list[bool]]:
    """Run the application on a thread; the list holds what ``run`` returned once it is stopped."""
    results: list[bool] = []
    thread = threading.Thread(target=lambda: results.append(hf.run(drain_seconds=drain_seconds)))
    thread.start()
    try:
        yield results
    finally:
        hf.stop()
        thread.join(timeout=30)
    assert not thread.is_alive()


def test_a_trigger_outlives_a_handler_that_fails_a_few_times(sqlite_shop: Shop) -> None:
    attempts: list[int] = []

    @sqlite_shop.hf.trigger("orders", cursor="updated_at", poll_seconds=0.01)
    def ship(changes: list[RowChange]) -> None:
        attempts.append(len(changes))
        if len(attempts) < 3:
            raise RuntimeError("not yet")

    sqlite_shop.place(range(3))
    with running(sqlite_shop.hf) as results:
        wait_until(lambda: len(attempts) >= 3, "the third attempt")
    assert attempts[:3] == [3, 3, 3]
    assert results == [True]


def test_a_handler_that_does_not_finish_loses_its_lease_at_the_end_of_the_drain(sqlite_shop: Shop) -> None:
    inside, leave = threading.Event(), threading.Event()

    @sqlite_shop.hf.trigger("orders", cursor="updated_at", poll_seconds=0.01)
    def ship(changes: list[RowChange]) -> None:
        inside.set()
        leave.wait(30)

    sqlite_shop.place([1])
    with running(sqlite_shop.hf, drain_seconds=0.0) as results:
        assert inside.wait(30)
        sqlite_shop.hf.stop()
        wait_until(lambda: results, "run to return")
    taken = sqlite_shop.hf.state.acquire("orders", ttl_seconds=30)
    leave.set()
    assert results == [False]
    assert taken.checkpoint == {}, "the unfinished batch was committed"


def test_the_one_that_stands_by_takes_over_when_the_holder_stops(sqlite_url: str) -> None:
    seen: dict[str, list[int]] = {"first": [], "second": []}

    def declare(hf: Holdfast, who: str) -> None:
        @hf.trigger("orders", cursor="updated_at", poll_seconds=0.02)
        def ship(changes: list[RowChange]) -> None:
            seen[who].extend(order_ids(changes))

    first = Shop(sqlite_url)
    second = Holdfast(sqlite_url)
    declare(first.hf, "first")
    declare(second, "second")
    first.place([1])
    with running(first.hf):
        wait_until(lambda: seen["first"] == [1], "the first worker's delivery")
        with running(second):
            first.place([2])
            wait_until(lambda: seen["first"] == [1, 2], "the holder to go on")
            first.hf.stop()
            first.place([3])
            wait_until(lambda: seen["second"] == [3], "the second worker to take over")
    assert seen == {"first": [1, 2], "second": [3]}
    second._provider.dispose_all()
    first.close()
