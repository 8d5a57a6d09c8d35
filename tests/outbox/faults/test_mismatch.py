"""[OUTBOX-2] A mismatch rolls everything back: with that removed, the same schedule doubles effects every time.

An instance is stopped (SIGSTOP) when it has read a batch and not yet stored the checkpoint; another takes over and
delivers the batch; then the first goes on. Where the lease is left unwatched, the compare-and-set is all that is left.
"""

from __future__ import annotations

import pytest

from tests.components.processes import wait_until
from tests.outbox.faults.account import Account
from tests.outbox.faults.app import BEFORE_CHECKPOINT, EXACT, LEASE_UNWATCHED, NO_ROLLBACK
from tests.outbox.faults.conftest import Scene

NAMES = ("first", "second", "third")


def stale_delivery(scene: Scene, planted_bug: str) -> Account:
    """Let an instance go on with a batch that another has delivered; return the account of both."""
    scene.append(*NAMES)
    with scene.instance([EXACT], staged_at=BEFORE_CHECKPOINT, planted_bug=planted_bug) as stale:
        stale.wait_for_line(BEFORE_CHECKPOINT)
        stale.suspend()
        with scene.instance([EXACT]) as taker:
            taker.wait_for_line("starting")
            scene.wait_for_delivery(EXACT)
            assert scene.books.problems([EXACT]) == []
            scene.go_on()
            stale.resume()
            stale.wait_for_line(f"mismatch: {EXACT}")
            stale.terminate()
            wait_until(lambda: not stale.running, "the stale instance to end")
    print(f"\n{scene.books.account(EXACT)}")
    return scene.books.account(EXACT)


@pytest.mark.parametrize("planted_bug", ["", LEASE_UNWATCHED], ids=["as it is", "with the lease unwatched"])
def test_a_stale_instance_leaves_no_effect(scene: Scene, planted_bug: str) -> None:
    account = stale_delivery(scene, planted_bug)
    assert (account.effects, account.lost, account.duplicated) == (len(NAMES), 0, 0)
    assert scene.books.problems([EXACT]) == []


def test_without_the_rollback_on_mismatch_a_stale_instance_doubles_every_effect(scene: Scene) -> None:
    """Planted bug: the account of the crash run must report what the schedule does every time."""
    account = stale_delivery(scene, f"{NO_ROLLBACK},{LEASE_UNWATCHED}")
    assert (account.effects, account.lost, account.duplicated) == (2 * len(NAMES), 0, len(NAMES))
    assert scene.books.problems([EXACT]) == [f"{EXACT}: duplicated {len(NAMES)}"]
