"""A held lease: one round trip per commit, answers that were lost, loss, release, and the margin."""

from __future__ import annotations

import threading
from collections.abc import Callable
from datetime import datetime, timedelta

import pytest

from holdfast.core.clock import SystemClock
from holdfast.core.config import DbConfig
from holdfast.core.errors import (
    Ambiguous,
    CommitError,
    ConfigurationError,
    Conflict,
    FingerprintMismatchError,
    LeaseConflictError,
    LostLeaseError,
    Unavailable,
    UnreadableStateError,
)
from holdfast.core.types import SourceDescriptor
from holdfast.database.pools import EngineProvider
from holdfast.lease.documents import ETag, Written
from holdfast.lease.held_lease import Lease
from holdfast.lease.store import StateStore
from holdfast.lease.stores.memory import MemoryDocumentStore
from holdfast.lease.stores.sql import SqlDocumentStore
from holdfast.runtime.keeper import Kept, checked_interval, keeping
from tests.clocks import SteppedClock, SteppedTimeStore
from tests.lease import faulty
from tests.lease.faulty import FaultyDocumentStore

TTL = 30.0
MARGIN = 1.0
NAME = "state/default/orders.json"


class Place:
    """A state store over a faulty memory store, with time that the test steps."""

    def __init__(self) -> None:
        self.clock = SteppedClock()
        self.memory = MemoryDocumentStore(self.clock.now)
        self.faulty = FaultyDocumentStore(self.memory)
        self.store = StateStore(self.faulty, app_name="default", clock=self.clock, skew_margin_seconds=MARGIN)

    def acquire(self) -> Lease:
        return self.store.acquire("orders", ttl_seconds=TTL)

    def checkpoint(self) -> dict[str, object]:
        view = self.store.read("orders")
        assert view is not None
        return view.checkpoint


@pytest.fixture
def place() -> Place:
    return Place()


def test_tokens_rise_by_one_and_the_second_taker_is_refused(place: Place) -> None:
    first = place.acquire()
    with pytest.raises(LeaseConflictError, match=first.owner_id):
        place.acquire()
    first.release()
    assert place.acquire().fencing_token == first.fencing_token + 1


def test_a_released_lease_is_free_at_once(place: Place) -> None:
    place.acquire().release()
    assert place.acquire().fencing_token == 2


def test_a_discarded_lease_leaves_no_document_and_its_stale_holder_deletes_no_other(place: Place) -> None:
    stale = place.acquire()
    place.clock.advance(TTL + MARGIN)
    place.acquire().discard()
    assert place.memory.read(NAME) is None
    present = place.acquire()
    with pytest.raises((Conflict, LostLeaseError)):
        stale.discard()
    present.heartbeat()
    assert stale.lost.is_set()


@pytest.mark.parametrize(("waited", "is_free"), [(TTL, False), (TTL + MARGIN - 0.01, False), (TTL + MARGIN, True)])
def test_an_expired_lease_is_taken_only_after_the_margin(place: Place, waited: float, is_free: bool) -> None:
    place.acquire()
    place.clock.advance(waited)
    if is_free:
        assert place.acquire().fencing_token == 2
    else:
        with pytest.raises(LeaseConflictError):
            place.acquire()


def test_a_stale_owner_cannot_commit(place: Place) -> None:
    stale = place.acquire()
    place.clock.advance(TTL + MARGIN)
    present = place.acquire()
    present.commit({"cursor": 2})
    with pytest.raises(LostLeaseError, match=present.owner_id):
        stale.commit({"cursor": 1})
    assert stale.lost.is_set()
    assert place.checkpoint()["cursor"] == 2


def test_a_commit_is_one_write_and_no_read(place: Place) -> None:
    lease = place.acquire()
    place.faulty.arm(faulty.unavailable("read"))
    for position in range(5):
        lease.commit({"cursor": position})
    assert len(place.faulty.pending) == 1, "a commit read the document"


def test_heartbeat_and_commit_do_not_race_into_a_false_loss(place: Place) -> None:
    lease = place.acquire()
    errors: list[Exception] = []

    def beat() -> None:
        try:
            for _ in range(200):
                lease.heartbeat()
        except Exception as error:
            errors.append(error)

    threads = [threading.Thread(target=beat) for _ in range(3)]
    for thread in threads:
        thread.start()
    for position in range(200):
        lease.commit({"cursor": position})
    for thread in threads:
        thread.join()
    assert not errors
    assert place.checkpoint()["cursor"] == 199


@pytest.mark.parametrize("fault", [faulty.ambiguous_after_landing, faulty.ambiguous_without_landing])
def test_a_commit_whose_answer_was_lost_is_settled_by_one_read(
    place: Place, fault: Callable[[faulty.Verb], faulty.Fault]
) -> None:
    lease = place.acquire()
    place.faulty.arm(fault("replace"))
    lease.commit({"cursor": 1})
    assert place.checkpoint()["cursor"] == 1
    lease.commit({"cursor": 2})
    assert place.checkpoint()["cursor"] == 2


def test_a_commit_that_landed_after_a_takeover_is_told_apart(place: Place) -> None:
    """The answer is lost, and before we ask, another worker takes the lease: we must not go on."""
    lease = place.acquire()

    def take_over() -> None:
        place.clock.advance(TTL + MARGIN)
        StateStore(place.memory, app_name="default", clock=place.clock, skew_margin_seconds=MARGIN).acquire(
            "orders", ttl_seconds=TTL
        )

    place.faulty.arm(faulty.ambiguous_after_landing("replace"), faulty.before("read", take_over))
    with pytest.raises(LostLeaseError):
        lease.commit({"cursor": 1})
    assert lease.lost.is_set()


@pytest.mark.parametrize("seconds", [0.1, 1.0, 5.0, TTL - MARGIN - 1])
def test_a_store_that_throttles_costs_as_long_as_it_does_so(place: Place, seconds: float) -> None:
    lease = place.acquire()
    began = place.clock.passed
    place.faulty.throttle(lambda: place.clock.passed - began < seconds)
    lease.commit({"cursor": 1})
    assert place.checkpoint()["cursor"] == 1
    assert place.clock.passed - began < seconds + 0.5
    assert not lease.lost.is_set()


def test_a_store_that_stays_away_fails_the_commit_when_the_lease_has_run_out(place: Place) -> None:
    lease = place.acquire()
    place.faulty.throttle(lambda: True)
    with pytest.raises(CommitError, match="delivered again"):
        lease.commit({"cursor": 1})
    assert TTL - MARGIN - 0.5 <= place.clock.passed <= TTL - MARGIN
    place.faulty.throttle(lambda: False)
    assert place.checkpoint() == {}


def test_a_lease_is_freed_in_a_store_that_throttles_for_a_moment(place: Place) -> None:
    lease = place.acquire()
    began = place.clock.passed
    place.faulty.throttle(lambda: place.clock.passed - began < 0.5)
    lease.release()
    assert place.acquire().fencing_token == 2


def test_a_process_that_ends_does_not_wait_for_a_store_that_stays_away(place: Place) -> None:
    lease = place.acquire()
    place.faulty.throttle(lambda: True)
    with pytest.raises(Unavailable):
        lease.release()
    assert place.clock.passed < 2


def test_an_acquire_whose_answer_was_lost_is_ours_when_it_landed(place: Place) -> None:
    place.faulty.arm(faulty.ambiguous_after_landing("create"))
    assert place.acquire().fencing_token == 1


def test_an_acquire_that_never_landed_is_reported(place: Place) -> None:
    place.faulty.arm(faulty.ambiguous_without_landing("create"))
    with pytest.raises(Ambiguous):
        place.acquire()
    assert place.acquire().fencing_token == 1


def test_nothing_is_written_once_the_lease_is_lost(place: Place) -> None:
    lease = place.acquire()
    lease.mark_lost()
    before = place.memory.read(NAME)
    with pytest.raises(LostLeaseError):
        lease.commit({"cursor": 1})
    with pytest.raises(LostLeaseError):
        lease.heartbeat()
    lease.release()
    assert place.memory.read(NAME) == before


def test_a_deleted_document_is_a_lost_lease(place: Place) -> None:
    lease = place.acquire()
    snapshot = place.memory.read(NAME)
    assert snapshot is not None
    place.memory.delete(NAME, snapshot.etag)
    with pytest.raises(LostLeaseError, match="deleted"):
        lease.commit({"cursor": 1})


def test_fields_of_a_newer_minor_version_survive(place: Place) -> None:
    content = b'{"version":1,"poller_name":"orders","checkpoint":{},"from_the_future":{"a":1},"revision":7}'
    place.memory.create(NAME, content)
    lease = place.acquire()
    lease.heartbeat({"done": 3})
    lease.commit({"cursor": 1})
    view = place.store.read("orders")
    assert view is not None
    assert view.document["from_the_future"] == {"a": 1}
    assert view.document["revision"] == 10


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"not json", "not JSON"),
        (b'{"version":2}', "version 2"),
        (b'{"version":1,"checkpoint":[]}', "corrupt"),
        (b'{"version":1,"lease":{"owner_id":"a"}}', "lease cannot be read"),
        (b"[]", "corrupt"),
    ],
)
def test_an_unreadable_document_is_refused_and_left_alone(place: Place, content: bytes, message: str) -> None:
    place.memory.create(NAME, content)
    with pytest.raises(UnreadableStateError, match=message):
        place.acquire()
    kept = place.memory.read(NAME)
    assert kept is not None
    assert kept.content == content


def test_a_checkpoint_of_another_source_is_refused_unless_a_reset_was_asked_for(place: Place) -> None:
    def source(fingerprint: str) -> SourceDescriptor:
        return SourceDescriptor(name="orders", kind="test", fingerprint=fingerprint)

    first = place.store.acquire("orders", ttl_seconds=TTL, source=source("sha256:a"))
    first.commit({"cursor": 5})
    first.release()
    with pytest.raises(FingerprintMismatchError, match="reset"):
        place.store.acquire("orders", ttl_seconds=TTL, source=source("sha256:b"))
    moved = place.store.acquire("orders", ttl_seconds=TTL, source=source("sha256:b"), on_source_change="reset")
    assert moved.checkpoint == {}


@pytest.mark.parametrize("name", ["", "a/b", "..", "a..b", "-x", ".hidden", "x" * 200, "ü", "a b"])
def test_a_name_that_could_leave_its_path_is_refused(place: Place, name: str) -> None:
    with pytest.raises(ConfigurationError, match="storage path"):
        place.store.acquire(name, ttl_seconds=TTL)


def test_a_time_to_live_below_twice_the_margin_is_refused(place: Place) -> None:
    with pytest.raises(ConfigurationError, match="too short"):
        place.store.acquire("orders", ttl_seconds=2 * MARGIN)


@pytest.mark.parametrize(("interval", "is_fine"), [(None, True), (14.9, True), (15.0, False), (30, False), (0, False)])
def test_the_heartbeat_interval_is_below_half_the_time_to_live(interval: float | None, is_fine: bool) -> None:
    if is_fine:
        assert checked_interval(interval, TTL) < TTL / 2
    else:
        with pytest.raises(ConfigurationError, match="below half"):
            checked_interval(interval, TTL)


class BeatingPlace(Place):
    """A place where beats take their turns as soon as they are due."""

    def run_heartbeat(self, lease: Lease) -> None:
        kept = Kept(lease, 10)
        while not lease.lost.is_set():
            self.clock.advance(kept.pause())
            kept.turn()


def test_beats_that_fail_until_the_margin_are_a_loss() -> None:
    place = BeatingPlace()
    lease = place.acquire()
    place.faulty.arm(*(faulty.unavailable("replace", nth=n) for n in range(1, 50)))
    place.run_heartbeat(lease)
    assert place.clock.passed <= TTL, "given up only after the lease had run out"


def test_a_conflicting_beat_is_a_loss() -> None:
    place = BeatingPlace()
    lease = place.acquire()
    snapshot = place.memory.read(NAME)
    assert snapshot is not None
    place.memory.delete(NAME, snapshot.etag)
    place.run_heartbeat(lease)
    assert lease.lost.is_set()


def test_waiting_for_the_lane_does_not_outlast_the_lease(place: Place) -> None:
    lease = place.acquire()
    entered, leave = threading.Event(), threading.Event()

    def hang() -> None:
        entered.set()
        leave.wait(10)

    place.faulty.arm(faulty.before("replace", hang))
    committing = threading.Thread(target=lambda: lease.commit({"cursor": 1}))
    committing.start()
    assert entered.wait(10)
    with pytest.raises(Unavailable, match="busy"):
        lease.heartbeat(wait_seconds=0.01)
    leave.set()
    committing.join()
    assert place.checkpoint()["cursor"] == 1


def test_a_stepped_store_tells_the_stepped_time() -> None:
    clock = SteppedClock()
    store = SteppedTimeStore(MemoryDocumentStore(), clock)
    store.create("x", b"1")
    clock.advance(5)
    snapshot = store.read("x")
    assert snapshot is not None
    assert snapshot.store_time == clock.now()
    assert clock.now() - timedelta(seconds=5) == SteppedClock().now()


def test_a_write_that_is_never_answered_does_not_keep_us_believing() -> None:
    """The store takes the heartbeat and says nothing: the lease is lost when its time is over, by our own clock."""
    store = StateStore(HangingStore(), app_name="default")
    lease = store.acquire("orders", ttl_seconds=1)
    with keeping(lease, store.clock, interval_seconds=0.1):
        assert lease.lost.wait(30), "the lease was not given up"
    with pytest.raises(Unavailable, match="not answered"):
        lease.release(wait_seconds=0.01)
    HangingStore.answer.set()


class HangingStore(MemoryDocumentStore):
    """Answers everything but the second and later replacements."""

    answer = threading.Event()

    def __init__(self) -> None:
        super().__init__()
        self._replaced = 0

    def replace(self, name: str, content: bytes, if_match: ETag) -> Written:
        self._replaced += 1
        if self._replaced > 1:
            self.answer.wait(60)
        return super().replace(name, content, if_match)


def test_a_beat_that_raises_anything_is_a_failed_beat(place: Place, caplog: pytest.LogCaptureFixture) -> None:
    lease = place.acquire()

    def explode() -> None:
        raise RuntimeError("a bug in the store")

    place.faulty.arm(*(faulty.before("replace", explode, nth=n) for n in range(1, 20)))
    kept = Kept(lease, 10)
    while not lease.lost.is_set():
        place.clock.advance(kept.pause())
        kept.turn()
    assert "a bug in the store" in caplog.text


@pytest.mark.parametrize("database", ["sqlite_url", "postgres_url", "mariadb_url"])
@pytest.mark.parametrize("minutes", [-10, 10])
def test_the_first_lease_is_dated_by_the_database_and_not_by_this_machine(
    request: pytest.FixtureRequest, database: str, minutes: int
) -> None:
    class WrongClock(SystemClock):
        def now(self) -> datetime:
            return super().now() + timedelta(minutes=minutes)

    engine = EngineProvider().get_engine(DbConfig(connection_url=request.getfixturevalue(database)))
    documents = SqlDocumentStore(engine)
    documents.create_table()
    lease = StateStore(documents, clock=WrongClock()).acquire("orders", ttl_seconds=30)
    lease.heartbeat()
    other = StateStore(documents)
    with pytest.raises(LeaseConflictError):
        other.acquire("orders", ttl_seconds=30)
    view = other.read("orders")
    assert view is not None
    assert view.lease is not None
    assert timedelta(0) < view.lease.expires_at - view.read_at <= timedelta(seconds=31)
    engine.dispose()
