"""Dead letters: a page of them, and every filter of the API, must cost about the same whatever the table's size.

Two tables are filled alike, a small one and one a hundred times as large, and asked the same questions in turns. The
questions go the way of the API: ``SqlLetterTable.page``, and some over HTTP. Where the small table has less than a page
of what is asked for, the large one is asked for as many rows, so that both show the same number; what a full page costs
there is told beside it.
"""

import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from functools import partial

import httpx
import psycopg

from bench.report import Section, Target
from bench.scale import Scale
from holdfast import Holdfast
from holdfast.api import create_app
from holdfast.records.dead_letters import LetterFilter, LetterStatus
from holdfast.records.history import HistoryFilter, HistoryStatus
from holdfast.records.tables import SqlHistoryTable, SqlLetterTable
from tests.api.clients import served
from tests.components.postgres import PostgresServer

FULL_SIZES = (10_000, 1_000_000)
QUICK_SIZES = (500, 2_000)
AT_MOST = 2.0
NEWEST = datetime(2026, 11, 1, tzinfo=UTC)
MONTHS = timedelta(days=270)
_PENDING = LetterStatus.PENDING

# Nine engines and four workloads: 'spn' has one letter in a thousand, 'jobs:email' four in eighteen. Six of the engines
# work for the publisher alone, processors in four partitions, everything else for 400 instances. 2 letters in 100 are
# Pending, but none of 'spn', 'tls' and the processors; 18 are Expired. They lie in the order in which they came.
_FILL_LETTERS = """
WITH drawn AS (
    SELECT n, random() AS draw, hashint8(n)::bigint + 2147483648 AS hash,
        %(newest)s::timestamptz - %(months)s::interval * (1 - n::float8 / %(size)s) AS failed_at,
        CASE WHEN n %% 1000 = 7 THEN 'spn' ELSE
            (ARRAY['provisioning', 'hmac', 'hmac', 'tls', 'publisher-update', 'publisher-alerts', 'instance-update',
                'health', 'health', 'instance-alerts', 'jobs:email', 'jobs:email', 'jobs:email', 'jobs:email',
                'jobs:invoice', 'processor:search', 'processor:search', 'processor:ledger']
            )[1 + (hashint8(n)::bigint + 2147483648) %% 18] END AS engine
    FROM generate_series(1, %(size)s) AS n
)
INSERT INTO holdfast_dead_letters (engine, row_key, instance_id, original_queue, original_message, error_message,
    dequeue_count, first_failure_at, last_failure_at, status, resolution_notes, resolved_at, resolved_by,
    correlation_id, item_id)
SELECT engine, 'm-' || n || '-' || to_char(failed_at AT TIME ZONE 'UTC', 'YYYYMMDD"T"HH24MISSUS"Z"'),
    CASE WHEN engine IN ('provisioning', 'hmac', 'tls', 'spn', 'publisher-update', 'publisher-alerts')
        THEN 'publisher' WHEN engine LIKE 'processor:%%' THEN 'v1.p' || n %% 4 ELSE 'instance-' || hash / 18 %% 400 END,
    engine || '-queue',
    '{"operation": "rotate", "order": ' || n || ', "customer": "somebody", "note": "' || repeat('x', 200) || '"}',
    'Timeout after 30 s: the service at https://vault.example/keys/' || n || ' did not answer.', 5,
    failed_at - interval '1 hour', failed_at,
    CASE WHEN draw < 0.02 AND engine NOT IN ('spn', 'tls', 'processor:search', 'processor:ledger') THEN 'Pending'
        WHEN draw < 0.2 THEN 'Expired' ELSE 'Resolved' END,
    CASE WHEN draw >= 0.2 THEN 'Retried' END, CASE WHEN draw >= 0.2 THEN failed_at + interval '1 day' END,
    CASE WHEN draw >= 0.2 THEN 'eve' END, 'order-' || n, 'm-' || n
FROM drawn
"""
_FILL_HISTORY = """
INSERT INTO holdfast_history (engine, instance_id, operation, status, duration_ms, input, output, created_at,
    correlation_id, item_id, attempt)
SELECT (ARRAY['hmac', 'tls', 'health', 'jobs:email', 'processor:search'])[1 + n %% 5],
    CASE WHEN n %% 5 < 2 THEN 'publisher' ELSE 'instance-' || n %% 400 END, 'rotate',
    CASE WHEN random() < 0.05 THEN 'Failed' ELSE 'Succeeded' END, 12, '{"order": ' || n || '}', '{}',
    %(newest)s::timestamptz - %(months)s::interval * (1 - n::float8 / %(size)s), 'order-' || n, 'order-' || n, 1
FROM generate_series(1, %(size)s) AS n
"""


@dataclass(slots=True)
class Table:
    """A filled table of dead letters, and one of history, in a database of their own."""

    size: int
    app: Holdfast
    http: httpx.Client
    seconds: dict[str, list[float]] = field(default_factory=dict)

    @property
    def letters(self) -> SqlLetterTable:
        return SqlLetterTable(self.app.database)

    @property
    def history(self) -> SqlHistoryTable:
        return SqlHistoryTable(self.app.database)

    def time(self, name: str, question: Callable[[], object]) -> None:
        started = time.perf_counter()
        question()
        self.seconds.setdefault(name, []).append(time.perf_counter() - started)

    def median_ms(self, name: str) -> float:
        return statistics.median(self.seconds[name]) * 1000


Questions = Mapping[str, Callable[[], object]]


def measure(server: PostgresServer, scale: Scale) -> Section:
    """Ask both tables everything, in turns."""
    if scale.enforces_targets:
        return measure_sizes(server, FULL_SIZES, rounds=200)
    return measure_sizes(server, QUICK_SIZES, rounds=2)


def measure_sizes(server: PostgresServer, sizes: tuple[int, int], rounds: int) -> Section:
    """Ask a small and a large table everything, as many times as there are rounds."""
    with ExitStack() as stack:
        return _measured(server, [_filled(server, size, stack) for size in sizes], rounds)


def _measured(server: PostgresServer, tables: Sequence[Table], rounds: int) -> Section:
    with psycopg.connect(server.dsn(), autocommit=True) as connection:
        connection.execute("CHECKPOINT")  # else the disk is still busy with the filling
    few, many = (_rows_shown(table) for table in tables)
    limits = {name: max(1, rows) for name, rows in few.items()}
    fuller = [name for name in few if few[name] < many[name]]
    letters = [_letter_questions(table, limits) for table in tables]
    others = [{**_full_pages(table, fuller), **_history_questions(table)} for table in tables]
    asked = [{**one, **other} for one, other in zip(letters, others, strict=True)]
    _ask_in_turns(tables, asked, rounds=10)  # brings the pages into memory, and prepares the statements
    for table in tables:
        table.seconds.clear()
    _ask_in_turns(tables, asked, rounds)
    return _section(tables, list(letters[0]), list(others[0]))


def _rows_shown(table: Table) -> dict[str, int]:
    return {name: len(table.letters.page(wanted).items) for name, wanted in letter_filters().items()}


def _filled(server: PostgresServer, size: int, stack: ExitStack) -> Table:
    dsn = server.dsn(server.create_database())
    app = Holdfast(dsn)
    stack.callback(app._provider.dispose_all)
    app.migrate()
    fill(dsn, size)
    api = create_app(app, rate_limit=None, is_loopback=True)
    address = stack.enter_context(served(api))
    return Table(size, app, stack.enter_context(httpx.Client(base_url=address)))


def fill(dsn: str, size: int) -> None:
    """Fill the tables of a database with so many letters and as many entries, the same each time."""
    values = {"size": size, "newest": NEWEST, "months": MONTHS}
    with psycopg.connect(dsn, autocommit=True) as connection:
        connection.execute("SELECT setseed(0.5)")
        connection.execute(_FILL_LETTERS, values)
        connection.execute(_FILL_HISTORY, values)
        connection.execute("VACUUM ANALYZE holdfast_dead_letters, holdfast_history")


def letter_filters() -> dict[str, LetterFilter]:
    """Return by what letters are listed, by name."""
    middle = NEWEST - MONTHS / 2
    month = (middle, middle + timedelta(days=30))
    none_pending = {"engine and Pending, none of few": "spn", "engine and Pending, none of many": "tls"}
    return {
        "first page": LetterFilter(),
        "by date range": LetterFilter(since=month[0], until=month[1]),
        "by engine": LetterFilter(engine="hmac"),
        "by engine with few": LetterFilter(engine="spn"),
        "by engine and date range": LetterFilter(engine="hmac", since=month[0], until=month[1]),
        "by instance": LetterFilter(instance_id="instance-7"),
        "by instance, publisher": LetterFilter(instance_id="publisher"),
        "by correlation id": LetterFilter(correlation_id="order-77"),
        **{f"by status {status}": LetterFilter(status=status) for status in LetterStatus},
        **{f"by engine and {status}": LetterFilter(engine="hmac", status=status) for status in LetterStatus},
        **{
            f"by instance and {status}": LetterFilter(instance_id="instance-7", status=status)
            for status in LetterStatus
        },
        **{f"by {name}": LetterFilter(engine=engine, status=_PENDING) for name, engine in none_pending.items()},
        "by instance and Pending, none of many": LetterFilter(instance_id="v1.p0", status=_PENDING),
        "by instance and Pending, publisher": LetterFilter(instance_id="publisher", status=_PENDING),
    }


def _letter_questions(table: Table, limits: Mapping[str, int]) -> Questions:
    """Return what is asked of the dead letters of a table, by name."""
    letters, filters = table.letters, letter_filters()
    deep = letters.page(LetterFilter(until=NEWEST - MONTHS / 2)).continuation_token
    pending = f"?engine=hmac&status=Pending&limit={limits['by engine and Pending']}"
    return {
        **{name: partial(letters.page, wanted, limits[name]) for name, wanted in filters.items()},
        "deep page": partial(letters.page, after=deep),
        "first page over HTTP": partial(_get, table.http, ""),
        "by engine and Pending over HTTP": partial(_get, table.http, pending),
    }


def _full_pages(table: Table, names: Sequence[str]) -> Questions:
    """Return the questions again that the small table has less than a page for."""
    filters = letter_filters()
    return {f"{name}, a full page": partial(table.letters.page, filters[name]) for name in names}


def _get(http: httpx.Client, query: str) -> None:
    answer = http.get(f"/api/dlq{query}")
    assert answer.status_code == 200, answer.text


def _history_questions(table: Table) -> Questions:
    """Return what is asked of the history of a table, by name."""
    history, middle = table.history, NEWEST - MONTHS / 2
    second = history.page().continuation_token
    filters = {
        "by engine": HistoryFilter(engine="hmac"),
        "by status Failed": HistoryFilter(status=HistoryStatus.FAILED),
        "by engine and Failed": HistoryFilter(engine="hmac", status=HistoryStatus.FAILED),
        "by instance": HistoryFilter(instance_id="instance-7"),
        "by date range": HistoryFilter(since=middle, until=middle + timedelta(days=30)),
        "by correlation id": HistoryFilter(correlation_id="order-77"),
    }
    return {
        "history: first page": history.page,
        "history: second page": partial(history.page, after=second),
        **{f"history: {name}": partial(history.page, wanted) for name, wanted in filters.items()},
    }


def _ask_in_turns(tables: Sequence[Table], asked: Sequence[Questions], rounds: int) -> None:
    pairs = list(zip(tables, asked, strict=True))
    for number in range(rounds):
        for name in asked[0]:
            for table, questions in pairs if number % 2 == 0 else reversed(pairs):
                table.time(name, questions[name])


def _section(tables: Sequence[Table], judged: Sequence[str], others: Sequence[str]) -> Section:
    small, large = tables
    medians = {name: (small.median_ms(name), large.median_ms(name)) for name in (*judged, *others)}
    ratios = {name: after / before for name, (before, after) in medians.items()}
    worst = max(judged, key=lambda name: ratios[name])
    return Section(
        f"Listing dead letters, {large.size:,} against {small.size:,}",
        [
            f"  {'median ms of a page':44}{small.size:>12,}{large.size:>12,}{'ratio':>8}",
            *(f"  {name:44}{medians[name][0]:>12.2f}{medians[name][1]:>12.2f}{ratios[name]:>8.2f}" for name in medians),
        ],
        {name: [round(each, 3) for each in (*medians[name], ratios[name])] for name in medians},
        [Target(f"slowest listing of the large table against the small ({worst})", ratios[worst], at_most=AT_MOST)],
    )
