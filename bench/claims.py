"""What a claim of 100 costs when much waits: in all, in the future, for others, behind a paused topic or a full key."""

import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass

import psycopg

from bench.report import Section, Target
from bench.scale import Scale
from holdfast.database.migrations import migrate
from holdfast.jobs.model import ClaimedJob, TopicLimits, WorkerId
from holdfast.jobs.store import job_store
from holdfast.jobs.stores.base import SqlJobStore
from holdfast.schema import MIGRATIONS
from tests.components.named_pools import named_engine
from tests.components.postgres import PostgresServer

BATCH = 100
WORKER = WorkerId("bench")
BEHIND = "behind"
# %(n)s rows that differ in what the case is about
_FILL = """
INSERT INTO holdfast_jobs (topic, operation, payload, status, priority, run_at, limit_key)
SELECT %(topic)s, %(operation)s, '{}', %(status)s, %(priority)s, %(run_at)s::timestamptz,
    CASE WHEN %(keys)s = 0 THEN NULL WHEN %(keys)s = 1 THEN 'full' ELSE 'key-' || (number %% %(keys)s) END
FROM generate_series(1, %(n)s) AS number
"""
_PLAIN = {"topic": "bench", "operation": "noop", "status": "ready", "priority": 0, "run_at": None, "keys": 0}


@dataclass(frozen=True, slots=True)
class Case:
    """What waits, and how it is claimed."""

    name: str
    fill: Callable[[psycopg.Connection, SqlJobStore, int, int], None]
    is_limited: bool = False
    operations: tuple[str, ...] = ("noop",)


def measure(server: PostgresServer, scale: Scale) -> Section:
    """Measure every case against the one where little waits."""
    few, many, rounds = (10_000, 1_000_000, 40) if scale.enforces_targets else (1_000, 5_000, 3)
    with ExitStack() as opened:
        stores = [(case, opened.enter_context(_filled(server, case, few, many))) for case in CASES]
        found: dict[str, list[float]] = {case.name: [] for case in CASES}
        for _ in range(rounds):
            for case, store in stores:  # in turns, so that a noisy moment hits them all
                found[case.name].append(_milliseconds(store, case))
    medians = {name: statistics.median(values) for name, values in found.items()}
    lines = [f"milliseconds for a claim of {BATCH} ({few:,} jobs to claim, {many:,} in the way), median of {rounds}"]
    lines += [f"  {name:<44}{milliseconds:>8.2f}" for name, milliseconds in medians.items()]
    targets = []
    for case in CASES:
        base = LIMITED.name if case.is_limited else FEW.name
        if case.name not in (FEW.name, LIMITED.name):
            ratio = medians[case.name] / medians[base]
            targets.append(Target(f"claim with {case.name} against {base}", ratio, at_most=1.3))
    return Section("Cost of a claim", lines, {"milliseconds": medians}, targets)


@contextmanager
def _filled(server: PostgresServer, case: Case, few: int, many: int) -> Iterator[SqlJobStore]:
    with _store(server) as (store, connection):
        case.fill(connection, store, few, many)
        connection.execute("VACUUM ANALYZE holdfast_jobs")
        connection.execute("CHECKPOINT")
        _milliseconds(store, case)  # connects, and loads what the first claim needs
        yield store


def _milliseconds(store: SqlJobStore, case: Case) -> float:
    started = time.perf_counter()
    jobs = _claim(store, case)
    milliseconds = (time.perf_counter() - started) * 1000
    assert len(jobs) == BATCH, f"{case.name}: {len(jobs)} jobs were claimed"
    assert all(job.topic == "bench" and job.limit_key != "full" for job in jobs)
    return milliseconds


def _claim(store: SqlJobStore, case: Case) -> list[ClaimedJob]:
    if case.is_limited:
        return store.claim_limited(WORKER, "bench", ["noop"], BATCH)
    return store.claim(WORKER, {"paused": ["noop"], "bench": case.operations}, BATCH)


@contextmanager
def _store(server: PostgresServer) -> Iterator[tuple[SqlJobStore, psycopg.Connection]]:
    name = server.create_database()
    engine = named_engine(server.url(name))
    migrate(engine, MIGRATIONS)
    with psycopg.connect(server.dsn(name), autocommit=True) as connection:
        yield job_store(engine), connection
    engine.dispose()
    server.drop_database(name)


def _few(connection: psycopg.Connection, store: SqlJobStore, few: int, many: int) -> None:
    connection.execute(_FILL, {**_PLAIN, "n": few})


def _many(connection: psycopg.Connection, store: SqlJobStore, few: int, many: int) -> None:
    connection.execute(_FILL, {**_PLAIN, "n": many})


def _future(connection: psycopg.Connection, store: SqlJobStore, few: int, many: int) -> None:
    later = {**_PLAIN, "status": "scheduled", "priority": 9, "run_at": "2100-01-01", "n": many}
    connection.execute(_FILL, later)
    _few(connection, store, few, many)


def _paused(connection: psycopg.Connection, store: SqlJobStore, few: int, many: int) -> None:
    store.pause("paused", True)
    connection.execute(_FILL, {**_PLAIN, "topic": "paused", "priority": 9, "n": many})
    _few(connection, store, few, many)


def _foreign(connection: psycopg.Connection, store: SqlJobStore, few: int, many: int) -> None:
    connection.execute(_FILL, {**_PLAIN, "operation": "foreign", "priority": 9, "n": many})
    _few(connection, store, few, many)


def _foreign_keys(connection: psycopg.Connection, store: SqlJobStore, few: int, many: int) -> None:
    _little_behind_a_key(connection, store, few, many)
    connection.execute(_FILL, {**_PLAIN, "operation": "foreign", "keys": few, "priority": 9, "n": many})


def _little_behind_a_key(connection: psycopg.Connection, store: SqlJobStore, few: int, many: int) -> None:
    _full_key(connection, store, few, 10)


def _full_key(connection: psycopg.Connection, store: SqlJobStore, few: int, many: int) -> None:
    store.set_limits("bench", TopicLimits(max_running_per_key=1))
    connection.execute(_FILL, {**_PLAIN, "keys": 1, "n": 1})
    assert len(store.claim_limited(WORKER, "bench", ["noop"], 1)) == 1
    connection.execute(_FILL, {**_PLAIN, "keys": 1, "priority": 9, "n": many})
    connection.execute(_FILL, {**_PLAIN, "keys": few, "n": few})


FEW = Case("little waiting", _few)
LIMITED = Case("little behind a full key", _little_behind_a_key, is_limited=True)
CASES = (
    FEW,
    Case("much waiting", _many),
    Case("much scheduled for later, at a higher priority", _future),
    Case("much behind a paused topic", _paused),
    Case("much that others must run, in front", _foreign),
    Case("much that others must run, beside four", _foreign, operations=("noop", "two", "three", "four")),
    LIMITED,
    Case("much behind a full key", _full_key, is_limited=True),
    Case("much that others must run, with keys", _foreign_keys, is_limited=True),
)
