"""Issue 13, line 16: what people do to a trigger's checkpoint is in the audit, and under its seals."""

from __future__ import annotations

import sys

import pytest

from holdfast import Holdfast
from holdfast.core.errors import LeaseConflictError
from holdfast.core.types import SourceDescriptor
from holdfast.lease.reset import reset_to_beginning
from holdfast.lease.stores.memory import MemoryDocumentStore
from holdfast.records import audit
from holdfast.trigger.operator import audited_state
from tests.cli.desk import Desk

CURSOR = 7


def stands(hf: Holdfast, trigger: str = "orders") -> None:
    """Let a trigger have delivered something, and rest."""
    lease = hf.state.acquire(trigger, ttl_seconds=30)
    lease.commit({"cursor": CURSOR})
    lease.release()


def test_13_16_changes_of_a_checkpoint_are_in_the_audit_and_sealed(desk: Desk) -> None:
    stands(desk.hf)
    for command in (("reset-to-beginning", "orders"), ("undo", "orders"), ("clone", "orders", "copy")):
        assert desk("trigger", *command, "--yes").code == 0
    rows = desk("audit", "list", "--json").items
    assert [(row["actor"], row["action"], row["target"]) for row in reversed(rows)] == [
        ("eve", "trigger reset-to-beginning", "orders"),
        ("eve", "trigger undo", "orders"),
        ("eve", "trigger clone", "orders"),
    ]
    assert [row["details"] for row in reversed(rows)] == [
        {"from": CURSOR, "to": None},
        {"from": None, "to": CURSOR},
        {"to_trigger": "copy"},
    ]
    desk("audit", "seal")
    assert desk("audit", "verify", "--json").json["rows"] == 3
    with desk.hf.database.begin() as connection:
        connection.exec_driver_sql("UPDATE holdfast_audit SET actor = 'adam' WHERE target = 'orders'")
    assert desk("audit", "verify").code == 1


def test_13_16_a_change_that_is_refused_is_not_in_the_audit(desk: Desk) -> None:
    stands(desk.hf)
    desk.hf.state.acquire("orders", ttl_seconds=30)
    assert desk("trigger", "reset-to-beginning", "orders", "--yes").code == 3
    with (  # also when a worker takes the lease after it was looked at
        pytest.raises(LeaseConflictError),
        audited_state(desk.hf.state, desk.hf.database, "reset", "orders", {}) as state,
    ):
        reset_to_beginning(state, "orders", None)
    assert desk("trigger", "reset-to-beginning", "orders", "--dry-run").code == 0
    assert desk("trigger", "resume", "orders").code == 2
    assert desk.audited() == []


def test_13_16_state_elsewhere_has_its_row_before_the_change(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    elsewhere = Holdfast(str(desk.hf.database.url.render_as_string(False)), state=MemoryDocumentStore())
    monkeypatch.setattr(sys.modules["desk_application"], "hf", elsewhere)
    stands(elsewhere)
    assert desk("trigger", "reset-to-beginning", "orders", "--yes").code == 0
    elsewhere.state.acquire("orders", ttl_seconds=30)
    with (
        pytest.raises(LeaseConflictError),
        audited_state(elsewhere.state, desk.hf.database, "reset-to-cursor", "orders", {}) as state,
    ):
        reset_to_beginning(state, "orders", None)
    assert [action for _, action, _ in reversed(desk.audited())] == [
        "trigger reset-to-beginning",
        "trigger reset-to-cursor",
        "trigger reset-to-cursor (not done)",
    ]


def test_13_16_a_changed_source_that_begins_anew_is_in_the_audit(desk: Desk) -> None:
    for fingerprint in ("old", "new"):
        source = SourceDescriptor(name="orders", kind="table", fingerprint=fingerprint)
        desk.hf.state.acquire("orders", ttl_seconds=30, source=source, on_source_change="reset").release()
    [row] = audit.page(desk.hf.database).items
    assert (row.action, row.target) == ("trigger on_source_change=reset", "orders")
    assert row.details is not None
    assert set(row.details) == {"audit_id", "from", "to"}


def test_13_16_resuming_a_trigger_is_in_the_audit(desk: Desk) -> None:
    desk.hf.state.acquire("orders", ttl_seconds=30).stop("enough")
    assert desk("trigger", "resume", "orders").code == 0
    assert desk.audited() == [("eve", "trigger resume", "orders")]
