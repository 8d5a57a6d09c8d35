"""The promises of the document-store port, shown on every store over its real server.

One suite: a store that passes it can carry leases and checkpoints.
"""

import contextlib
import json
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from functools import partial
from threading import Barrier, Event
from uuid import uuid4

import pytest

from holdfast.core.errors import Ambiguous, ConfigurationError, Conflict, Unavailable
from holdfast.lease.documents import DocumentStore, ETag
from tests.components.proxy import FaultProxy
from tests.lease.stores_under_test import ALL, OVER_HTTP, WITH_SERVER, StoreUnderTest, build

NAME = "state/app/orders.json"
RACES = 20
LARGE_BYTES = 200 * 1024
CLOSE_ENOUGH = timedelta(seconds=5)
COMPONENT = {"blob": "azurite", "table": "azurite"} | {
    kind: kind for kind in ("s3", "cosmos", "postgres18", "postgres15", "mariadb")
}

AWKWARD_NAMES = [
    "state/app/with space.json",
    "state/app/with space",
    "state/app/WITH SPACE",
    "state/app/with+plus",
    "state/app/50%",
    "state/app/50%25",
    "state/app/50%20off",
    "state/app/under_score",
    "state/app/underXscore",
    'state/app/it\'s "quoted" `so`',
    "state/app/semi;colon,comma&and=equals",
    "state/app/hash#question?star*bar|angle<>",
    "state/app/~tilde",
    "state/app/.hidden",
    "state/app/é",
    "state/app/e\N{COMBINING ACUTE ACCENT}",
    "state/app/日本語-\N{GRINNING FACE}",
    "state/app/orders.json/inside",
    "state/app/orders.json",
]


@pytest.fixture
def subject(request: pytest.FixtureRequest) -> Iterator[StoreUnderTest]:
    with contextlib.ExitStack() as cleanup:
        yield build(request.param, request, cleanup)


@pytest.fixture
def store(subject: StoreUnderTest) -> DocumentStore:
    return subject.open()


@pytest.fixture
def proxy(subject: StoreUnderTest) -> Iterator[FaultProxy]:
    assert subject.port is not None
    with FaultProxy(subject.port) as proxy:
        yield proxy


def _stores(*kinds: str) -> pytest.MarkDecorator:
    params = [
        pytest.param(kind, marks=[pytest.mark.component(COMPONENT[kind])] if kind in COMPONENT else [])
        for kind in kinds
    ]
    return pytest.mark.parametrize("subject", params, indirect=True)


every_store = _stores(*ALL)
every_store_with_a_server = _stores(*WITH_SERVER)
every_http_store = _stores(*OVER_HTTP)


def document(revision: int, **fields: object) -> bytes:
    """Return what the kernel writes: a JSON object whose revision grows with every write."""
    return json.dumps({"version": 1, "revision": revision, **fields}, ensure_ascii=False).encode()


def content_of(store: DocumentStore, name: str = NAME) -> bytes | None:
    snapshot = store.read(name)
    return None if snapshot is None else snapshot.content


def etag_of(store: DocumentStore, name: str = NAME) -> ETag:
    snapshot = store.read(name)
    assert snapshot is not None
    return snapshot.etag


@every_store
def test_it_is_a_document_store(store: DocumentStore) -> None:
    assert isinstance(store, DocumentStore)


@every_store
def test_a_missing_document_reads_as_none(store: DocumentStore) -> None:
    assert store.read(NAME) is None


@every_store
@pytest.mark.parametrize(
    "content",
    [
        pytest.param(document(1), id="json"),
        pytest.param(document(1, text="é 日本語 \N{GRINNING FACE} \x00\x1f\x7f"), id="non-ascii"),
        pytest.param(bytes(range(256)), id="any-bytes"),
        pytest.param(b"", id="empty"),
        pytest.param(b"line\r\nline\n\n", id="line-ends"),
        pytest.param(document(1, text="x" * LARGE_BYTES), id="200-kib"),
        pytest.param(bytes(range(256)) * (LARGE_BYTES // 256), id="200-kib-of-any-bytes"),
    ],
)
def test_what_was_created_is_read_back(store: DocumentStore, content: bytes) -> None:
    written = store.create(NAME, content)
    snapshot = store.read(NAME)
    assert snapshot is not None
    assert snapshot.content == content
    assert snapshot.etag == written.etag


@every_store
def test_a_second_create_conflicts_and_changes_nothing(subject: StoreUnderTest, store: DocumentStore) -> None:
    written = store.create(NAME, document(1, by="first"))
    with pytest.raises(Conflict):
        subject.open().create(NAME, document(1, by="second"))
    assert content_of(store) == document(1, by="first")
    assert etag_of(store) == written.etag


@every_store
def test_each_write_returns_the_condition_of_the_next(store: DocumentStore) -> None:
    etag = store.create(NAME, document(1)).etag
    for revision in range(2, 6):
        etag = store.replace(NAME, document(revision), etag).etag
    assert content_of(store) == document(5)
    assert etag_of(store) == etag


@every_store
def test_a_replacement_may_be_shorter(store: DocumentStore) -> None:
    created = store.create(NAME, document(1, text="x" * LARGE_BYTES))
    store.replace(NAME, document(2), created.etag)
    assert content_of(store) == document(2)


@every_store
def test_a_stale_replace_conflicts_and_changes_nothing(subject: StoreUnderTest, store: DocumentStore) -> None:
    stale = store.create(NAME, document(1)).etag
    current = subject.open().replace(NAME, document(2), stale).etag
    with pytest.raises(Conflict):
        store.replace(NAME, document(2, by="a stale holder"), stale)
    assert content_of(store) == document(2)
    assert etag_of(store) == current


@every_store
def test_a_replace_of_a_missing_document_conflicts_and_creates_nothing(store: DocumentStore) -> None:
    etag = store.create("state/app/other.json", document(1)).etag
    with pytest.raises(Conflict):
        store.replace(NAME, document(2), etag)
    assert store.read(NAME) is None


@every_store
def test_delete_removes_the_document(store: DocumentStore) -> None:
    created = store.create(NAME, document(1))
    store.delete(NAME, created.etag)
    assert store.read(NAME) is None
    assert list(store.list("")) == []


@every_store
def test_a_stale_delete_conflicts_and_deletes_nothing(store: DocumentStore) -> None:
    stale = store.create(NAME, document(1)).etag
    current = store.replace(NAME, document(2), stale).etag
    with pytest.raises(Conflict):
        store.delete(NAME, stale)
    assert content_of(store) == document(2)
    assert etag_of(store) == current


@every_store
def test_a_delete_of_a_missing_document_conflicts(store: DocumentStore) -> None:
    etag = store.create(NAME, document(1)).etag
    store.delete(NAME, etag)
    with pytest.raises(Conflict):
        store.delete(NAME, etag)


@every_store
def test_the_etag_of_a_deleted_document_opens_nothing(store: DocumentStore) -> None:
    old = store.create(NAME, document(1)).etag
    store.delete(NAME, old)
    store.create(NAME, document(2))
    with pytest.raises(Conflict):
        store.replace(NAME, document(3), old)
    assert content_of(store) == document(2)


@every_store
def test_an_etag_never_recurs(subject: StoreUnderTest, store: DocumentStore) -> None:
    """An S3 etag is a hash of the content: there it is the kernel, raising the revision in every document it
    writes, that keeps etags from recurring. The other stores tell even two writes of equal bytes apart."""
    contents = [document(revision if subject.etag_is_hash else 0) for revision in range(12)]
    etags = [store.create(NAME, contents[0]).etag]
    for content in contents[1:-1]:
        etags.append(store.replace(NAME, content, etags[-1]).etag)
    store.delete(NAME, etags[-1])
    etags.append(store.create(NAME, contents[-1]).etag)
    assert len(set(etags)) == len(etags)


@every_store
def test_names_keep_apart_whatever_they_hold(store: DocumentStore) -> None:
    for number, name in enumerate(AWKWARD_NAMES):
        store.create(name, document(number))
    for number, name in enumerate(AWKWARD_NAMES):
        assert content_of(store, name) == document(number), name
        store.replace(name, document(100 + number), etag_of(store, name))
    assert list(store.list("")) == sorted(AWKWARD_NAMES)
    for number, name in enumerate(AWKWARD_NAMES):
        assert content_of(store, name) == document(100 + number), name
        store.delete(name, etag_of(store, name))
    assert list(store.list("")) == []


@every_store
@pytest.mark.parametrize("name", ["", "a//b", "../a", "a/..", "a.", "a ", "a\\b", "a\nb"])
def test_a_name_that_some_store_would_bend_is_refused(store: DocumentStore, name: str) -> None:
    etag = store.create(NAME, document(1)).etag
    calls: list[Callable[[], object]] = [
        lambda: store.read(name),
        lambda: store.create(name, document(1)),
        lambda: store.replace(name, document(1), etag),
        lambda: store.delete(name, etag),
    ]
    for call in calls:
        with pytest.raises(ConfigurationError, match="document name"):
            call()
    assert list(store.list("")) == [NAME]


@every_store
def test_a_name_may_be_as_long_as_the_longest_application_and_poller(store: DocumentStore) -> None:
    names = [f"state/{'a' * 128}/{'p' * 127}{last}.json" for last in "xy"]
    for number, name in enumerate(names):
        store.create(name, document(number))
    assert [content_of(store, name) for name in names] == [document(0), document(1)]
    assert list(store.list(names[0][:-10])) == names


@every_store
@pytest.mark.parametrize(
    ("prefix", "expected"),
    [
        (
            "",
            [
                "other",
                "state/a%b/x",
                "state/a_b/x",
                "state/app/a",
                "state/app/b",
                "state/app2/a",
                "state/axb/x",
            ],
        ),
        ("state/app/", ["state/app/a", "state/app/b"]),
        ("state/app", ["state/app/a", "state/app/b", "state/app2/a"]),
        ("state/app/a", ["state/app/a"]),
        ("state/a_", ["state/a_b/x"]),
        ("state/a%", ["state/a%b/x"]),
        ("State/", []),
        ("state/app/a/", []),
    ],
)
def test_list_takes_a_prefix_of_the_text_not_a_folder(store: DocumentStore, prefix: str, expected: list[str]) -> None:
    names = [
        "state/app2/a",
        "state/app/b",
        "state/a_b/x",
        "other",
        "state/axb/x",
        "state/a%b/x",
        "state/app/a",
    ]
    for name in names:
        store.create(name, document(1))
    assert list(store.list(prefix)) == expected


@every_store
def test_list_is_in_ascending_order(store: DocumentStore) -> None:
    names = [
        "b",
        "a",
        "Z",
        "a/b",
        "a b",
        "a-b",
        "a.b",
        "é",
        "z",
        "日",
        "\N{GRINNING FACE}",
        "\uffee",
        "10",
        "9",
    ]
    for name in names:
        store.create(f"order/{name}", document(1))
    assert list(store.list("order/")) == sorted(f"order/{name}" for name in names)


@every_store
def test_list_goes_on_after_the_first_page(subject: StoreUnderTest, store: DocumentStore) -> None:
    count = 1 + (subject.page_size or 120)
    names = [f"state/app/{number:05d}.json" for number in range(count)]
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(lambda name: store.create(name, b"{}"), names))
    assert list(store.list("state/app/")) == names


@every_store
def test_of_two_racing_replaces_exactly_one_wins(subject: StoreUnderTest) -> None:
    stores = [subject.open(), subject.open()]
    stores[0].create(NAME, document(0))
    for revision in range(1, RACES + 1):
        etag = etag_of(stores[0])
        contents = [document(revision, by=racer) for racer in range(2)]
        outcomes = _race(
            [partial(store.replace, NAME, content, etag) for store, content in zip(stores, contents, strict=True)]
        )
        assert sorted(outcomes) == ["Conflict", "won"]
        assert content_of(stores[0]) == contents[outcomes.index("won")]


@every_store
def test_of_two_racing_creates_exactly_one_wins(subject: StoreUnderTest) -> None:
    stores = [subject.open(), subject.open()]
    contents = [document(1, by=racer) for racer in range(2)]
    for number in range(RACES):
        name = f"state/app/{number}.json"
        outcomes = _race(
            [partial(store.create, name, content) for store, content in zip(stores, contents, strict=True)]
        )
        assert sorted(outcomes) == ["Conflict", "won"]
        assert content_of(stores[0], name) == contents[outcomes.index("won")]


def _race(attempts: Sequence[Callable[[], object]]) -> list[str]:
    """Run `attempts` at the same moment and return for each whether it won or conflicted."""
    start = Barrier(len(attempts))

    def run(attempt: Callable[[], object]) -> str:
        start.wait()
        try:
            attempt()
        except Conflict:
            return "Conflict"
        return "won"

    with ThreadPoolExecutor(len(attempts)) as pool:
        return list(pool.map(run, attempts))


@every_store
def test_a_read_tells_the_stores_own_time(store: DocumentStore) -> None:
    store.create(NAME, document(1))
    snapshot = store.read(NAME)
    assert snapshot is not None
    _assert_is_about_now(snapshot.store_time)


@every_store
def test_a_write_tells_the_stores_own_time_if_any(store: DocumentStore) -> None:
    created = store.create(NAME, document(1))
    replaced = store.replace(NAME, document(2), created.etag)
    for written in created, replaced:
        if written.store_time is not None:
            _assert_is_about_now(written.store_time)


@every_http_store
def test_an_http_store_tells_its_time_on_every_answer_and_asks_for_a_margin(store: DocumentStore) -> None:
    """An HTTP date has steps of one second, so a lease must not be judged to the second."""
    created = store.create(NAME, document(1))
    _assert_is_about_now(created.store_time)
    _assert_is_about_now(store.replace(NAME, document(2), created.etag).store_time)
    assert store.skew_margin_seconds is not None
    assert store.skew_margin_seconds >= 2.0


def _assert_is_about_now(moment: datetime | None) -> None:
    assert moment is not None
    assert moment.tzinfo is UTC
    assert abs(datetime.now(UTC) - moment) < CLOSE_ENOUGH


@every_store_with_a_server
def test_every_call_to_a_server_that_is_away_is_unavailable(subject: StoreUnderTest, proxy: FaultProxy) -> None:
    etag = subject.open().create(NAME, document(1)).etag
    store = subject.open_behind(proxy)
    assert content_of(store) == document(1)
    proxy.refuse()
    proxy.cut()
    calls: list[Callable[[], object]] = [
        lambda: store.read(NAME),
        lambda: store.create("state/app/new.json", document(1)),
        lambda: store.replace(NAME, document(2), etag),
        lambda: store.delete(NAME, etag),
        lambda: list(store.list("")),
    ]
    for call in calls:
        with pytest.raises(Unavailable):
            call()
    proxy.pass_through()
    assert content_of(store) == document(1)
    assert list(store.list("")) == [NAME]


either_way = pytest.mark.parametrize("landed", [True, False], ids=["landed", "never-arrived"])


@every_store_with_a_server
@either_way
def test_a_create_without_an_answer_is_ambiguous(subject: StoreUnderTest, proxy: FaultProxy, landed: bool) -> None:
    store, name = subject.open_behind(proxy), _findable_name()
    lost = _lose(proxy, subject.sent_last_in_a_write(name), landed)
    with pytest.raises(Ambiguous):
        store.create(name, document(1, mark=f"in-{name}"))
    assert lost.wait(10)
    assert content_of(store, name) == (document(1, mark=f"in-{name}") if landed else None)


@every_store_with_a_server
@either_way
def test_a_replace_without_an_answer_is_ambiguous(subject: StoreUnderTest, proxy: FaultProxy, landed: bool) -> None:
    store, name = subject.open_behind(proxy), _findable_name()
    etag = store.create(name, document(1)).etag
    lost = _lose(proxy, subject.sent_last_in_a_write(name), landed)
    with pytest.raises(Ambiguous):
        store.replace(name, document(2, mark=f"in-{name}"), etag)
    assert lost.wait(10)
    assert content_of(store, name) == (document(2, mark=f"in-{name}") if landed else document(1))


@every_store_with_a_server
@either_way
def test_a_delete_without_an_answer_is_ambiguous(subject: StoreUnderTest, proxy: FaultProxy, landed: bool) -> None:
    store, name = subject.open_behind(proxy), _findable_name()
    etag = store.create(name, document(1)).etag
    lost = _lose(proxy, name, landed)
    with pytest.raises(Ambiguous):
        store.delete(name, etag)
    assert lost.wait(10)
    assert content_of(store, name) == (None if landed else document(1))


@every_store_with_a_server
def test_a_read_without_an_answer_is_unavailable(subject: StoreUnderTest, proxy: FaultProxy) -> None:
    """A read changes nothing, so there is nothing to be unsure about."""
    store, name = subject.open_behind(proxy), _findable_name()
    store.create(name, document(1))
    lost = _lose(proxy, name, landed=True)
    with pytest.raises(Unavailable):
        store.read(name)
    assert lost.wait(10)
    assert content_of(store, name) == document(1)


@every_http_store
def test_a_write_that_times_out_is_ambiguous_and_a_read_unavailable(subject: StoreUnderTest, proxy: FaultProxy) -> None:
    store = subject.open_behind(proxy, timeout_seconds=0.5)
    etag = store.create(NAME, document(1)).etag
    proxy.blackhole()
    with pytest.raises(Ambiguous):
        store.replace(NAME, document(2), etag)
    with pytest.raises(Unavailable):
        store.read(NAME)


def _findable_name() -> str:
    """Return a name that every store's encoding leaves as it is, so that the proxy can see it pass."""
    return f"lost{uuid4().hex}"


def _lose(proxy: FaultProxy, text: str, landed: bool) -> Event:
    """Break the connection on the next request that holds `text`: after it was done, or before it arrives."""
    arm = proxy.drop_next_answer if landed else proxy.drop_next_request
    return arm(containing=text.encode())
