"""A session that the server ends under a handler, as a failover does: nothing was kept, and the item is blameless."""

from __future__ import annotations

from typing import Any

import pytest
from sqlalchemy.exc import DBAPIError

from holdfast.jobs import model
from tests.runtime.account import TRIES, UNDONE
from tests.runtime.conftest import ON_SERVERS, NewDatabase
from tests.runtime.stage import open_stage
from tests.runtime.workloads import Processors

ITEM = "broken"


@pytest.mark.parametrize(("workload", "database"), ON_SERVERS)
def test_a_session_that_ends_under_a_handler_is_told_truly_and_its_work_comes_again(
    workload: str, database: str, new_database: NewDatabase, monkeypatch: pytest.MonkeyPatch
) -> None:
    told: list[BaseException] = []
    with new_database(database) as url, open_stage(workload, url) as stage:

        def act(item: str, context: Any) -> None:
            scene = stage.scene(item, context)
            scene.write("before")
            if scene.call.number == 1:
                scene.kill()
            try:
                scene.write("after")
            except Exception as error:
                told.append(error)
                raise

        monkeypatch.setattr(Processors, "options", {"on_error": "dead_letter", "retry_policy": Processors.never_again})
        stage.workload.add([ITEM])
        assert stage.workload.run([ITEM], act)[ITEM].is_done
        assert stage.kept() == {ITEM: [(2, "before"), (2, "after")]}
    [error] = told
    assert isinstance(error, DBAPIError), error
    assert error.connection_invalidated


@pytest.mark.parametrize(("workload", "database"), ON_SERVERS)
def test_a_handler_whose_session_always_ends_is_not_accused_of_ending_it(
    workload: str, database: str, new_database: NewDatabase, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(model, "MOST_UNDONE", UNDONE)
    monkeypatch.setattr(model, "UNDONE_SECONDS", 0.001)
    with new_database(database) as url, open_stage(workload, url) as stage:

        def act(item: str, context: Any) -> None:
            scene = stage.scene(item, context)
            scene.kill()
            scene.write("after")

        stage.workload.add([ITEM])
        settled = stage.workload.run([ITEM], act)[ITEM]
        assert not settled.is_done
        assert "The connection of context.transaction broke, so nothing was kept." in (settled.reason or "")
        assert stage.kept() == {}


CONFLICTS = {
    "postgresql": "DO $$ BEGIN RAISE 'a conflict' USING ERRCODE = '40001'; END $$",
    "mariadb": "SIGNAL SQLSTATE '40001' SET MYSQL_ERRNO = 1213, MESSAGE_TEXT = 'a conflict'",
}


@pytest.mark.parametrize(("workload", "database"), ON_SERVERS)
def test_14_8_a_conflict_that_the_handler_lets_out_is_not_held_against_it(
    workload: str, database: str, new_database: NewDatabase, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Behind an error of the handler's own, too. Of errors that count, its tries would be used up by then."""
    monkeypatch.setattr(model, "UNDONE_SECONDS", 0.001)
    conflicts = TRIES + 1 if workload in ("job", "engine") else 1
    with new_database(database) as url, open_stage(workload, url) as stage:

        def act(item: str, context: Any) -> None:
            scene = stage.scene(item, context)
            scene.write("before")
            if scene.call.number <= conflicts:
                try:
                    scene.say(CONFLICTS[database])
                except DBAPIError as error:
                    raise ValueError("not now") from error

        monkeypatch.setattr(Processors, "options", {"on_error": "dead_letter", "retry_policy": Processors.never_again})
        stage.workload.add([ITEM])
        assert stage.workload.run([ITEM], act)[ITEM].is_done
        assert stage.kept() == {ITEM: [(conflicts + 1, "before")]}
