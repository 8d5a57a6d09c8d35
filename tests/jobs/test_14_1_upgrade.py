"""MariaDB's tables of the release before are changed beside its workers: from then on keys are equal byte by byte."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator

import pytest
from sqlalchemy import event, text
from sqlalchemy.engine import Engine

from holdfast.database import migrations
from holdfast.database.key_collation import KEY_COLLATION, NAMES
from holdfast.database.migrations import migrate
from holdfast.jobs.settings import WorkerSettings
from holdfast.jobs.statements import statement
from holdfast.jobs.stores import base
from holdfast.schema import MIGRATIONS
from tests.components.processes import wait_until
from tests.jobs.queues import Queue, open_queue
from tests.jobs.workers import Work

pytestmark = pytest.mark.component("mariadb")
STEPS = ["0013 names of state documents by their bytes", "0014 keys by their bytes"]
SINCE = {"holdfast_processor_parked"}  # tables that the release before did not have
JOINED = ("holdfast_jobs", "holdfast_topics", "holdfast_job_servers", "holdfast_remote_workers")

# Statements of the release before, which its workers go on using: JSON_TABLE's columns have no collation of their own.
_SINCE = f" CHARACTER SET utf8mb4 COLLATE {KEY_COLLATION}"
_WAITING_OPERATIONS = """
SELECT asked.topic, asked.operation
FROM JSON_TABLE('[["email", "send"]]', '$[*]' COLUMNS (topic VARCHAR(150) PATH '$[0]',
    operation VARCHAR(200) PATH '$[1]')) AS asked
WHERE NOT EXISTS (SELECT 1 FROM holdfast_topics AS known WHERE known.topic = asked.topic AND known.is_paused)
    AND (SELECT job.id FROM holdfast_jobs AS job FORCE INDEX (holdfast_jobs_by_key)
        WHERE job.status = 'ready' AND job.topic = asked.topic AND job.operation = asked.operation
            AND job.limit_key IS NULL LIMIT 1) IS NOT NULL"""
_OF_GROUPS = """
SELECT message.message_id
FROM JSON_TABLE('["0123456789abcdef"]', '$[*]' COLUMNS (transaction_group char(16) PATH '$')) AS asked
JOIN holdfast_outbox AS message ON message.transaction_group = asked.transaction_group COLLATE utf8mb4_bin"""
_MESSAGE = """
INSERT INTO holdfast_outbox (transaction_group, append_id, message_id, message_type, data, key_hash, correlation_id)
VALUES ('0123456789abcdef', '0123456789abcdef', 'm', 'Paid', '{}', 1, 'm')"""
_LOST = """
SELECT job.id FROM holdfast_jobs AS job WHERE EXISTS (SELECT 1 FROM holdfast_remote_workers AS remote
    LEFT JOIN holdfast_job_servers AS server ON server.name = remote.server
    WHERE remote.owner = job.locked_by AND server.seen_at IS NULL)"""


@pytest.fixture
def queue_before(mariadb_url: str) -> Iterator[Queue]:
    """Yield a queue as the release before has left it."""
    with open_queue(mariadb_url) as queue:
        compare_as_before(queue.engine, collations(queue.engine).keys() - SINCE)
        yield queue


def compare_as_before(engine: Engine, tables: Iterable[str], collation: str = "utf8mb4_bin") -> None:
    with engine.begin() as connection:
        for table in tables:
            connection.execute(text(f"ALTER TABLE {table} CONVERT TO CHARACTER SET utf8mb4 COLLATE {collation}"))
        connection.execute(text("DELETE FROM holdfast_migrations WHERE number IN (13, 14)"))


def collations(engine: Engine) -> dict[str, set[str]]:
    """Return the collations of each table of ours: its own, and those of its columns."""
    found = text(
        "SELECT table_name, collation_name FROM information_schema.columns WHERE table_schema = DATABASE() "
        "AND collation_name IS NOT NULL UNION SELECT table_name, table_collation FROM information_schema.tables "
        "WHERE table_schema = DATABASE()"
    )
    told: dict[str, set[str]] = {}
    with engine.connect() as connection:
        for table, collation in connection.execute(found):
            told.setdefault(table, set()).add(collation)
    return {table: told[table] for table in told if table.startswith("holdfast_")}


def test_14_1_every_table_compares_by_bytes_and_padding_is_gone(queue_before: Queue) -> None:
    queue = queue_before
    first = queue.add(unique_key="order-7")
    assert not queue.add(unique_key="order-7 ").is_new
    assert migrate(queue.engine, MIGRATIONS) == STEPS
    assert migrate(queue.engine, MIGRATIONS) == []
    assert set.union(*collations(queue.engine).values()) == {NAMES[0]}, (
        "Write COLLATE {{key_collation}}, or **KEY_TABLE"
    )
    other = queue.add(unique_key="order-7 ")
    assert other.is_new
    assert queue.add(unique_key="order-7").id == first.id


def test_14_1_tables_that_the_dialect_mariadb_made_are_changed_too(queue_before: Queue) -> None:
    """They had the database's own collation, in which A is a."""
    queue = queue_before
    compare_as_before(queue.engine, ["holdfast_state", "holdfast_history", "holdfast_audit"], "utf8mb4_general_ci")
    assert migrate(queue.engine, MIGRATIONS) == STEPS
    assert set.union(*collations(queue.engine).values()) == {NAMES[0]}


def test_14_1_a_migration_that_was_broken_off_goes_on(queue_before: Queue) -> None:
    queue = queue_before
    migrate(queue.engine, MIGRATIONS)
    compare_as_before(queue.engine, JOINED[1:])
    assert migrate(queue.engine, MIGRATIONS) == STEPS
    assert set.union(*collations(queue.engine).values()) == {NAMES[0]}
    with queue.engine.connect() as connection:
        assert connection.execute(text(_LOST)).all() == []


def test_14_1_workers_of_the_release_before_go_on(queue_before: Queue, monkeypatch: pytest.MonkeyPatch) -> None:
    queue = queue_before
    monkeypatch.setattr(base, "statement", lambda dialect, name: statement(dialect, name).replace(_SINCE, ""))
    queue.add(topic="email", operation="send")
    with queue.engine.begin() as connection:
        connection.execute(text(_MESSAGE))
        before = [connection.execute(text(sql)).all() for sql in (_WAITING_OPERATIONS, _OF_GROUPS, _LOST)]
    work = Work(queue, WorkerSettings(concurrency=2, poll_seconds=0.05))
    ran: list[int] = []

    def note(n: int) -> None:
        ran.append(n)

    job = work.job(note, topic="other")
    with work.running():
        job.enqueue_many([{"n": n} for n in range(30)])
        wait_until(lambda: len(ran) >= 10, "some jobs before the migration")
        migrate(queue.engine, MIGRATIONS)
        job.enqueue_many([{"n": n} for n in range(30, 60)])
        wait_until(lambda: len(ran) == 60, "the jobs before and after the migration")
    with queue.engine.connect() as connection:
        after = [connection.execute(text(sql)).all() for sql in (_WAITING_OPERATIONS, _OF_GROUPS, _LOST)]
    assert after == before == [[("email", "send")], [("m",)], []]


def test_14_1_who_migrates_is_waited_for_however_long_it_takes(
    queue_before: Queue, monkeypatch: pytest.MonkeyPatch
) -> None:
    queue, asked, done = queue_before, threading.Semaphore(0), []
    monkeypatch.setattr(migrations, "_LOCK_SECONDS", 0)

    @event.listens_for(queue.engine, "after_cursor_execute")
    def _note(_connection: object, _cursor: object, statement: str, *_rest: object) -> None:
        if "GET_LOCK" in statement:
            asked.release()

    def run() -> None:
        done.extend(migrate(queue.engine, MIGRATIONS))

    with queue.engine.connect() as another:
        another.exec_driver_sql(f"SELECT GET_LOCK('{migrations._LOCK_NAME}', 10)")
        thread = threading.Thread(target=run)
        thread.start()
        assert all(asked.acquire(timeout=30) for _ in range(3))
        assert done == []
        another.exec_driver_sql(f"SELECT RELEASE_LOCK('{migrations._LOCK_NAME}')")
    thread.join(60)
    assert done == STEPS
