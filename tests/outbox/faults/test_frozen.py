"""A process that freezes (SIGSTOP) inside a transaction: others take over and go on; when it wakes it changes nothing.

The server ends the transaction of a frozen process, so that neither its lock on the checkpoint nor, on PostgreSQL, its
transaction id holds the others back for longer than a lease. On SQLite nobody can do that: a frozen process that holds
the write lock blocks everyone until it wakes or dies, so there is nothing to show there.
"""

from __future__ import annotations

import pytest

from tests.components.processes import PythonWorker, wait_until
from tests.outbox.faults.app import (
    AFTER_CHECKPOINT,
    EXACT,
    INSIDE_HANDLER,
    LEASE_SECONDS,
    NUMBERING,
    REPEATED,
    TAKING_OVER,
)
from tests.outbox.faults.conftest import Scene

ANOTHER = "another"
SCHEDULING_SECONDS = 6.0  # for starting threads and processes on a busy machine
WITHIN_SECONDS = 2 * LEASE_SECONDS + SCHEDULING_SECONDS


def others_go_on(scene: Scene, point: str, frozen_processors: list[str], processors: list[str]) -> None:
    """Freeze an instance at a point, and see another deliver everything, also what is appended only then."""
    scene.append("first", "second")
    with scene.instance(frozen_processors, staged_at=point) as frozen:
        frozen.wait_for_line(point)
        with scene.instance(processors) as taker:
            taker.wait_for_line("starting")
            frozen.suspend()
            scene.append("after the stop")
            scene.wait_for_delivery(*processors, within_seconds=WITHIN_SECONDS)
            wake(scene, frozen)
            scene.append("after it woke")
            scene.wait_for_delivery(*processors)


def wake(scene: Scene, frozen: PythonWorker) -> None:
    """Let a frozen instance go on, and wait until it has found that its time is over."""
    told = len(frozen.lines)

    def has_failed() -> bool:
        return any(line.startswith(("WARNING", "ERROR")) for line in frozen.lines[told:])

    scene.go_on()
    frozen.resume()
    wait_until(has_failed, "the frozen instance to fail")


def test_others_go_on_while_a_process_is_frozen_inside_its_transaction(scene: Scene) -> None:
    """It has stored its checkpoint and written its effects, and holds the leases of two processors."""
    others_go_on(scene, INSIDE_HANDLER, [EXACT, ANOTHER], [EXACT, ANOTHER])
    assert scene.books.problems([EXACT, ANOTHER]) == []


@pytest.mark.parametrize("point", [AFTER_CHECKPOINT, TAKING_OVER])
def test_others_go_on_while_a_process_is_frozen_inside_a_transaction_of_its_own(scene: Scene, point: str) -> None:
    """It moves the checkpoint of a processor that is not transactional, or puts its token into it."""
    others_go_on(scene, point, [REPEATED], [REPEATED, ANOTHER])
    assert scene.books.problems([REPEATED, ANOTHER], repeated=[REPEATED]) == []


def test_others_go_on_while_a_process_is_frozen_when_it_numbers(mariadb_scene: Scene) -> None:
    """It holds the row of the last position, which whoever takes over needs."""
    others_go_on(mariadb_scene, NUMBERING, [EXACT], [EXACT])
    assert mariadb_scene.books.problems([EXACT]) == []
