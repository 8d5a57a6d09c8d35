"""A handler whose lease was lost by the clock does not go on writing: its connection is cut under its statement.

Not on SQLite: nobody can take a lease while a handler's transaction holds the one write lock.
"""

from __future__ import annotations

from typing import Any

import pytest
from sqlalchemy import text
from sqlalchemy.exc import DBAPIError

from holdfast.runtime.keeper import Kept
from holdfast.runtime.transaction import HandlerTransaction
from tests.runtime.conftest import ON_SERVERS, NewDatabase
from tests.runtime.stage import Stage, open_stage
from tests.runtime.workloads import failure_of

ITEM = "lost"
LEASE_SECONDS = 1.5
SLEEPS = {"postgresql": "SELECT pg_sleep(:seconds)", "mysql": "SELECT SLEEP(:seconds)"}


@pytest.fixture(autouse=True)
def _no_beats(monkeypatch: pytest.MonkeyPatch) -> None:
    """No beat is answered: every lease runs out by the clock."""
    monkeypatch.setattr(Kept, "_beat", lambda self: False)


def asked_for(stage: Stage, seconds: float) -> list[DBAPIError | None]:
    """Let a handler write, then ask the database for something that takes long; return what became of that."""
    ended: list[DBAPIError | None] = []

    def act(item: str, context: Any) -> None:
        stage.scene(item, context).write("before")
        sleep = text(SLEEPS[context.transaction.dialect.name])
        try:
            context.transaction.execute(sleep, {"seconds": seconds})
        except DBAPIError as error:
            ended.append(error)
            raise
        ended.append(None)

    stage.workload.add([ITEM])
    failure_of(lambda: stage.workload.try_once(ITEM, act))
    return ended


@pytest.mark.parametrize(("workload", "database"), ON_SERVERS)
def test_a_handler_whose_lease_is_lost_is_cut(
    workload: str, database: str, new_database: NewDatabase, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("WARNING", "holdfast")
    with new_database(database) as url, open_stage(workload, url, lease_seconds=LEASE_SECONDS) as stage:
        first, *_ = asked_for(stage, 60)
        assert first is not None
        assert stage.kept() == {}
        assert not stage.workload.is_done(ITEM)
    assert "was lost while its handler ran: its connection is cut" in caplog.text


@pytest.mark.parametrize(("workload", "database"), ON_SERVERS[:1])
def test_planted_without_the_cut_it_goes_on(
    workload: str, database: str, new_database: NewDatabase, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(HandlerTransaction, "lose", lambda self: None)
    with new_database(database) as url, open_stage(workload, url, lease_seconds=LEASE_SECONDS) as stage:
        assert asked_for(stage, 2 * LEASE_SECONDS)[0] is None
