"""Random histories over real stores: one holder at a time, rising tokens, a checkpoint that never moves back.

Time is stepped by the test, so expiry happens at any moment; answers are lost before and after a write landed.
"""

from __future__ import annotations

import contextlib
import uuid
from collections.abc import Callable

import pytest
from azure.storage.blob import ContainerClient
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    Bundle,
    MultipleResults,
    RuleBasedStateMachine,
    consumes,
    invariant,
    multiple,
    rule,
    run_state_machine_as_test,
)

from holdfast.core.config import DbConfig
from holdfast.core.errors import CommitError, LeaseConflictError, LostLeaseError, StateStoreError
from holdfast.database.pools import EngineProvider
from holdfast.lease import document as doc
from holdfast.lease import reset
from holdfast.lease.documents import DocumentStore
from holdfast.lease.held_lease import Lease
from holdfast.lease.store import StateStore
from holdfast.lease.stores.blob import BlobDocumentStore
from holdfast.lease.stores.memory import MemoryDocumentStore
from holdfast.lease.stores.sql import SqlDocumentStore
from tests.clocks import SteppedClock, SteppedTimeStore
from tests.components.azurite import AzuriteServer
from tests.lease import faulty
from tests.lease.faulty import FaultyDocumentStore

TTL = 10.0
FAULTS = st.sampled_from(["none", "none", "refused", "landed", "vanished"])
MakeStore = Callable[[], DocumentStore]


class LeaseMachine(RuleBasedStateMachine):
    """Workers and an operator on one poller; the model is what the store itself says after every step."""

    make_store: MakeStore
    leases: Bundle[Lease] = Bundle("leases")

    def __init__(self) -> None:
        super().__init__()
        self.clock = SteppedClock()
        self.faulty = FaultyDocumentStore(SteppedTimeStore(type(self).make_store(), self.clock))
        self.poller = f"p{uuid.uuid4().hex}"
        self.store = StateStore(self.faulty, app_name="machine", clock=self.clock, skew_margin_seconds=2.0)
        self.highest_token = 0
        self.position = 0
        self.next_position = 0
        self.was_reset = False

    def arm(self, fault: str, *verbs: faulty.Verb) -> None:
        kinds = {
            "refused": faulty.unavailable,
            "landed": faulty.ambiguous_after_landing,
            "vanished": faulty.ambiguous_without_landing,
        }
        if fault in kinds:
            self.faulty.arm(*(kinds[fault](verb) for verb in verbs))

    @rule(target=leases, fault=FAULTS)
    def acquire(self, fault: str) -> MultipleResults[Lease] | Lease:
        self.arm(fault, "create", "replace")
        try:
            lease = self.store.acquire(self.poller, ttl_seconds=TTL)
        except StateStoreError:
            return multiple()
        finally:
            self.faulty.disarm()
        assert lease.fencing_token > self.highest_token, "a token was given out twice"
        return lease

    @rule(lease=leases, fault=FAULTS)
    def commit(self, lease: Lease, fault: str) -> None:
        self.next_position += 1
        self.arm(fault, "replace")
        with contextlib.suppress(LostLeaseError, CommitError):
            lease.commit({"position": self.next_position})
            assert self.holder() == (lease.owner_id, lease.fencing_token), "a stale holder committed"
        self.faulty.disarm()

    @rule(lease=leases, fault=FAULTS)
    def heartbeat(self, lease: Lease, fault: str) -> None:
        self.arm(fault, "replace")
        with contextlib.suppress(LostLeaseError, StateStoreError):
            lease.heartbeat()
            assert self.holder() == (lease.owner_id, lease.fencing_token), "a stale holder was extended"
        self.faulty.disarm()

    @rule(lease=consumes(leases), fault=FAULTS)
    def release(self, lease: Lease, fault: str) -> None:
        self.arm(fault, "replace")
        with contextlib.suppress(LostLeaseError, StateStoreError):
            lease.release()
        self.faulty.disarm()

    @rule(seconds=st.sampled_from([0.5, 4.0, 9.9, 10.0, 11.9, 12.0, 30.0]))
    def time_passes(self, seconds: float) -> None:
        self.clock.advance(seconds)

    @rule()
    def operator_resets(self) -> None:
        with contextlib.suppress(LeaseConflictError):
            reset.reset_to_beginning(self.store, self.poller, None, by="test")
            self.was_reset = True

    def holder(self) -> tuple[str | None, int]:
        view = self.store.read(self.poller)
        assert view is not None
        assert view.lease is not None
        return view.lease.owner_id, view.lease.fencing_token

    @invariant()
    def tokens_rise_and_the_checkpoint_does_not_move_back(self) -> None:
        view = self.store.read(self.poller)
        if view is None or view.lease is None:
            return
        assert view.lease.fencing_token >= self.highest_token
        self.highest_token = view.lease.fencing_token
        position = view.checkpoint.get("position", 0)
        if not self.was_reset:
            assert position >= self.position, "the checkpoint moved back without a reset"
        self.position, self.was_reset = position, False


def run_machine(make_store: MakeStore, examples: int, *, shrinking: bool = True) -> None:
    phases = set(Phase) if shrinking else {Phase.generate}
    machine = type("Machine", (LeaseMachine,), {"make_store": staticmethod(make_store)})
    run_state_machine_as_test(
        machine,
        settings=settings(
            max_examples=examples,
            stateful_step_count=25,
            deadline=None,
            phases=tuple(phase for phase in Phase if phase in phases),
            suppress_health_check=list(HealthCheck),
        ),
    )


def sql_store(url: str) -> SqlDocumentStore:
    store = SqlDocumentStore(EngineProvider().get_engine(DbConfig(connection_url=url)))
    store.create_table()
    return store


@pytest.mark.parametrize("database", ["sqlite_url", "postgres_url", "mariadb_url"])
def test_random_histories_on_sql(request: pytest.FixtureRequest, database: str) -> None:
    store = sql_store(request.getfixturevalue(database))
    run_machine(lambda: store, examples=40)
    store.engine.dispose()


def test_random_histories_on_blob(azurite: AzuriteServer, azurite_container: str) -> None:
    with ContainerClient.from_connection_string(azurite.connection_string, azurite_container) as client:
        store = BlobDocumentStore(client)
        run_machine(lambda: store, examples=15)


def test_the_machine_finds_a_missing_fence(monkeypatch: pytest.MonkeyPatch) -> None:
    """Planted bug: nobody checks the holder, so a stale session trusts the document it finds."""
    monkeypatch.setattr(doc, "require_holder", lambda document, holder: None)
    with pytest.raises(AssertionError, match=r"stale holder|moved back"):
        run_machine(MemoryDocumentStore, examples=500, shrinking=False)


def test_the_machine_finds_a_token_given_out_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    """Planted bug: the token is not raised."""
    original = doc.acquire

    def same_token(document: doc.Document | None, **kwargs: object) -> doc.Document:
        changed = original(document, **kwargs)  # type: ignore[arg-type]  # passed through
        return {**changed, "lease": {**changed["lease"], "fencing_token": 1}}

    monkeypatch.setattr(doc, "acquire", same_token)
    with pytest.raises(AssertionError, match="given out twice"):
        run_machine(MemoryDocumentStore, examples=500, shrinking=False)
