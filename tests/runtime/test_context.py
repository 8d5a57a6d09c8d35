"""Every handler's context has the same members, which do the same in all workloads, for ``def`` and ``async def``."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from sqlalchemy import text

from holdfast.core.errors import Unavailable
from holdfast.runtime.context import HandlerContext
from tests.runtime.conftest import COMPONENTS, NewDatabase
from tests.runtime.stage import Stage, open_stage
from tests.runtime.ways import POSTGRES, SQLITE
from tests.runtime.workloads import WORKLOADS

PLACES = [
    pytest.param((workload, database), id=f"{workload}-{database}", marks=COMPONENTS[database])
    for workload in WORKLOADS
    for database in (POSTGRES, SQLITE)
]
pytestmark = [
    pytest.mark.parametrize("stage", PLACES, indirect=True),
    pytest.mark.parametrize("is_async", [False, True], ids=["def", "async"]),
]

LIMIT = timedelta(seconds=600)
LIMITED = ("trigger", "job")
ROUNDING = timedelta(seconds=0.01)


@pytest.fixture(scope="module")
def stage(request: pytest.FixtureRequest, new_database: NewDatabase) -> Iterator[Stage]:
    workload, database = request.param
    with new_database(database) as url, open_stage(workload, url) as opened:
        yield opened


class Looks:
    """A handler that uses every member once, and what it got."""

    def __init__(self, stage: Stage, item: str) -> None:
        self.got: list[dict[str, object]] = []
        self.loop_went_on: list[bool] = []
        stage.workload.add([item])

    def __call__(self, item: str, context: Any) -> None:
        self.got.append(
            {"heartbeat": context.heartbeat(), "progress": context.progress({"done": 1}), **members(context)}
        )
        context.heartbeat(progress={"done": 2})
        assert context.transaction.execute(text("SELECT 1")).scalar() == 1

    async def awaited(self, item: str, context: Any) -> None:
        asyncio.get_running_loop().call_soon(self.loop_went_on.append, True)
        got = {"heartbeat": await context.heartbeat(), "progress": await context.progress({"done": 1})}
        self.got.append({**got, **members(context)})
        await context.heartbeat(progress={"done": 2})
        assert (await context.transaction.execute(text("SELECT 1"))).scalar() == 1


def members(context: Any) -> dict[str, object]:
    return {
        "is_the_same_kind": isinstance(context, HandlerContext),
        "correlation_id": context.correlation_id,
        "attempt": context.attempt,
        "fencing_token": context.fencing_token,
        "lease_lost": isinstance(context.lease_lost, threading.Event) and context.lease_lost.is_set(),
        "deadline": context.deadline,
    }


def test_every_member_is_there_and_alike(stage: Stage, is_async: bool) -> None:
    item = f"members-{is_async}"
    looks = Looks(stage, item)
    settled = stage.workload.run([item], looks.awaited if is_async else looks, is_async=is_async)
    assert settled[item].is_done
    [got] = looks.got
    assert (got["heartbeat"], got["progress"], got["attempt"]) == (None, None, 1)
    assert isinstance(got["correlation_id"], str)
    assert got["correlation_id"]
    assert isinstance(got["fencing_token"], int)
    assert got["fencing_token"] >= 1
    assert (got["is_the_same_kind"], got["lease_lost"]) == (True, False)
    assert got["deadline"] is None, "it may take as long as it likes"
    assert looks.loop_went_on == [True] * is_async, "the loop turns while a beat is sent"


def test_the_deadline_is_there_where_the_work_has_a_limit(
    stage: Stage, is_async: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The `max_seconds` of a job, the `tick_deadline_seconds` of a trigger; nothing limits the other two."""
    monkeypatch.setattr(stage.workload, "limit_seconds", LIMIT.total_seconds())
    item, started = f"limited-{is_async}", datetime.now(UTC)
    looks = Looks(stage, item)
    assert stage.workload.run([item], looks.awaited if is_async else looks, is_async=is_async)[item].is_done
    deadline = looks.got[0]["deadline"]
    if stage.workload.name not in LIMITED:
        assert deadline is None
        return
    assert isinstance(deadline, datetime)
    assert started - ROUNDING <= deadline - LIMIT <= datetime.now(UTC) + ROUNDING


def test_a_beat_that_is_not_answered_is_no_failure(
    stage: Stage, is_async: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    def unavailable(*_: object, **__: object) -> None:
        raise Unavailable("The database is away.")

    for where in (
        "holdfast.lease.held_lease.Lease.heartbeat",
        "holdfast.jobs.stores.base.SqlJobStore.progress",
    ):
        monkeypatch.setattr(where, unavailable)
    calls: list[str] = []

    def handle(item: str, context: Any) -> None:
        context.progress(1)
        calls.append(item)

    async def handle_async(item: str, context: Any) -> None:
        await context.progress(1)
        calls.append(item)

    item = f"away-{is_async}"
    stage.workload.add([item])
    settled = stage.workload.run([item], handle_async if is_async else handle, is_async=is_async)
    assert settled[item].is_done
    assert calls == [item]
