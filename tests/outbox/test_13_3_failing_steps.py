"""Issue 13, line 3: why a processor cannot go on is shown and recorded, whether or not a handler was called."""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from holdfast import RetryPolicy
from holdfast.core.errors import ConfigurationError
from holdfast.outbox.context import ProcessorContext
from holdfast.outbox.message import Message
from holdfast.records.history import HistoryEntry, HistoryFilter
from holdfast.runtime.leased_part import LeasedPart
from holdfast.runtime.supervisor import Supervisor
from tests.clocks import HurriedClock
from tests.components.processes import wait_until
from tests.outbox.shops import Shop, write_effects


@contextmanager
def working(shop: Shop, **faults: Exception) -> Iterator[None]:
    """Run an application's processors beside the block."""
    stop = threading.Event()
    shop.app.processors.register()
    works = shop.app.processors.works(stop=stop, faults=faults)  # type: ignore[arg-type] # any error will do
    parts = [LeasedPart(work, stop, clock=HurriedClock()) for work in works]
    thread = threading.Thread(target=Supervisor(parts, stop).run)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()


def recorded(shop: Shop) -> list[HistoryEntry]:
    return list(shop.app.history.page(HistoryFilter(engine="processor:totals")).items)


def test_13_3_a_processor_that_cannot_read_says_so_until_it_can(shop: Shop) -> None:
    shop.app.processor("totals", poll_seconds=0.01)(write_effects)
    shop.append(1)
    with working(shop):
        wait_until(lambda: shop.effects() == [1], "the first message")
        shop.execute("ALTER TABLE holdfast_outbox RENAME TO gone")
        wait_until(lambda: len(recorded(shop)) >= 2 and shop.place().reason, "the failure, recorded and listed")
        shop.execute("ALTER TABLE gone RENAME TO holdfast_outbox")
        shop.append(2)
        wait_until(lambda: shop.effects() == [1, 2], "the second message")
        wait_until(lambda: shop.place().reason is None, "a step that went well")
    entries = recorded(shop)
    assert any("tables are missing" in (entry.error or "") for entry in entries)
    assert all(entry.traceback for entry in entries)


def test_13_3_a_processor_that_is_wrong_from_the_start_is_in_the_history(sqlite_shop: Shop) -> None:
    sqlite_shop.app.processor("totals")(write_effects)
    title = sqlite_shop.app.processors.declared[0].title
    with working(sqlite_shop, **{title: ConfigurationError("its declaration does not fit")}):
        wait_until(lambda: recorded(sqlite_shop), "the fault")
    assert recorded(sqlite_shop)[-1].error == "ConfigurationError: its declaration does not fit"


def test_13_3_what_a_dead_worker_said_is_taken_back_by_the_next(sqlite_shop: Shop) -> None:
    sqlite_shop.app.processor("totals")(write_effects)
    processors = sqlite_shop.app.processors
    processors.register()
    processor = processors.get("totals")
    runner = processors.runner(processor, processor.partition_ids[0])
    with runner.leased() as lease:
        runner.record_failure(lease, ConfigurationError("no such table"), 2)
    assert "it could not go on and tries again after 2 s: no such table" in str(sqlite_shop.place().reason)
    assert sqlite_shop.run() == 0
    assert sqlite_shop.place().reason is None


def test_13_3_a_worker_that_ends_between_two_tries_says_so_without_an_error(
    sqlite_shop: Shop, caplog: pytest.LogCaptureFixture
) -> None:
    begun = threading.Event()

    @sqlite_shop.app.processor("totals", retry_policy=RetryPolicy(max_retries=3, base_delay_seconds=60))
    def totals(messages: list[Message], context: ProcessorContext) -> None:
        begun.set()
        raise ValueError("not yet")

    sqlite_shop.append(1)
    with caplog.at_level(logging.INFO), working(sqlite_shop):
        assert begun.wait(30)
        wait_until(lambda: sqlite_shop.place().reason, "the pause before the next try")
    assert [record.message for record in caplog.records if record.levelno >= logging.ERROR] == []
    assert "Processor totals v1 partition 0 ends between two tries; the batch comes again." in caplog.messages
    assert sqlite_shop.place().may_run
