"""The outbox: appending and consuming at batch 500 against bare psycopg with the same guarantees; cost over its size.

The bare loops keep what Holdfast keeps: an append is one statement of many rows in the caller's transaction, with
unique ids; a batch is read below the oldest open transaction, and its checkpoint is moved by a fenced compare-and-set
in one transaction with the effects.
"""

import json
import secrets
import statistics
import time
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import psycopg

from bench.report import Section, Target
from bench.scale import Scale
from holdfast import Holdfast, NewMessage
from holdfast.outbox.message import Checkpoint, Message
from holdfast.outbox.runner import PartitionRunner
from tests.components.postgres import PostgresServer

BATCH_SIZE = 500
PROCESSOR = "bench"
_COST_BATCHES = 20

_RAW_APPEND = """
INSERT INTO holdfast_outbox (message_id, message_type, data, key_hash, correlation_id)
SELECT * FROM unnest(%s::text[], %s::text[], %s::jsonb[], %s::integer[], %s::text[])
ON CONFLICT (message_id) DO NOTHING RETURNING message_id
"""
_RAW_READ = """
SELECT transaction_id, position, message_id, message_type, data, headers, message_key, correlation_id, causation_id,
    appended_at
FROM holdfast_outbox
WHERE (transaction_id, position) > (%(transaction)s::xid8, %(position)s)
  AND transaction_id < pg_snapshot_xmin(pg_current_snapshot())
ORDER BY transaction_id, position LIMIT %(batch)s
"""
_RAW_STORE = """
UPDATE raw_checkpoint SET transaction_id = %(to_transaction)s::xid8, position = %(to_position)s
WHERE id = 1 AND token = 1 AND transaction_id = %(transaction)s::xid8 AND position = %(position)s
"""
_FILL = """
INSERT INTO holdfast_outbox (transaction_id, message_id, message_type, data, key_hash, correlation_id)
SELECT '1'::xid8, 'filled-' || n, 'Paid', '{"amount": 7, "customer": "somebody"}', n %% 1000, 'filled-' || n
FROM generate_series(%(first)s::bigint, %(last)s::bigint) AS n
"""


def measure(server: PostgresServer, scale: Scale) -> Section:
    """Time both sides in turns."""
    messages = 50_000 if scale.enforces_targets else 2_000
    rounds = 5 if scale.enforces_targets else 1
    dsn = server.dsn(server.create_database())
    bench = Bench(dsn)
    appends = _in_turns(rounds, messages, lambda: bench.append(messages), lambda: bench.append_raw(messages))
    bench.analyze()
    consumes = _in_turns(rounds, messages, lambda: bench.consume(messages), lambda: bench.consume_raw(messages))
    bench.close()
    costs = _costs(server, scale)
    flat = max(costs.values()) / min(costs.values())
    lines = [
        f"batch {BATCH_SIZE}, messages per second, median of {rounds}:",
        f"  append   Holdfast {appends.ours:>9,.0f}   bare psycopg {appends.bare:>9,.0f}",
        f"  consume  Holdfast {consumes.ours:>9,.0f}   bare psycopg {consumes.bare:>9,.0f}",
        "a batch by how many messages are stored, ms: "
        + ", ".join(f"{rows:,}: {cost:.2f}" for rows, cost in costs.items()),
    ]
    targets = [
        Target("append against bare psycopg", appends.ratio, at_least=0.6),
        Target("consume against bare psycopg", consumes.ratio, at_least=0.6),
        Target("slowest / fastest batch over the sizes", flat, at_most=1.3),
    ]
    figures = {"append": [appends.ours, appends.bare], "consume": [consumes.ours, consumes.bare], "batch ms": costs}
    return Section("Outbox", lines, figures, targets)


@dataclass(frozen=True)
class Rates:
    """Messages per second on both sides."""

    ours: float
    bare: float

    @property
    def ratio(self) -> float:
        return self.ours / self.bare


def _in_turns(rounds: int, messages: int, ours: Callable[[], None], bare: Callable[[], None]) -> Rates:
    taken: tuple[list[float], list[float]] = ([], [])
    for _ in range(rounds):
        for side, seconds in zip((ours, bare), taken, strict=True):
            started = time.perf_counter()
            side()
            seconds.append(time.perf_counter() - started)
    return Rates(*(messages / statistics.median(seconds) for seconds in taken))


class Bench:
    """Both sides on one database."""

    def __init__(self, dsn: str) -> None:
        self.app = Holdfast(dsn)
        self.app.migrate()
        self.seen = 0
        self.app.processor(PROCESSOR, batch_size=BATCH_SIZE)(self._count)
        self.app.processors.register()
        self.raw = psycopg.connect(dsn)
        self.raw.execute(
            "CREATE TABLE raw_checkpoint (id int PRIMARY KEY, token int, transaction_id xid8, position bigint)"
        )
        self.raw.execute("INSERT INTO raw_checkpoint VALUES (1, 1, '0', 0)")
        self.raw.commit()

    def _count(self, messages: list[Message]) -> None:
        self.seen += len(messages)

    def close(self) -> None:
        self.raw.close()
        self.app._provider.dispose_all()

    def analyze(self) -> None:
        """Let the planner know the table, as autovacuum would: without it the bare loop may sort all that is left."""
        self.raw.execute("ANALYZE holdfast_outbox")
        self.raw.commit()

    def append(self, count: int) -> None:
        for start in range(0, count, BATCH_SIZE):
            batch = [NewMessage(type="Paid", data=_data(start + n)) for n in range(BATCH_SIZE)]
            with self.app.database.begin() as connection:
                self.app.outbox.append_many(connection, batch)

    def append_raw(self, count: int) -> None:
        for start in range(0, count, BATCH_SIZE):
            ids = [secrets.token_hex(16) for _ in range(BATCH_SIZE)]
            data = [json.dumps(_data(start + n)) for n in range(BATCH_SIZE)]
            hashes = [zlib.crc32(each.encode()) & 0x7FFFFFFF for each in ids]
            self.raw.execute(_RAW_APPEND, (ids, ["Paid"] * BATCH_SIZE, data, hashes, ids)).fetchall()
            self.raw.commit()

    def consume(self, count: int) -> None:
        """Deliver everything from the beginning, until ``count`` messages were."""
        self.app.processors.operator.reset(PROCESSOR, Checkpoint(0, 0), actor="bench")
        self.seen = 0
        runner = _runner(self.app)
        with runner.leased() as lease:
            while self.seen < count:
                runner.process_batch(lease)

    def consume_raw(self, count: int) -> None:
        self.raw.execute("UPDATE raw_checkpoint SET transaction_id = '0', position = 0")
        self.raw.commit()
        transaction, position, seen = "0", 0, 0
        while seen < count:
            place = {"transaction": transaction, "position": position}
            rows: list[Any] = self.raw.execute(_RAW_READ, {**place, "batch": BATCH_SIZE}).fetchall()
            to = {"to_transaction": rows[-1][0], "to_position": rows[-1][1]}
            moved = self.raw.execute(_RAW_STORE, {**place, **to}).rowcount
            assert moved == 1
            seen += len(rows)
            self.raw.commit()
            transaction, position = rows[-1][0], rows[-1][1]


def _costs(server: PostgresServer, scale: Scale) -> dict[int, float]:
    """Return the median time of a batch near the end of outboxes of different sizes, timed in turns."""
    sizes = (10_000, 100_000, 2_000_000) if scale.enforces_targets else (5_000, 10_000)
    apps = {size: _filled(server, size) for size in sizes}
    with psycopg.connect(server.dsn(), autocommit=True) as connection:
        connection.execute("CHECKPOINT")  # else the disk is still busy with the filling
    seconds: dict[int, list[float]] = {size: [] for size in sizes}
    for _ in range(5 if scale.enforces_targets else 1):
        for size, app in apps.items():
            seconds[size] += _batches(app, Checkpoint(1, size - (_COST_BATCHES + 5) * 100))
    for app in apps.values():
        app._provider.dispose_all()
    return {size: statistics.median(found) * 1000 for size, found in seconds.items()}


def _filled(server: PostgresServer, size: int) -> Holdfast:
    dsn = server.dsn(server.create_database())
    app = Holdfast(dsn)
    app.migrate()
    app.processor(PROCESSOR, batch_size=100)(lambda messages: None)
    app.processors.register()
    with psycopg.connect(dsn, autocommit=True) as connection:
        connection.execute(_FILL, {"first": 1, "last": size})
        connection.execute("VACUUM ANALYZE holdfast_outbox")
    return app


def _batches(app: Holdfast, start: Checkpoint) -> list[float]:
    app.processors.operator.reset(PROCESSOR, start, actor="bench")
    runner, seconds = _runner(app), []
    with runner.leased() as lease:
        runner.process_batch(lease)
        for _ in range(_COST_BATCHES):
            started = time.perf_counter()
            assert runner.process_batch(lease).delivered == 100
            seconds.append(time.perf_counter() - started)
    return seconds


def _runner(app: Holdfast) -> PartitionRunner:
    processor = app.processors.get(PROCESSOR)
    return app.processors.runner(processor, processor.partition_ids[0])


def _data(number: int) -> dict[str, object]:
    return {"order": number, "customer": "somebody", "amount": 1250, "lines": [1, 2, 3]}
