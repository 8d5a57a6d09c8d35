"""Every state the document functions can reach keeps the rules; with any one guard gone, the exploration notices.

Shows [LEASE-1], [LEASE-2], [LEASE-3], [FENCE-1] and [CHECKPOINT-1].
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime, timedelta
from typing import Any

import pytest

from holdfast.core.errors import LostLeaseError
from holdfast.core.types import FencingToken
from holdfast.lease import document as doc

from .exploration import Violation, explore

DEPTH = 7
LEAST_STATES = 40_000


def test_every_reachable_state_keeps_the_rules() -> None:
    assert explore(DEPTH) >= LEAST_STATES


def _ignoring_the_margin(self: doc.LeaseView, now: datetime, skew_margin: timedelta) -> bool:
    return self.owner_id is not None and now < self.expires_at


def _never_live(self: doc.LeaseView, now: datetime, skew_margin: timedelta) -> bool:
    return False


def _live_although_released(self: doc.LeaseView, now: datetime, skew_margin: timedelta) -> bool:
    return now < self.expires_at + skew_margin


@pytest.mark.parametrize("planted", [_ignoring_the_margin, _never_live, _live_although_released])
def test_a_broken_liveness_check_is_found(monkeypatch: pytest.MonkeyPatch, planted: Callable[..., bool]) -> None:
    monkeypatch.setattr(doc.LeaseView, "is_live", planted)
    with pytest.raises(Violation):
        explore(DEPTH)


def _without_owner_guard(document: doc.Document, holder: doc.Holder) -> None:
    lease = doc.lease_of(document)
    if lease is None or lease.owner_id is None or lease.fencing_token != holder.fencing_token:
        raise LostLeaseError


def _without_token_guard(document: doc.Document, holder: doc.Holder) -> None:
    lease = doc.lease_of(document)
    if lease is None or lease.owner_id != holder.owner_id:
        raise LostLeaseError


def _without_any_guard(document: doc.Document, holder: doc.Holder) -> None:
    if doc.lease_of(document) is None:
        raise LostLeaseError


_HOLDER_GUARDS = [_without_owner_guard, _without_token_guard, _without_any_guard]


@pytest.mark.parametrize("command", ["heartbeat", "commit", "release"])
@pytest.mark.parametrize("planted", _HOLDER_GUARDS)
def test_a_missing_holder_guard_is_found(
    monkeypatch: pytest.MonkeyPatch, planted: Callable[..., None], command: str
) -> None:
    guarded, original = doc.require_holder, getattr(doc, command)

    def with_planted_bug(*args: Any, **kwargs: Any) -> doc.Document:
        monkeypatch.setattr(doc, "require_holder", planted)
        try:
            changed: doc.Document = original(*args, **kwargs)
        finally:
            monkeypatch.setattr(doc, "require_holder", guarded)
        return changed

    monkeypatch.setattr(doc, command, with_planted_bug)
    with pytest.raises(Violation):
        explore(DEPTH)


def _patched(monkeypatch: pytest.MonkeyPatch, name: str, change: Callable[[doc.Document, Any], doc.Document]) -> None:
    original = getattr(doc, name)

    def planted(document: Any, *args: Any, **kwargs: Any) -> doc.Document:
        return change(original(document, *args, **kwargs), document)

    monkeypatch.setattr(doc, name, planted)


def _token_stays(changed: doc.Document, before: Any) -> doc.Document:
    token = FencingToken(1) if before is None else before["lease"]["fencing_token"]
    return {**changed, "lease": {**changed["lease"], "fencing_token": token}}


def _revision_stays(changed: doc.Document, before: Any) -> doc.Document:
    return changed if before is None else {**changed, "revision": before["revision"]}


def _unknown_fields_dropped(changed: doc.Document, before: Any) -> doc.Document:
    return {key: value for key, value in changed.items() if key != "unknown_field"}


def _owner_stays(changed: doc.Document, before: Any) -> doc.Document:
    return {**changed, "lease": {**changed["lease"], "owner_id": before["lease"]["owner_id"]}}


@pytest.mark.parametrize(
    ("command", "change"),
    [
        ("acquire", _token_stays),
        ("heartbeat", _revision_stays),
        ("commit", _revision_stays),
        ("release", _revision_stays),
        ("commit", _unknown_fields_dropped),
        ("release", _owner_stays),
    ],
)
def test_a_broken_change_is_found(
    monkeypatch: pytest.MonkeyPatch, command: str, change: Callable[[doc.Document, Any], doc.Document]
) -> None:
    _patched(monkeypatch, command, change)
    with pytest.raises(Violation):
        explore(DEPTH)


def test_a_reset_beside_a_live_holder_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    original = doc.reset

    def planted(document: doc.Document | None, *args: Any, **kwargs: Any) -> doc.Document:
        monkeypatch.setattr(doc.LeaseView, "is_live", _never_live)
        try:
            return original(document, *args, **kwargs)
        finally:
            monkeypatch.undo()
            monkeypatch.setattr(doc, "reset", planted)

    monkeypatch.setattr(doc, "reset", planted)
    with pytest.raises(Violation):
        explore(DEPTH)


@pytest.mark.prove
def test_every_reachable_state_keeps_the_rules_further_out() -> None:
    assert explore(9) >= 500_000
