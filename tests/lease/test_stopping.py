"""[STOP-1] What its holder stopped is taken by nobody until someone resumes or resets it."""

from __future__ import annotations

from typing import Any

import pytest

from holdfast.app import Holdfast
from holdfast.core.errors import LostLeaseError, StoppedError, TransactionEndedError
from holdfast.lease.document import stopped_because
from holdfast.lease.reset import audit_entries, clone_checkpoint, reset_to_beginning, resume
from holdfast.lease.store import StateStore
from holdfast.lease.stores.memory import MemoryDocumentStore
from tests.lease.faulty import FaultyDocumentStore, ambiguous_after_landing


@pytest.fixture
def store() -> StateStore:
    return StateStore(MemoryDocumentStore(), app_name="shop")


def stopped(store: StateStore, name: str = "orders") -> None:
    store.acquire(name, ttl_seconds=30).stop("its handler ended the transaction")


def test_a_stopped_trigger_cannot_be_taken_until_it_is_resumed(store: StateStore) -> None:
    stopped(store)
    with pytest.raises(StoppedError, match=r"ended the transaction.*holdfast trigger resume orders"):
        store.acquire("orders", ttl_seconds=30)
    entry = resume(store, "orders", by="ann")
    assert entry is not None
    assert entry.by == "ann"
    assert store.acquire("orders", ttl_seconds=30).fencing_token == 2
    assert [item.command for item in audit_entries(store, "orders")] == ["resume"]


def test_a_stop_whose_answer_was_lost_is_no_lost_lease() -> None:
    documents = FaultyDocumentStore(MemoryDocumentStore())
    store = StateStore(documents, app_name="shop")
    lease = store.acquire("orders", ttl_seconds=30)
    documents.arm(ambiguous_after_landing("replace"))
    lease.stop("its handler ended the transaction")
    with pytest.raises(StoppedError):
        store.acquire("orders", ttl_seconds=30)


def test_only_what_is_stopped_can_be_resumed(store: StateStore) -> None:
    assert resume(store, "orders") is None
    store.acquire("orders", ttl_seconds=30).release()
    assert resume(store, "orders") is None


def test_a_reset_resumes_it_and_a_clone_is_not_stopped(store: StateStore) -> None:
    stopped(store)
    clone_checkpoint(store, "orders", "copies")
    assert store.acquire("copies", ttl_seconds=30).fencing_token == 1
    reset_to_beginning(store, "orders", None)
    view = store.read("orders")
    assert view is not None
    assert stopped_because(view.document) is None
    assert store.acquire("orders", ttl_seconds=30).fencing_token == 3


def test_a_former_holder_cannot_stop_it(store: StateStore) -> None:
    former = store.acquire("orders", ttl_seconds=30)
    reset = store.documents.read(store.document_name("orders"))
    assert reset is not None
    former.release()
    store.acquire("orders", ttl_seconds=30)
    with pytest.raises(LostLeaseError):
        former.stop("too late")
    view = store.read("orders")
    assert view is not None
    assert stopped_because(view.document) is None


def test_a_trigger_whose_handler_ends_its_transaction_delivers_no_more(sqlite_url: str) -> None:
    hf = Holdfast(sqlite_url)
    hf.migrate()
    with hf.database.begin() as connection:
        connection.exec_driver_sql(
            "CREATE TABLE orders (id INTEGER PRIMARY KEY AUTOINCREMENT, item TEXT)",
        )
        connection.exec_driver_sql("INSERT INTO orders (item) VALUES ('tea')")
        connection.exec_driver_sql("CREATE TABLE effects (n INTEGER)")
    calls: list[int] = []

    @hf.trigger("orders", cursor="id")
    def ship(changes: list[Any], context: Any) -> None:
        calls.append(len(changes))
        context.transaction.exec_driver_sql("INSERT INTO effects VALUES (1)")
        if len(calls) == 1:
            context.transaction.connection.driver_connection.commit()

    with pytest.raises(TransactionEndedError):
        hf.runner("orders").tick()
    with pytest.raises(StoppedError, match="holdfast trigger resume orders"):
        hf.runner("orders").tick()
    assert calls == [1]
    assert hf.resume_trigger("orders")
    assert hf.runner("orders").tick() == 1
    assert calls == [1, 1]
