"""A process that freezes inside its transaction: another takes over within its lease, and it changes nothing more.

Not on SQLite: whoever freezes while it holds the one write lock of a file locks everybody out, itself included.
"""

from __future__ import annotations

from typing import Any

import pytest

from tests.components.processes import PythonWorker, wait_until
from tests.runtime.conftest import COMPONENTS, ON_SERVERS, NewDatabase
from tests.runtime.frozen_worker import ITEMS
from tests.runtime.stage import open_stage
from tests.runtime.ways import EVERYWHERE
from tests.runtime.workloads import WORKLOADS, Queued, failure_of

LEASE_SECONDS = 1.5
HEALTHY = "healthy"


@pytest.mark.parametrize(("workload", "database"), ON_SERVERS)
def test_a_frozen_process_is_replaced_and_changes_nothing_however_its_handlers_end(
    workload: str, database: str, new_database: NewDatabase
) -> None:
    """One process is frozen in a handler that errs, in one that returns and in one that raises."""
    with new_database(database) as url, open_stage(workload, url, lease_seconds=LEASE_SECONDS) as stage:

        def act(item: str, context: Any) -> None:
            stage.scene(item, context).write("successor")

        def has_taken_over() -> bool:
            if isinstance(stage.workload, Queued):  # one worker does them all
                return all(end.is_done for end in stage.workload.run([*ITEMS], act).values())
            left = [item for item in ITEMS if not stage.workload.is_done(item)]
            for item in left:
                failure_of(lambda item=item: stage.workload.try_once(item, act))  # type: ignore[misc]
            return not left

        stage.workload.add([*ITEMS])
        arguments = ("-m", "tests.runtime.frozen_worker", workload, url, str(LEASE_SECONDS))
        with PythonWorker(*arguments) as frozen:
            for item in ITEMS:
                frozen.wait_for_line(f"inside {item}")
            frozen.suspend()
            wait_until(has_taken_over, "a successor to do the work", 60)
            frozen.resume()
            frozen.wait_for_line("all have ended")
        assert {item: [step for _, step in kept] for item, kept in stage.kept().items()} == {
            item: ["successor"] for item in ITEMS
        }


@pytest.mark.parametrize("database", [pytest.param(name, marks=COMPONENTS[name]) for name in EVERYWHERE])
@pytest.mark.parametrize("workload", WORKLOADS)
@pytest.mark.parametrize("uses_driver", [False, True], ids=["", "driver"])
def test_a_healthy_handler_that_idles_for_many_leases_keeps_its_transaction(
    workload: str, database: str, new_database: NewDatabase, uses_driver: bool
) -> None:
    with new_database(database) as url, open_stage(workload, url, lease_seconds=1.0) as stage:

        def act(item: str, context: Any) -> None:
            scene = stage.scene(item, context)
            scene.write("before")
            assert not uses_driver or scene.driver
            assert not context.lease_lost.wait(2.5), "the lease was lost"
            scene.write("after")

        stage.workload.add([HEALTHY])
        stage.workload.run([HEALTHY], act)
        [(attempt, _), *_] = stage.kept()[HEALTHY]  # a later one, if the machine stood still for a whole lease
        assert stage.kept() == {HEALTHY: [(attempt, "before"), (attempt, "after")]}
