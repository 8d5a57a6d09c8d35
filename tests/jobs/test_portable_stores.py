"""What is particular to the queue on SQLite and MariaDB: plans, busy databases, lost commits, WAL mode."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import event, text
from sqlalchemy.engine import make_url

from holdfast.core.errors import Ambiguous, JobError, Unavailable
from holdfast.database.pools import writing
from holdfast.jobs.model import NewJob, Success, TopicLimits
from holdfast.jobs.statements import script
from holdfast.jobs.stores import portable
from tests.components.mariadb import MariadbServer
from tests.components.processes import wait_until
from tests.jobs.queues import ANNE, Queue, open_queue

MANY = 3_000


@pytest.fixture(params=["sqlite_url", "mariadb_url"])
def portable_queue(request: pytest.FixtureRequest) -> Iterator[Queue]:
    with open_queue(request.getfixturevalue(request.param)) as opened:
        yield opened


@pytest.fixture
def busy_queue(portable_queue: Queue) -> Queue:
    """A queue whose sessions hardly wait for locks."""
    is_sqlite = portable_queue.engine.dialect.name == "sqlite"
    hurry = "PRAGMA busy_timeout = 1" if is_sqlite else "SET innodb_lock_wait_timeout = 1"

    @event.listens_for(portable_queue.engine, "checkout")
    def _hurry(dbapi_connection: Any, _record: object, _proxy: object) -> None:
        dbapi_connection.cursor().execute(hurry)

    return portable_queue


class TestBusy:
    def test_a_report_on_a_locked_job_may_be_repeated(self, busy_queue: Queue) -> None:
        busy_queue.add()
        job = busy_queue.claim_one()
        with writing(busy_queue.engine) as other, other.begin():
            other.execute(text("UPDATE holdfast_jobs SET tags = '[]'"))
            with pytest.raises(Unavailable):
                busy_queue.store.complete(ANNE, [Success(job.claim, 1)])
            with pytest.raises(Unavailable):
                busy_queue.store.heartbeat(ANNE, [job.claim])
        assert busy_queue.history() == []
        assert busy_queue.store.heartbeat(ANNE, [job.claim]) == {job.claim: None}
        assert busy_queue.store.complete(ANNE, [Success(job.claim, 1)]) == {job.claim}

    def test_a_deadlock_undoes_the_change_and_may_be_repeated(self, mariadb_url: str) -> None:
        with open_queue(mariadb_url) as queue, ThreadPoolExecutor(1) as thread:
            first, second = queue.add().id, queue.add().id
            reports = [Success(job.claim, 1) for job in queue.claim()]
            with queue.engine.begin() as heavy:  # of two that wait for each other, the one that wrote less is undone
                heavy.execute(text(f"UPDATE holdfast_jobs SET tags = '[]' WHERE id = {second}"))
                queue.store.enqueue_many([_job("other")] * 50, heavy)
                completing = thread.submit(queue.store.complete, ANNE, reports)
                wait_until(lambda: _is_waiting(queue), "the completion waits for the second job")
                heavy.execute(text(f"UPDATE holdfast_jobs SET tags = '[]' WHERE id = {first}"))
            with pytest.raises(Unavailable, match="Deadlock"):
                completing.result()
            assert queue.history() == []
            assert queue.store.complete(ANNE, reports) == {report.claim for report in reports}


def _is_waiting(queue: Queue) -> bool:
    [waits] = queue.rows("SHOW GLOBAL STATUS LIKE 'Innodb_row_lock_current_waits'")
    return int(waits["Value"]) > 0


def test_a_commit_that_is_not_answered_is_ambiguous(mariadb_server: MariadbServer, mariadb_url: str) -> None:
    with open_queue(mariadb_url) as queue:
        database = make_url(mariadb_url).database
        assert database is not None
        unanswered = queue.store.transaction()
        queue.store.enqueue(_job("email"), unanswered.__enter__())
        mariadb_server.terminate_sessions(database)
        with pytest.raises(Ambiguous):
            unanswered.__exit__(None, None, None)
        assert queue.claim() == []


def test_a_file_used_as_a_queue_is_in_wal_mode(sqlite_url: str, tmp_path: Path) -> None:
    with open_queue(sqlite_url) as queue:
        queue.add()
        reader = sqlite3.connect(tmp_path / "test.db")
        try:
            assert reader.execute("PRAGMA journal_mode").fetchone() == ("wal",)
            with queue.store.transaction() as connection:
                queue.store.enqueue(NewJob(topic="email", operation="send", payload="{}"), connection)
                assert reader.execute("SELECT count(*) FROM holdfast_jobs").fetchone() == (1,)
        finally:
            reader.close()


def test_idle_rounds_do_not_need_sqlites_write_lock(sqlite_url: str) -> None:
    with open_queue(sqlite_url) as queue, writing(queue.engine) as writer, writer.begin():
        assert queue.claim() == []
        assert queue.store.promote() == 0
        assert queue.store.reap() == {}
        assert queue.store.prune(0) == 0


def test_times_come_back_aware(portable_queue: Queue) -> None:
    soon = datetime.now(UTC) + timedelta(milliseconds=1)
    portable_queue.add(run_at=soon)
    portable_queue.step(1)
    portable_queue.store.promote()
    job = portable_queue.claim_one()
    assert job.run_at == soon
    assert abs(job.created_at - soon) < timedelta(minutes=1)
    assert portable_queue.column(job.id, "lease_until").tzinfo is UTC


def test_a_key_called_held_breaks_nothing(portable_queue: Queue) -> None:
    assert portable_queue.add(unique_key="held").is_new
    assert not portable_queue.add(unique_key="held").is_new


def test_a_broken_rule_is_no_reason_to_try_again(portable_queue: Queue, monkeypatch: pytest.MonkeyPatch) -> None:
    job_id = portable_queue.add().id
    portable_queue.claim_one()
    monkeypatch.setattr(portable, "script", lambda *_: ("SELECT 1 AS id", "UPDATE holdfast_jobs SET locked_by = NULL"))
    with pytest.raises(JobError) as refused:
        portable_queue.store.cancel([job_id], "no")
    assert not isinstance(refused.value, Unavailable)


class TestPlans:
    """Claiming and reaping read what they return, not what waits beside it."""

    @pytest.fixture
    def full_queue(self, portable_queue: Queue) -> Queue:
        queue = portable_queue
        later = datetime.now(UTC) + timedelta(days=1)
        queue.store.set_limits("limited", TopicLimits(max_running_per_key=1))
        queue.store.pause("paused", True)
        queue.store.enqueue_many([_job("paused")] * MANY)
        queue.store.enqueue_many([_job("limited", limit_key="a")] * MANY)
        queue.store.enqueue_many([_job("limited", limit_key="b")] * 3)
        queue.store.enqueue_many([_job("email", run_at=later, priority=9)] * MANY)
        queue.store.enqueue_many([_job("email")] * MANY)
        return queue

    @pytest.mark.parametrize(
        "name",
        [
            "waiting_operations",
            "claim",
            "ready_keys",
            "ready_of_keys",
            "ready_without_key",
            "next_operation",
            "promote",
            "reap",
            "prune",
        ],
    )
    def test_a_look_goes_by_an_index(self, full_queue: Queue, name: str) -> None:
        for table, index in _plan(full_queue, name):
            assert index, f"{name} reads all of {table}"

    def test_pruning_reads_only_what_has_ended(self, full_queue: Queue) -> None:
        [(_, index)] = _plan(full_queue, "prune")
        is_sqlite = full_queue.engine.dialect.name == "sqlite"
        assert ("holdfast_jobs_ended" if is_sqlite else "holdfast_jobs_due") in str(index)

    def test_few_rows_are_read(self, full_queue: Queue) -> None:
        if full_queue.engine.dialect.name == "sqlite":
            pytest.skip("SQLite does not count what it reads")
        full_queue.claim_limited(1, topic="limited")  # key a is full now
        with _rows_read(full_queue) as read:
            assert len(full_queue.claim(10, topics=("paused", "email"))) == 10
            assert len(full_queue.claim_limited(10, topic="limited")) == 1
            assert full_queue.store.promote() == 0
            assert full_queue.store.reap() == {}
        assert sum(read) < MANY / 2


def _job(topic: str, **options: Any) -> NewJob:
    return NewJob(topic=topic, operation="send", payload="{}", **options)


def _plan(queue: Queue, name: str) -> list[tuple[str, str | None]]:
    """Return the tables of ours that the first statement of a change reads, each with the index it is read by."""
    wanted = '[["paused", "send"], ["email", "send"]]'
    values = {"wanted": wanted, "topic": "limited", "operation": "send", "worker": "x", "after": ""}
    values |= {"after_key": "", "limit_key": "a"}
    numbers = {"capacity": 5, "room": 5, "most_keys": 5, "limit": 5, "seconds": 1.0, "ahead_seconds": 0.0}
    is_sqlite = queue.engine.dialect.name == "sqlite"
    sql = script("sqlite" if is_sqlite else "mysql", name)[0]
    with queue.engine.connect() as connection:
        explain = "EXPLAIN QUERY PLAN" if is_sqlite else "EXPLAIN"
        rows = connection.exec_driver_sql(f"{explain} {sql}", {**values, **numbers, "batch": "[]"}).mappings().all()
    if is_sqlite:
        details = [row["detail"] for row in rows]
        ours = [detail for detail in details if f"{detail} ".split(" ")[1] in ("job", "known", "holdfast_jobs")]
        return [(detail, detail.partition(" USING ")[2] or None) for detail in ours]
    return [(row["table"], row["key"]) for row in rows if row["table"] in ("job", "known", "holdfast_jobs")]


@contextmanager
def _rows_read(queue: Queue) -> Iterator[list[int]]:
    """Yield a list that holds, afterwards, how many rows each session of MariaDB read."""
    read: list[int] = []

    @event.listens_for(queue.engine, "checkout")
    def _forget(dbapi_connection: Any, _record: object, _proxy: object) -> None:
        dbapi_connection.cursor().execute("FLUSH STATUS")

    @event.listens_for(queue.engine, "checkin")
    def _count(dbapi_connection: Any, _record: object) -> None:
        cursor = dbapi_connection.cursor()
        cursor.execute("SHOW SESSION STATUS LIKE 'Handler_read%'")
        read.append(sum(int(row[1]) for row in cursor.fetchall()))

    yield read
    event.remove(queue.engine, "checkout", _forget)
    event.remove(queue.engine, "checkin", _count)
