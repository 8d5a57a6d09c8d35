"""Growth: a batch must cost the same in the middle and at the end of a table, whatever the table's size.

Beside it, for comparison, what a batch of azure-functions-db costs at the same places: its query reads the index from
the start each time.
"""

import statistics
import time
from dataclasses import dataclass, field
from datetime import UTC, datetime

from bench.azure_functions_db_loop import MemoryState, source_of
from bench.azure_functions_db_loop import runner as azure_runner
from bench.holdfast_loop import Tally, application
from bench.orders import NAME, Orders, filled
from bench.report import Section, Target
from bench.scale import Scale
from holdfast import Holdfast, PollRunner
from holdfast.core.cursor import KeysetCursor
from holdfast.lease.reset import reset_to_cursor
from tests.components.postgres import PostgresServer

BATCH_SIZE = 100
BATCHES = 20
AZURE_BATCHES = 5
POSITIONS = ("middle", "end")


@dataclass(slots=True)
class Place:
    """Somewhere in a table where batches are timed."""

    orders: Orders
    position: str
    app: Holdfast
    runner: PollRunner
    start: KeysetCursor
    seconds: list[float] = field(default_factory=list)
    azure_seconds: list[float] = field(default_factory=list)

    @property
    def name(self) -> str:
        return f"{self.orders.rows:,} rows, {self.position}"

    @property
    def median_ms(self) -> float:
        return statistics.median(self.seconds) * 1000

    @property
    def azure_median_ms(self) -> float:
        return statistics.median(self.azure_seconds) * 1000

    def time_batches(self) -> None:
        """Time some batches from here; the first also looks up the horizon, so it does not count."""
        reset_to_cursor(self.app.state, NAME, self.start, self.runner.source.source_descriptor)
        with self.runner.leased() as lease:
            self.runner.process_batch(lease)
            for _ in range(BATCHES - 1):
                started = time.perf_counter()
                outcome = self.runner.process_batch(lease)
                self.seconds.append(time.perf_counter() - started)
                assert outcome.delivered == BATCH_SIZE

    def time_azure_functions_db(self) -> None:
        """Time some batches of azure-functions-db from here; the first also looks the table up."""
        moment, key = self.start.value, self.start.key_values[0]
        assert isinstance(moment, datetime)
        state = MemoryState({"cursor": [moment.astimezone(UTC).isoformat(), key]})
        runner = azure_runner(source_of(self.orders), state, lambda events: None, BATCH_SIZE, batches=1)
        runner.tick()
        for _ in range(AZURE_BATCHES):
            started = time.perf_counter()
            assert runner.tick() == BATCH_SIZE
            self.azure_seconds.append(time.perf_counter() - started)


def measure(server: PostgresServer, scale: Scale) -> Section:
    """Time batches in tables of different sizes, taking turns."""
    places = [place for rows in scale.growth_rows for place in _places(filled(server, rows))]
    for place in places:
        place.time_batches()  # brings the pages into memory
        place.seconds.clear()
    for number in range(scale.growth_rounds):
        for place in places if number % 2 == 0 else reversed(places):
            place.time_batches()
    for place in places:
        place.time_azure_functions_db()
    return _section(places)


def _section(places: list[Place]) -> Section:
    medians = {place.name: round(place.median_ms, 3) for place in places}
    others = {place.name: round(place.azure_median_ms, 3) for place in places}
    ratio = max(medians.values()) / min(medians.values())
    return Section(
        f"Cost of a batch of {BATCH_SIZE} as the table grows",
        [
            f"  {'median ms per batch':28}{'Holdfast':>10}{'azure-functions-db 0.8.3':>28}",
            *(f"  {name:28}{medians[name]:>10.2f}{others[name]:>28.2f}" for name in medians),
        ],
        {"Holdfast": medians, "azure-functions-db 0.8.3": others, "slowest / fastest": round(ratio, 3)},
        [Target("slowest / fastest place", ratio, at_most=1.3)],
    )


def _places(orders: Orders) -> list[Place]:
    app = application(orders, Tally().read_after, BATCH_SIZE, max_batches_per_tick=1)
    runner = app.runner(NAME)
    starts = {"middle": orders.rows // 2, "end": orders.rows - BATCHES * BATCH_SIZE}
    return [Place(orders, position, app, runner, _cursor_at(app, starts[position])) for position in POSITIONS]


def _cursor_at(app: Holdfast, order_id: int) -> KeysetCursor:
    with app.database.connect() as connection:
        moment = connection.exec_driver_sql("SELECT updated_at FROM orders WHERE id = %s", (order_id,)).scalar_one()
    return KeysetCursor(moment, (("id", order_id),))
