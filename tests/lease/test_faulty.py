"""The faulty store fails exactly as scripted: a test built on it is only worth as much as that."""

from collections.abc import Callable

import pytest

from holdfast.core.errors import Ambiguous, Conflict, Unavailable
from holdfast.lease.documents import DocumentStore, ETag
from holdfast.lease.stores.memory import MemoryDocumentStore
from tests.lease.faulty import (
    Fault,
    FaultyDocumentStore,
    after,
    ambiguous_after_landing,
    ambiguous_without_landing,
    before,
    stale_read,
    unavailable,
)

NAME = "state/app/orders.json"


@pytest.fixture
def inner() -> MemoryDocumentStore:
    return MemoryDocumentStore()


def content_of(store: DocumentStore) -> bytes | None:
    snapshot = store.read(NAME)
    return None if snapshot is None else snapshot.content


def test_without_faults_it_is_the_inner_store(inner: MemoryDocumentStore) -> None:
    store = FaultyDocumentStore(inner)
    assert isinstance(store, DocumentStore)
    etag = store.create(NAME, b"1").etag
    etag = store.replace(NAME, b"2", etag).etag
    assert store.read(NAME) is not None
    assert content_of(inner) == b"2"
    assert list(store.list("state/")) == [NAME]
    with pytest.raises(Conflict):
        store.create(NAME, b"3")
    store.delete(NAME, etag)
    assert inner.read(NAME) is None
    assert store.skew_margin_seconds == inner.skew_margin_seconds


def test_unavailable_comes_before_the_write(inner: MemoryDocumentStore) -> None:
    store = FaultyDocumentStore(inner, [unavailable("create")])
    with pytest.raises(Unavailable):
        store.create(NAME, b"1")
    assert inner.read(NAME) is None
    store.create(NAME, b"1")
    assert content_of(inner) == b"1"


@pytest.mark.parametrize("landed", [True, False])
def test_ambiguous_says_nothing_about_whether_the_write_landed(inner: MemoryDocumentStore, landed: bool) -> None:
    lost = ambiguous_after_landing if landed else ambiguous_without_landing
    store = FaultyDocumentStore(inner, [lost("create"), lost("replace"), lost("delete")])
    with pytest.raises(Ambiguous):
        store.create(NAME, b"1")
    assert content_of(inner) == (b"1" if landed else None)
    etag = inner.create(NAME, b"1").etag if not landed else _etag(inner)
    with pytest.raises(Ambiguous):
        store.replace(NAME, b"2", etag)
    assert content_of(inner) == (b"2" if landed else b"1")
    with pytest.raises(Ambiguous):
        store.delete(NAME, _etag(inner))
    assert content_of(inner) == (None if landed else b"1")
    assert store.pending == []


def test_a_conflict_is_told_even_when_the_answer_was_to_be_lost(inner: MemoryDocumentStore) -> None:
    """Only the answer to a write that landed can be lost after landing."""
    inner.create(NAME, b"1")
    store = FaultyDocumentStore(inner, [ambiguous_after_landing("create")])
    with pytest.raises(Conflict):
        store.create(NAME, b"2")


def test_the_nth_call_of_its_verb_fails_and_no_other(inner: MemoryDocumentStore) -> None:
    store = FaultyDocumentStore(inner, [unavailable("replace", nth=3)])
    etag = store.create(NAME, b"0").etag
    for number in (1, 2):
        store.read(NAME)
        etag = store.replace(NAME, b"%d" % number, etag).etag
    assert [fault.nth for fault in store.pending] == [1]
    with pytest.raises(Unavailable):
        store.replace(NAME, b"3", etag)
    store.replace(NAME, b"4", etag)
    assert content_of(inner) == b"4"


def test_faults_armed_later_count_from_then(inner: MemoryDocumentStore) -> None:
    store = FaultyDocumentStore(inner)
    etag = store.create(NAME, b"0").etag
    etag = store.replace(NAME, b"1", etag).etag
    store.arm(unavailable("replace"))
    with pytest.raises(Unavailable):
        store.replace(NAME, b"2", etag)


@pytest.mark.parametrize("call", [lambda store: store.read(NAME), lambda store: list(store.list(""))])
def test_reads_and_lists_can_be_unavailable(
    inner: MemoryDocumentStore, call: Callable[[DocumentStore], object]
) -> None:
    store = FaultyDocumentStore(inner, [unavailable("read"), unavailable("list")])
    with pytest.raises(Unavailable):
        call(store)
    call(store)


def test_a_stale_read_returns_the_version_before_the_present_one(inner: MemoryDocumentStore) -> None:
    store = FaultyDocumentStore(inner)
    first = store.create(NAME, b"1").etag
    second = store.replace(NAME, b"2", first).etag
    store.arm(stale_read())
    stale = store.read(NAME)
    assert stale is not None
    assert (stale.content, stale.etag) == (b"1", first)
    present = store.read(NAME)
    assert present is not None
    assert (present.content, present.etag) == (b"2", second)
    with pytest.raises(Conflict):
        store.replace(NAME, b"3", stale.etag)


def test_a_stale_read_can_lag_behind_someone_elses_write(inner: MemoryDocumentStore) -> None:
    store = FaultyDocumentStore(inner, [stale_read(nth=2)])
    etag = inner.create(NAME, b"1").etag
    assert content_of(store) == b"1"
    inner.replace(NAME, b"2", etag)
    assert content_of(store) == b"1"
    assert content_of(store) == b"2"


def test_a_stale_read_of_a_new_document_finds_nothing(inner: MemoryDocumentStore) -> None:
    inner.create(NAME, b"1")
    assert FaultyDocumentStore(inner, [stale_read()]).read(NAME) is None


def test_a_stale_read_of_a_deleted_document_still_finds_it(inner: MemoryDocumentStore) -> None:
    store = FaultyDocumentStore(inner)
    store.delete(NAME, store.create(NAME, b"1").etag)
    store.arm(stale_read())
    assert content_of(store) == b"1"
    assert content_of(store) is None


def test_a_hook_before_the_call_can_win_the_race(inner: MemoryDocumentStore) -> None:
    etag = inner.create(NAME, b"1").etag
    store = FaultyDocumentStore(inner, [before("replace", lambda: inner.replace(NAME, b"theirs", etag))])
    with pytest.raises(Conflict):
        store.replace(NAME, b"ours", etag)
    assert content_of(inner) == b"theirs"


def test_a_hook_after_the_call_sees_it_done(inner: MemoryDocumentStore) -> None:
    seen: list[bytes | None] = []
    store = FaultyDocumentStore(inner, [after("create", lambda: seen.append(content_of(inner)))])
    store.create(NAME, b"1")
    assert seen == [b"1"]


def test_several_faults_can_meet_on_one_call(inner: MemoryDocumentStore) -> None:
    seen: list[str] = []
    store = FaultyDocumentStore(
        inner,
        [
            ambiguous_after_landing("create"),
            before("create", lambda: seen.append("before")),
            after("create", lambda: seen.append("after")),
        ],
    )
    with pytest.raises(Ambiguous):
        store.create(NAME, b"1")
    assert seen == ["before", "after"]
    assert store.pending == []


def test_a_fault_that_cannot_happen_is_refused() -> None:
    with pytest.raises(AssertionError):
        Fault("stale", "replace")
    with pytest.raises(AssertionError):
        unavailable("read", nth=0)


def _etag(store: DocumentStore) -> ETag:
    snapshot = store.read(NAME)
    assert snapshot is not None
    return snapshot.etag
