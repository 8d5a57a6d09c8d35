"""What a handler ended itself is left to an operator: once resumed, it runs again, and is done like any other."""

from __future__ import annotations

from typing import Any

import pytest

from tests.runtime.account import ENDED_ITSELF
from tests.runtime.conftest import COMPONENTS, NewDatabase
from tests.runtime.stage import noted, open_stage
from tests.runtime.ways import EVERYWHERE
from tests.runtime.workloads import WORKLOADS

ITEM = "resumed"
PLACES = [
    pytest.param(workload, database, marks=COMPONENTS[database]) for workload in WORKLOADS for database in EVERYWHERE
]


@pytest.mark.parametrize(("workload", "database"), PLACES)
def test_an_operator_has_it_run_again(workload: str, database: str, new_database: NewDatabase) -> None:
    with new_database(database) as url, open_stage(workload, url) as stage:

        def act(item: str, context: Any) -> None:
            scene = stage.scene(item, context)
            with noted(scene.call):
                scene.write("before")
                if scene.call.number == 1:
                    scene.driver.rollback()

        stage.workload.add([ITEM])
        stopped = stage.workload.run([ITEM], act)[ITEM]
        assert (stopped.is_done, stopped.rests) == (False, True)
        assert ENDED_ITSELF in (stopped.reason or "")
        assert len(stage.calls[ITEM]) == 1
        stage.workload.resume(ITEM)
        assert stage.workload.run([ITEM], act)[ITEM].is_done
        assert stage.kept() == {ITEM: [(2, "before")]}
