"""Holdfast as an application uses it: state in the same PostgreSQL, one fenced commit a batch, a sound horizon."""

from collections.abc import Callable
from dataclasses import dataclass

from bench.orders import CURSOR, NAME, Orders
from holdfast import Holdfast, RowChange
from holdfast.lease.reset import reset_to_beginning

Handler = Callable[[list[RowChange]], None]


@dataclass(slots=True)
class Tally:
    """Three handlers, and what they saw."""

    events: int = 0
    ids: int = 0

    def count(self, events: list[RowChange]) -> None:
        """Only count: how fast the delivery itself is."""
        self.events += len(events)

    def read_after(self, events: list[RowChange]) -> None:
        """Read the row of every event, as nearly every handler does."""
        self.events += len(events)
        total = 0
        for event in events:
            after = event.after
            assert after is not None
            total += after["id"]  # type: ignore[operator]  # rows hold objects; this one is a whole number
        self.ids += total

    def read_identity(self, events: list[RowChange]) -> None:
        """Read the row and the ``event_id``, as a handler that drops duplicates does."""
        self.read_after(events)
        for event in events:
            assert event.event_id


def application(orders: Orders, handler: Handler, batch_size: int, max_batches_per_tick: int) -> Holdfast:
    """Return an application with one trigger on the table; its tables are made."""
    app = Holdfast(orders.url, app_name="bench")
    app.migrate()
    app.trigger(NAME, cursor=CURSOR, batch_size=batch_size, max_batches_per_tick=max_batches_per_tick)(handler)
    return app


def catch_up(orders: Orders, batch_size: int, choose: Callable[[Tally], Handler]) -> Callable[[], None]:
    """Return a catch-up of the whole table with one of the handlers of ``Tally``."""
    tally = Tally()
    app = application(orders, choose(tally), batch_size, max_batches_per_tick=orders.rows)
    runner = app.runner(NAME)

    def run() -> None:
        tally.events = tally.ids = 0
        reset_to_beginning(app.state, NAME, runner.source.source_descriptor)
        assert runner.tick() == orders.rows == tally.events
        assert tally.ids in (0, orders.checksum)

    return run
