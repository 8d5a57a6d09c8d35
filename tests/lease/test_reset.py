"""Moving a checkpoint by hand: guarded by the lease, audited, undone."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from holdfast.core.cursor import KeysetCursor
from holdfast.core.errors import ConfigurationError, LeaseConflictError, LostLeaseError, Unavailable
from holdfast.core.types import SourceDescriptor
from holdfast.lease import reset
from holdfast.lease.store import StateStore
from holdfast.lease.stores.memory import MemoryDocumentStore
from tests.clocks import SteppedClock
from tests.lease import faulty
from tests.lease.faulty import FaultyDocumentStore

SOURCE = SourceDescriptor(name="orders", kind="test", fingerprint="sha256:a")
SEVEN = KeysetCursor(7, (("id", 7),))


class Desk:
    """An operator's view of one poller that has committed a checkpoint."""

    def __init__(self) -> None:
        self.clock = SteppedClock()
        self.documents = FaultyDocumentStore(MemoryDocumentStore(self.clock.now))
        self.store = StateStore(self.documents, app_name="shop", clock=self.clock)
        lease = self.store.acquire("orders", ttl_seconds=30, source=SOURCE)
        lease.commit({"cursor": SEVEN.to_json()})
        self.lease = lease

    def cursor(self) -> object:
        view = self.store.read("orders")
        assert view is not None
        return view.checkpoint.get("cursor")


@pytest.fixture
def desk() -> Desk:
    return Desk()


def test_a_reset_is_refused_while_the_lease_is_held(desk: Desk) -> None:
    with pytest.raises(LeaseConflictError, match="held by"):
        reset.reset_to_beginning(desk.store, "orders", SOURCE)
    assert desk.cursor() == SEVEN.to_json()
    assert reset.audit_entries(desk.store, "orders") == []


def test_each_reset_moves_the_checkpoint_and_is_audited(desk: Desk, tmp_path: Path) -> None:
    desk.lease.release()
    reset.reset_to_beginning(desk.store, "orders", SOURCE, by="ada")
    assert desk.cursor() is None
    desk.clock.advance(1)
    three = KeysetCursor(3, (("id", 3),))
    reset.reset_to_cursor(desk.store, "orders", three, SOURCE, by="ben")
    assert desk.cursor() == three.to_json()
    desk.clock.advance(1)
    file = tmp_path / "kept.json"
    file.write_text(json.dumps({"version": 1, "checkpoint": {"cursor": SEVEN.to_json(), "updated_at": "x"}}))
    reset.reset_to_checkpoint(desk.store, "orders", file, SOURCE, by="cy")
    assert desk.cursor() == SEVEN.to_json()
    entries = reset.audit_entries(desk.store, "orders")
    assert [(entry.by, entry.command) for entry in entries] == [
        ("ada", "reset-to-beginning"),
        ("ben", "reset-to-cursor"),
        ("cy", "reset-to-checkpoint"),
    ]


def test_a_reset_fences_off_a_holder_that_was_asleep(desk: Desk) -> None:
    desk.clock.advance(60)
    reset.reset_to_beginning(desk.store, "orders", SOURCE)
    with pytest.raises(LostLeaseError):
        desk.lease.commit({"cursor": SEVEN.to_json()})
    assert desk.cursor() is None


def test_an_undo_gives_the_old_checkpoint_back_even_after_progress(desk: Desk) -> None:
    desk.lease.release()
    reset.reset_to_beginning(desk.store, "orders", SOURCE)
    worker = desk.store.acquire("orders", ttl_seconds=30, source=SOURCE)
    worker.commit({"cursor": KeysetCursor(1, (("id", 1),)).to_json()})
    worker.release()
    reset.undo(desk.store, "orders")
    assert desk.cursor() == SEVEN.to_json()
    reset.undo(desk.store, "orders")
    assert desk.cursor() == KeysetCursor(1, (("id", 1),)).to_json()


def test_a_reset_that_died_between_its_two_writes_changed_nothing(desk: Desk) -> None:
    desk.lease.release()
    desk.documents.arm(faulty.unavailable("replace"))
    with pytest.raises(Unavailable):
        reset.reset_to_beginning(desk.store, "orders", SOURCE)
    assert desk.cursor() == SEVEN.to_json()
    with pytest.raises(ConfigurationError, match="never reset"):
        reset.undo(desk.store, "orders")


def test_a_reset_whose_answer_was_lost_is_made_once(desk: Desk) -> None:
    desk.lease.release()
    desk.documents.arm(faulty.ambiguous_after_landing("replace"))
    reset.reset_to_beginning(desk.store, "orders", SOURCE)
    assert desk.cursor() is None


def test_a_worker_that_comes_in_between_makes_the_reset_fail(desk: Desk) -> None:
    desk.lease.release()
    desk.documents.arm(faulty.before("create", lambda: desk.store.acquire("orders", ttl_seconds=30)))
    with pytest.raises(LeaseConflictError, match="same moment"):
        reset.reset_to_beginning(desk.store, "orders", SOURCE)
    assert desk.cursor() == SEVEN.to_json()


def test_a_clone_starts_at_the_same_place_with_a_free_lease(desk: Desk) -> None:
    reset.clone_checkpoint(desk.store, "orders", "orders-2")
    view = desk.store.read("orders-2")
    assert view is not None
    assert view.checkpoint["cursor"] == SEVEN.to_json()
    assert view.lease is None
    assert desk.store.acquire("orders-2", ttl_seconds=30, source=SOURCE).checkpoint["cursor"] == SEVEN.to_json()


def test_a_clone_does_not_overwrite(desk: Desk) -> None:
    reset.clone_checkpoint(desk.store, "orders", "orders-2")
    with pytest.raises(ConfigurationError, match="has state already"):
        reset.clone_checkpoint(desk.store, "orders", "orders-2")
    with pytest.raises(ConfigurationError, match="no state to clone"):
        reset.clone_checkpoint(desk.store, "nowhere", "orders-3")
    with pytest.raises(ConfigurationError, match="storage path"):
        reset.clone_checkpoint(desk.store, "orders", "../orders")


@pytest.mark.parametrize("content", ["", "[]", "{}", '{"checkpoint": {"cursor": {"kind": "moon+pk"}}}', "nonsense"])
def test_a_file_that_is_no_checkpoint_is_refused(desk: Desk, tmp_path: Path, content: str) -> None:
    desk.lease.release()
    file = tmp_path / "kept.json"
    file.write_text(content)
    with pytest.raises(ConfigurationError, match=r"kept\.json"):
        reset.reset_to_checkpoint(desk.store, "orders", file, SOURCE)
    with pytest.raises(ConfigurationError, match="cannot be read"):
        reset.reset_to_checkpoint(desk.store, "orders", tmp_path / "missing.json", SOURCE)
    assert desk.cursor() == SEVEN.to_json()


def test_a_reset_after_a_source_change_adopts_the_new_source(desk: Desk) -> None:
    desk.lease.release()
    changed = SourceDescriptor(name="orders", kind="test", fingerprint="sha256:b")
    reset.reset_to_beginning(desk.store, "orders", changed)
    assert desk.store.acquire("orders", ttl_seconds=30, source=changed).checkpoint.get("cursor") is None
