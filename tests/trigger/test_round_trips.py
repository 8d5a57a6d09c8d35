"""What a batch costs in round trips while a trigger catches up: one page read and one checkpoint written."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from bench.trips import count_trips
from holdfast.lease.documents import ETag, Snapshot, Written
from holdfast.lease.stores.memory import MemoryDocumentStore
from tests.components.processes import wait_until
from tests.trigger.shop import Shop

BATCH_SIZE = 20
BATCHES = 6


def with_orders_to_catch_up(shop: Shop) -> None:
    """Declare a trigger and place orders for all batches and one more, old enough to be read."""
    shop.hf.trigger("orders", cursor="updated_at", batch_size=BATCH_SIZE)(lambda changes: None)
    rows = BATCH_SIZE * (BATCHES + 1)
    shop.place(range(rows))
    source = shop.hf.runner("orders").source
    wait_until(lambda: len(source.fetch_changes({}, rows + 1).records) == rows, "the horizon has passed the orders")


def test_a_batch_is_one_statement_on_the_source_and_one_write_of_the_state(shop: Shop) -> None:
    with_orders_to_catch_up(shop)
    first, *later = count_trips(shop.hf, "orders", BATCHES)
    assert first.state == Counter(UPDATE=1)
    assert [trips.delivered for trips in later] == [BATCH_SIZE] * (BATCHES - 1)
    assert [trips.source for trips in later] == [Counter(SELECT=1)] * (BATCHES - 1)
    assert [trips.state for trips in later] == [Counter(UPDATE=1)] * (BATCHES - 1)


class CountingDocuments(MemoryDocumentStore):
    """Notes every call."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[str] = []

    def read(self, name: str) -> Snapshot | None:
        self.calls.append("read")
        return super().read(name)

    def create(self, name: str, content: bytes) -> Written:
        self.calls.append("create")
        return super().create(name, content)

    def replace(self, name: str, content: bytes, if_match: ETag) -> Written:
        self.calls.append("replace")
        return super().replace(name, content, if_match)

    def delete(self, name: str, if_match: ETag) -> None:
        self.calls.append("delete")
        super().delete(name, if_match)

    def list(self, prefix: str) -> Iterator[str]:
        self.calls.append("list")
        return super().list(prefix)


def test_any_document_store_sees_one_replace_a_batch_and_no_read(sqlite_url: str) -> None:
    documents = CountingDocuments()
    shop = Shop(sqlite_url, state=documents)
    with_orders_to_catch_up(shop)
    runner = shop.hf.runner("orders")
    with runner.leased() as lease:
        for _ in range(BATCHES):
            documents.calls.clear()
            assert runner.process_batch(lease).delivered == BATCH_SIZE
            assert documents.calls == ["replace"]
    shop.close()
