"""What the database refuses at the end each time is the handler's failure: counted, ended, and said to be that."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tests.runtime.conftest import COMPONENTS, NewDatabase
from tests.runtime.scenes import Scene
from tests.runtime.stage import Stage, noted, open_stage
from tests.runtime.ways import POSTGRES, SQLITE
from tests.runtime.workloads import WORKLOADS

SESSION = {
    "role": "SET LOCAL ROLE pg_monitor",
    "search_path": "SET LOCAL search_path = pg_catalog",
}
REFUSING = (
    "CREATE TABLE strict_things (id int)",
    """CREATE FUNCTION refuse_things() RETURNS trigger LANGUAGE plpgsql AS
       $$ BEGIN RAISE EXCEPTION 'no way'; END $$""",
    """CREATE CONSTRAINT TRIGGER refuse_things AFTER INSERT ON strict_things
       DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION refuse_things()""",
)


@pytest.fixture(scope="module", params=WORKLOADS)
def stage(request: pytest.FixtureRequest, new_database: NewDatabase) -> Iterator[Stage]:
    with new_database(POSTGRES) as url, open_stage(request.param, url) as opened:
        with opened.apart.begin() as connection:
            for statement in REFUSING:
                connection.exec_driver_sql(statement)
        yield opened


def settled(stage: Stage, item: str, act: Callable[[Scene], object]) -> tuple[bool, str, int]:
    """Run an item whose handler does something to its session; return if it is done, why not, and its calls."""
    calls = []

    def handle(item: str, context: Any) -> None:
        scene = stage.scene(item, context)
        calls.append(scene)
        with noted(scene.call):
            scene.write("before")
            act(scene)

    stage.workload.add([item])
    found = stage.workload.run([item], handle)[item]
    return found.is_done, found.reason or "", len(calls)


pytestmark = COMPONENTS[POSTGRES]


@pytest.mark.parametrize("what", SESSION)
def test_a_session_in_which_nothing_can_be_recorded_is_the_handlers_failure(stage: Stage, what: str) -> None:
    is_done, reason, calls = settled(stage, what, lambda scene: scene.connection.exec_driver_sql(SESSION[what]))
    assert not is_done
    assert "Take back in the handler what it changed of its session" in reason
    assert calls <= 3
    assert what not in stage.kept()


def test_a_commit_that_the_database_refuses_is_the_handlers_failure(stage: Stage) -> None:
    insert = "INSERT INTO strict_things VALUES (1)"
    is_done, reason, calls = settled(stage, "refused", lambda scene: scene.connection.exec_driver_sql(insert))
    assert not is_done
    told = "***" if stage.workload.name == "processor" else "no way"  # a processor's reason is for everybody to see
    assert f"the database refused the commit, and nothing was kept: {told}" in reason
    assert calls <= 3
    assert "refused" not in stage.kept()


def test_options_of_the_handlers_statements_are_not_those_of_the_record(stage: Stage) -> None:
    is_done, _, calls = settled(
        stage, "streaming", lambda scene: scene.connection.execution_options(stream_results=True)
    )
    assert (is_done, calls) == (True, 1)
    assert len(stage.kept()["streaming"]) == 1


@pytest.mark.parametrize("workload", WORKLOADS)
def test_a_session_that_may_not_write_any_more_is_the_handlers_failure_on_sqlite(
    workload: str, new_database: NewDatabase
) -> None:
    with new_database(SQLITE) as url, open_stage(workload, url) as stage:
        only = "PRAGMA query_only = ON"
        is_done, reason, calls = settled(stage, "only", lambda scene: scene.connection.exec_driver_sql(only))
        assert not is_done
        assert "Take back in the handler what it changed of its session" in reason
        assert calls <= 3
        is_done, _, calls = settled(stage, "next", lambda scene: None)
        assert (is_done, calls) == (True, 1)
