"""A lease or lock that a wrong clock gave an end in ten years is taken once it was watched for its whole length."""

from __future__ import annotations

import pytest

from holdfast.core.errors import LeaseConflictError, LostLeaseError, RegistryLocked
from holdfast.engines.registry import Registry
from holdfast.lease.store import StateStore
from holdfast.lease.stores.memory import MemoryDocumentStore
from tests.clocks import SteppedClock

TEN_YEARS = 3652 * 86_400.0


class Wall(SteppedClock):
    """A store's clock, apart from the monotonic one of those who look at it."""

    def __init__(self, steady: SteppedClock) -> None:
        super().__init__()
        self.steady = steady

    def monotonic(self) -> float:
        return self.steady.passed

    def advance(self, seconds: float) -> None:
        self.steady.passed += seconds
        self.passed += seconds


@pytest.fixture
def wall() -> Wall:
    return Wall(SteppedClock())


@pytest.fixture
def documents(wall: Wall) -> MemoryDocumentStore:
    return MemoryDocumentStore(wall.now)


def wrong(wall: Wall) -> None:
    wall.passed += TEN_YEARS


def right(wall: Wall) -> None:
    wall.passed -= TEN_YEARS


def test_14_11_a_lease_that_nobody_extends_is_taken(
    wall: Wall, documents: MemoryDocumentStore, caplog: pytest.LogCaptureFixture
) -> None:
    anne, bert = (StateStore(documents, app_name="shop", clock=wall) for _ in range(2))
    wrong(wall)
    lost = anne.acquire("orders", ttl_seconds=120)
    right(wall)
    for seconds in (0, 61, 58):
        wall.advance(seconds)
        with pytest.raises(LeaseConflictError):
            bert.acquire("orders", ttl_seconds=30)
    wall.advance(3)
    taken = bert.acquire("orders", ttl_seconds=30)
    assert taken.fencing_token == lost.fencing_token + 1
    with pytest.raises(LostLeaseError):
        lost.heartbeat()
    assert "The lease in 'state/shop/orders.json': its end, 2036-" in caplog.text
    with pytest.raises(LeaseConflictError):
        anne.acquire("orders", ttl_seconds=30)


def test_14_11_a_holder_that_lives_keeps_it(wall: Wall, documents: MemoryDocumentStore) -> None:
    anne, bert = (StateStore(documents, app_name="shop", clock=wall) for _ in range(2))
    wrong(wall)
    held = anne.acquire("orders", ttl_seconds=120)
    right(wall)
    for _ in range(10):
        wall.advance(50)
        held.heartbeat()
        with pytest.raises(LeaseConflictError):
            bert.acquire("orders", ttl_seconds=120)
    view = bert.read("orders")
    assert view is not None
    assert view.lease is not None
    assert (view.lease.expires_at - wall.now()).total_seconds() == 120


def test_14_11_a_registry_lock_that_nobody_extends_is_free(wall: Wall, documents: MemoryDocumentStore) -> None:
    registry = Registry(documents, name="registry/shop.json", clock=wall)
    wrong(wall)
    registry.acquire("lost", duration_seconds=600)
    right(wall)
    for seconds in (0, 400, 199):
        wall.advance(seconds)
        with pytest.raises(RegistryLocked):
            registry.require_free("other")
    wall.advance(2)
    registry.require_free("other")
    locked = registry.instance(None).acquire("other", duration_seconds=600)
    assert locked.lock.until is not None
    assert (locked.lock.until - wall.now()).total_seconds() == 600


def test_14_11_a_job_that_lives_moves_its_lock_back(wall: Wall, documents: MemoryDocumentStore) -> None:
    registry = Registry(documents, name="registry/shop.json", clock=wall)
    wrong(wall)
    registry.acquire("rotation", duration_seconds=600)
    right(wall)
    for lock in (registry.extend("rotation").lock, registry.acquire("rotation", duration_seconds=60).lock):
        assert lock.until is not None
        assert (lock.until - wall.now()).total_seconds() == 600, "and never for a shorter time than before"
