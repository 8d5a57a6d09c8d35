"""How PostgreSQL finds the jobs of a batch when its statistics were made while nobody worked."""

from __future__ import annotations

import re

import pytest
from sqlalchemy import event, text

from holdfast.jobs.model import Failure, NewJob, PutBack, Success
from tests.components.named_pools import named_engine
from tests.jobs.queues import ANNE, Queue, open_queue

MANY = 3_000
BATCH = 1_000
TOLD = {
    "complete": lambda store, claims: store.complete(ANNE, [Success(claim, 1) for claim in claims]),
    "fail": lambda store, claims: store.fail(ANNE, [Failure(claim, 1, "no") for claim in claims]),
    "put back": lambda store, claims: store.put_back(ANNE, [PutBack(claim) for claim in claims]),
    "heartbeat": lambda store, claims: store.heartbeat(ANNE, claims),
}


@pytest.mark.component("postgres18")
@pytest.mark.parametrize("what", TOLD)
def test_a_batch_is_found_by_index_and_not_by_comparing_each_job_with_each_report(what: str, postgres_url: str) -> None:
    with open_queue(postgres_url):
        queue = Queue(named_engine(postgres_url))
        with queue.store.transaction() as connection:
            queue.store.enqueue_many([NewJob(topic="email", operation="send", payload="{}")] * MANY, connection)
        with queue.engine.connect() as connection:
            connection.execution_options(isolation_level="AUTOCOMMIT").execute(text("ANALYZE holdfast_jobs"))
        claims = [job.claim for job in queue.claim(BATCH)]
        plans: list[str] = []

        @event.listens_for(queue.engine, "before_cursor_execute")
        def explain(conn, cursor, statement, values, *_: object) -> None:  # type: ignore[no-untyped-def]
            if "report" in statement or "held" in statement:
                cursor.execute(f"EXPLAIN {statement}", values)
                plans.append("\n".join(row[0] for row in cursor.fetchall()))

        TOLD[what](queue.store, claims)
        assert len(claims) == BATCH
        assert plans
        for plan in plans:
            assert "Join Filter" not in plan, plan
            assert re.search(r"Index Scan using holdfast_jobs_pkey", plan), plan
