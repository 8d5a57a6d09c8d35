"""The registry on real stores: one holder, nobody else writes, lost answers are settled, the lock is given back.

Shows [REGISTRY-1], [REGISTRY-2], [REGISTRY-3] and [REGISTRY-4] where they are kept.
"""

from __future__ import annotations

import json
import threading
import uuid
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime, timedelta
from typing import Any

import pytest

from holdfast.core.clock import SystemClock
from holdfast.core.errors import (
    Ambiguous,
    ConfigurationError,
    Conflict,
    RegistryLocked,
    Unavailable,
    UnreadableStateError,
)
from holdfast.engines.registry import EngineTablesConfig, HeldRegistry, Registry, RegistryView
from holdfast.lease.documents import DocumentStore
from holdfast.lease.stores.blob import BlobDocumentStore
from holdfast.lease.stores.memory import MemoryDocumentStore
from tests.components.processes import wait_until
from tests.engines.registries import Place, opened
from tests.lease import faulty

CONTENDERS = 50
TABLES = EngineTablesConfig(storage_account_name="shopstorage", retention_days=7)
LOST = [faulty.ambiguous_after_landing, faulty.ambiguous_without_landing]
MakeFault = Callable[[faulty.Verb], faulty.Fault]

every_store = pytest.mark.parametrize(
    "store",
    [
        "memory",
        "sqlite",
        pytest.param("postgres_server", marks=pytest.mark.component("postgres18")),
        pytest.param("mariadb_server", marks=pytest.mark.component("mariadb")),
        pytest.param("blob", marks=pytest.mark.component("azurite")),
    ],
    indirect=True,
)


@pytest.fixture(scope="module")
def store(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[DocumentStore]:
    kind: str = getattr(request, "param", "memory")
    with opened(kind, request, tmp_path_factory.mktemp(kind)) as made:
        yield made


@pytest.fixture
def name() -> str:
    """Name of a registry that is not there yet."""
    return f"registry/{uuid.uuid4()}.json"


@pytest.fixture
def place(store: DocumentStore, name: str) -> Place:
    return Place(store, name)


# One holder


@every_store
def test_of_many_that_ask_at_once_exactly_one_gets_the_lock(store: DocumentStore, name: str) -> None:
    """[REGISTRY-1]"""
    registry = Registry(store, name=name)
    begin = threading.Barrier(CONTENDERS)

    def ask(number: int) -> RegistryLocked | RegistryView:
        begin.wait()
        try:
            return registry.acquire(f"job-{number}")
        except RegistryLocked as refused:
            return refused

    with ThreadPoolExecutor(CONTENDERS) as pool:
        outcomes = list(pool.map(ask, range(CONTENDERS)))
    [won] = [outcome for outcome in outcomes if isinstance(outcome, RegistryView)]
    refusals = [outcome for outcome in outcomes if isinstance(outcome, RegistryLocked)]
    assert len(refusals) == CONTENDERS - 1
    assert {refusal.holder_job_id for refusal in refusals} == {won.lock.job_id}
    assert all(won.lock.job_id in str(refusal) for refusal in refusals)


@every_store
def test_many_that_work_one_after_the_other_lose_no_change(store: DocumentStore, name: str) -> None:
    registry = Registry(store, name=name)
    registry.init(state={"total": 0})

    def has_worked(number: int) -> bool:
        try:
            with registry.locked(f"job-{number}") as held:
                held.change({"total": held.registry["total"] + 1})
        except Conflict:
            return False
        return True

    def work(number: int) -> None:
        wait_until(lambda: has_worked(number), "the lock to be free")

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(work, range(8)))
    view = registry.read()
    assert view is not None
    assert view.state == {"total": 8}
    assert not view.is_locked


@every_store
def test_a_lock_that_ran_out_is_taken_only_after_the_margin(place: Place) -> None:
    place.registry.acquire("job-7", duration_seconds=30)
    place.clock.advance(30 + place.margin_seconds - 0.5)
    with pytest.raises(RegistryLocked, match="job-7"):
        place.other.acquire("job-8")
    with pytest.raises(RegistryLocked, match="job-7"):
        place.other.require_free("job-8")
    place.other.require_free("job-7")
    place.clock.advance(0.5)
    place.other.require_free()
    assert place.other.acquire("job-8").lock.job_id == "job-8"


def test_the_same_job_gets_its_own_lock_again(place: Place) -> None:
    first = place.registry.acquire("job-7", duration_seconds=30)
    place.clock.advance(10)
    again = place.other.acquire("job-7", duration_seconds=30)
    assert again.lock.fencing_token == first.lock.fencing_token
    assert again.lock.until == place.clock.now() + timedelta(seconds=30)


def test_a_registry_is_made_when_it_is_first_locked(place: Place) -> None:
    assert place.registry.read() is None
    place.registry.require_free("job-7")
    view = place.registry.acquire("job-7")
    assert (view.version, view.lock.fencing_token, view.is_locked) == (2, 2, True)
    assert view.tables == EngineTablesConfig()


@every_store
@pytest.mark.parametrize("minutes", [-90, 90])
def test_the_lock_is_dated_by_the_store_and_not_by_this_machine(store: DocumentStore, name: str, minutes: int) -> None:
    class WrongClock(SystemClock):
        def now(self) -> datetime:
            return super().now() + timedelta(minutes=minutes)

    Registry(store, name=name, clock=WrongClock()).acquire("job-7")
    other = Registry(store, name=name)
    with pytest.raises(RegistryLocked):
        other.acquire("job-8")
    view = other.read()
    assert view is not None
    assert view.lock.until is not None
    assert timedelta(minutes=45) < view.lock.until - view.read_at < timedelta(minutes=75)


# Nobody else writes


@every_store
def test_only_the_holder_of_a_valid_lock_changes_the_registry(place: Place) -> None:
    """[REGISTRY-2]"""
    place.registry.acquire("job-7", duration_seconds=30)
    before = place.view().document
    attempts: list[Callable[[], object]] = [
        lambda: place.other.change("job-8", {"a": 1}),
        lambda: place.other.extend("job-8"),
        lambda: place.other.configure_tables("job-8", TABLES),
        lambda: place.other.release("job-8"),
    ]
    for attempt in attempts:
        with pytest.raises(RegistryLocked, match="'job-7' until"):
            attempt()
    place.clock.advance(30)
    with pytest.raises(RegistryLocked, match="ran out"):
        place.registry.change("job-7", {"a": 1})
    with pytest.raises(RegistryLocked, match="ran out"):
        place.registry.extend("job-7")
    assert place.view().document == before


@every_store
def test_a_holder_that_wakes_late_changes_nothing(place: Place) -> None:
    """It has read and decided, and pauses right before its write: meanwhile its lock ran out and was taken."""
    with place.registry.locked("sleeper", duration_seconds=30) as held:
        held.change({"a": "mine"})
        place.faulty.arm(faulty.before("replace", place.take_over))
        with pytest.raises(RegistryLocked, match="'thief' until"):
            held.change({"a": "too late"})
        assert held.lost.is_set()
        stolen = place.view()
        attempts: list[Callable[[], object]] = [
            lambda: held.change({"a": "later"}),
            held.heartbeat,
            lambda: held.configure_tables(TABLES),
        ]
        for attempt in attempts:
            with pytest.raises(RegistryLocked, match="lost"):
                attempt()
    assert place.view().document == stolen.document
    assert stolen.state == {"a": "mine"}
    assert stolen.lock.job_id == "thief"


def test_a_late_run_of_the_same_job_changes_nothing_either(place: Place) -> None:
    with place.registry.locked("job-7", duration_seconds=30) as late:
        place.clock.advance(30)
        present = place.other.acquire("job-7")
        with pytest.raises(RegistryLocked, match="later run"):
            place.registry.change("job-7", {"a": 1}, fencing_token=late.fencing_token)
    assert place.view().document == present.document, "the late run has released the lock of the present one"


@every_store
def test_what_this_version_does_not_know_survives(place: Place) -> None:
    document = {
        "registryVersion": 41,
        "instanceLock": {"lockJobId": "", "lockDurationSeconds": 60, "lockUntilUtc": "", "lockNote": "é"},
        "engineTablesConfig": {"dlqTableName": "engineDlq", "region": "west"},
        "instances": {"a": {"health": None}},
    }
    place.store.create(place.registry.name, json.dumps(document).encode())
    with place.registry.locked("job-7") as held:
        held.change({"mine": 1})
        held.configure_tables(TABLES)
        held.heartbeat()
    after = place.view().document
    assert after["instances"] == document["instances"]
    assert after["instanceLock"] == {**document["instanceLock"], "lockDurationSeconds": 3600}  # type: ignore[dict-item] # a JSON object
    assert after["engineTablesConfig"] == {**TABLES.as_json(), "region": "west"}
    assert after["registryVersion"] == 41 + 5
    assert after["mine"] == 1


@pytest.mark.parametrize("content", [b"not json", b"{}", b'{"registryVersion": 1, "instanceLock": {"lockJobId": "a"}}'])
def test_what_is_no_registry_is_left_alone(place: Place, content: bytes) -> None:
    place.store.create(place.registry.name, content)
    with pytest.raises(UnreadableStateError, match=place.registry.name):
        place.registry.acquire("job-7")
    with pytest.raises(Conflict, match="already"):
        place.registry.init()
    kept = place.store.read(place.registry.name)
    assert kept is not None
    assert kept.content == content


# Races that were lost


def test_a_lost_race_is_run_again_while_the_lock_is_ours(place: Place) -> None:
    token = place.registry.acquire("job-7").lock.fencing_token
    place.faulty.arm(faulty.before("replace", lambda: place.other.change("job-7", {"b": 2})))
    place.registry.change("job-7", {"a": 1}, fencing_token=token)
    assert place.view().state == {"a": 1, "b": 2}


def test_races_that_are_lost_time_and_again_end(place: Place) -> None:
    place.registry.acquire("job-7")

    def interfere() -> None:
        place.other.change("job-7", {"b": place.view().version})

    place.faulty.arm(*(faulty.before("replace", interfere, nth=n) for n in range(1, 100)))
    with pytest.raises(Conflict, match="in a row"):
        place.registry.change("job-7", {"a": 1})
    assert "a" not in place.view().state


def test_an_acquisition_that_lost_its_race_is_refused(place: Place) -> None:
    place.registry.init()
    place.faulty.arm(faulty.before("replace", lambda: place.other.acquire("faster")))
    with pytest.raises(RegistryLocked, match="faster"):
        place.registry.acquire("slower")


def test_a_replica_that_lags_changes_nothing(place: Place) -> None:
    place.registry.acquire("job-7")
    place.registry.change("job-7", {"a": 1})
    place.faulty.arm(faulty.stale_read())
    place.registry.change("job-7", {"b": 2})
    assert place.view().state == {"a": 1, "b": 2}


# Answers that were lost


@every_store
@pytest.mark.parametrize("fault", LOST)
def test_an_acquisition_whose_answer_was_lost_is_neither_lost_nor_doubled(place: Place, fault: MakeFault) -> None:
    place.registry.init()
    place.faulty.arm(fault("replace"))
    with place.registry.locked("job-7") as held:
        assert not place.faulty.pending
        assert place.view().version == 2
        assert held.fencing_token == 2
    assert not place.view().is_locked


@every_store
@pytest.mark.parametrize("fault", LOST)
def test_a_change_whose_answer_was_lost_is_neither_lost_nor_doubled(place: Place, fault: MakeFault) -> None:
    with place.registry.locked("job-7") as held:
        before = place.view().version
        place.faulty.arm(fault("replace"))
        assert held.change({"total": 1})["total"] == 1
        assert not place.faulty.pending
        assert place.view().version == before + 1
        assert place.view().state == {"total": 1}


@pytest.mark.parametrize("fault", LOST)
@pytest.mark.parametrize(
    "command",
    [
        lambda registry: registry.extend("job-7"),
        lambda registry: registry.configure_tables("job-7", TABLES),
        lambda registry: registry.release("job-7"),
        lambda registry: registry.force_unlock(registry.read().lock),
    ],
)
def test_every_other_write_too(place: Place, fault: MakeFault, command: Callable[[Any], object]) -> None:
    before = place.registry.acquire("job-7").version
    place.faulty.arm(fault("replace"))
    command(place.registry)
    assert not place.faulty.pending
    assert place.view().version == before + 1


@pytest.mark.parametrize("fault", LOST)
def test_the_first_acquisition_survives_a_lost_answer_of_making_the_registry(place: Place, fault: MakeFault) -> None:
    place.faulty.arm(fault("create"))
    assert place.registry.acquire("job-7").version == 2


def test_a_registry_that_another_makes_first_is_locked_all_the_same(place: Place) -> None:
    place.faulty.arm(faulty.before("create", place.other.init))
    assert place.registry.acquire("job-7").version == 2


def test_a_write_that_surely_did_not_land_is_made_however_often_others_are_faster(place: Place) -> None:
    place.registry.acquire("job-7")

    def interfere() -> None:
        place.other.change("job-7", {"b": place.view().version})

    place.faulty.arm(
        faulty.ambiguous_without_landing("replace"), *(faulty.before("replace", interfere, nth=n) for n in range(2, 15))
    )
    place.registry.change("job-7", {"a": 1})
    assert not place.faulty.pending
    assert place.view().state["a"] == 1


def test_a_store_that_never_answers_a_write_is_told_as_doubtful(place: Place) -> None:
    place.registry.acquire("job-7")
    place.faulty.arm(*(faulty.ambiguous_without_landing("replace", nth=n) for n in range(1, 100)))
    with pytest.raises(Ambiguous, match="whether it landed"):
        place.registry.change("job-7", {"a": 1})


def test_a_write_that_may_still_arrive_is_told_as_doubtful(place: Place) -> None:
    place.registry.acquire("job-7", duration_seconds=30)
    place.faulty.arm(
        faulty.ambiguous_without_landing("replace"), faulty.before("read", lambda: place.clock.advance(30), nth=2)
    )
    with pytest.raises(Ambiguous, match="whether it landed"):
        place.registry.change("job-7", {"a": 1})


def test_making_the_registry_survives_a_lost_answer(place: Place) -> None:
    place.faulty.arm(faulty.ambiguous_after_landing("create"))
    assert place.registry.init(TABLES).tables == TABLES
    with pytest.raises(Conflict, match="already"):
        place.registry.init()
    assert place.view().tables == TABLES


def test_a_registry_that_somebody_else_made_is_not_taken_for_ours(place: Place) -> None:
    place.faulty.arm(faulty.ambiguous_without_landing("create"), faulty.before("read", place.other.init))
    with pytest.raises(Conflict, match="already"):
        place.registry.init(TABLES)
    assert place.view().tables == EngineTablesConfig()


def test_a_registry_that_was_not_made_is_told(place: Place) -> None:
    place.faulty.arm(faulty.ambiguous_without_landing("create"))
    with pytest.raises(Ambiguous):
        place.registry.init()
    assert place.registry.init().version == 1


def test_a_change_that_landed_is_known_although_the_lock_is_gone_since(place: Place) -> None:
    place.registry.acquire("job-7")
    place.faulty.arm(faulty.ambiguous_after_landing("replace"), faulty.before("read", place.take_over, nth=2))
    place.registry.change("job-7", {"a": 1})
    assert not place.faulty.pending
    assert place.view().state == {"a": 1}
    assert place.view().lock.job_id == "thief"


@pytest.mark.parametrize("taken", [True, False])
def test_an_acquisition_that_landed_and_is_gone_since_is_no_lock(place: Place, taken: bool) -> None:
    place.registry.init()

    def unlock() -> None:
        place.other.force_unlock(place.view().lock)
        if taken:
            place.other.acquire("thief")

    place.faulty.arm(faulty.ambiguous_after_landing("replace"), faulty.before("read", unlock, nth=2))
    with pytest.raises(RegistryLocked, match="thief" if taken else "taken away"):
        place.registry.acquire("job-7")
    assert not place.faulty.pending


def test_a_write_that_did_not_land_is_not_made_for_a_job_that_lost_its_lock(place: Place) -> None:
    place.registry.acquire("job-7")
    place.faulty.arm(faulty.ambiguous_without_landing("replace"), faulty.before("read", place.take_over, nth=2))
    with pytest.raises(RegistryLocked, match="thief"):
        place.registry.change("job-7", {"a": 1})
    assert place.view().state == {}


def test_a_write_that_cannot_be_found_among_many_is_told_as_doubtful(place: Place) -> None:
    place.registry.acquire("job-7")

    def bury() -> None:
        for number in range(20):
            place.other.change("job-7", {"b": number})

    place.faulty.arm(faulty.ambiguous_after_landing("replace"), faulty.before("read", bury, nth=2))
    with pytest.raises(Ambiguous, match="registry show"):
        place.registry.change("job-7", {"a": 1})


def test_a_write_that_cannot_be_looked_for_is_told_as_doubtful(place: Place) -> None:
    place.registry.acquire("job-7")
    place.faulty.arm(faulty.ambiguous_after_landing("replace"), *(faulty.unavailable("read", n) for n in range(2, 9)))
    with pytest.raises(Ambiguous, match="whether it landed"):
        place.registry.change("job-7", {"a": 1})


def test_a_doubtful_write_that_cannot_be_repeated_stays_doubtful(place: Place) -> None:
    place.registry.acquire("job-7")
    lost = faulty.ambiguous_without_landing("replace")
    place.faulty.arm(lost, *(faulty.unavailable("replace", n) for n in range(2, 9)))
    with pytest.raises(Ambiguous, match="whether it landed"):
        place.registry.change("job-7", {"a": 1})


def test_a_store_that_is_away_for_a_moment_is_asked_again(place: Place) -> None:
    place.faulty.arm(*(faulty.unavailable(verb) for verb in ("read", "create", "replace")))
    assert place.registry.acquire("job-7").is_locked
    assert not place.faulty.pending


def test_a_store_that_stays_away_is_told(place: Place) -> None:
    place.registry.acquire("job-7")
    place.faulty.arm(*(faulty.unavailable("replace", n) for n in range(1, 9)))
    with pytest.raises(Unavailable):
        place.registry.change("job-7", {"a": 1})
    assert place.view().state == {}


# The lock is given back


@every_store
def test_the_lock_is_given_back_when_the_work_fails(place: Place) -> None:
    """[REGISTRY-4]"""
    with pytest.raises(ValueError, match="in the block"), place.registry.locked("job-7") as held:
        fail(place)
    assert held.lost.is_set()
    assert place.other.acquire("job-8").is_locked


@pytest.mark.parametrize("error", [KeyboardInterrupt, SystemExit, GeneratorExit])
def test_the_lock_is_given_back_whatever_happens(place: Place, error: type[BaseException]) -> None:
    with pytest.raises(error, match="in the block"), place.registry.locked("job-7") as held:
        raise error("in the block")
    assert held.lost.is_set()
    assert not place.view().is_locked
    assert place.other.acquire("job-8").is_locked


def test_a_block_that_is_refused_does_not_run(place: Place) -> None:
    place.other.acquire("job-7")
    with pytest.raises(RegistryLocked, match="job-7"), place.registry.locked("job-8"):
        pytest.fail("two holders at once")
    assert place.view().lock.job_id == "job-7"


def fail(place: Place, *faults: faulty.Fault) -> None:
    place.faulty.arm(*faults)
    raise ValueError("in the block")


@pytest.mark.parametrize(
    "fault",
    [faulty.unavailable, lambda verb, nth: faulty.before(verb, lambda: json.loads("a bug in the store"), nth)],
)
def test_a_release_that_fails_does_not_hide_what_happened(
    place: Place, caplog: pytest.LogCaptureFixture, fault: Callable[[faulty.Verb, int], faulty.Fault]
) -> None:
    with pytest.raises(ValueError, match="in the block"), place.registry.locked("job-7"):
        fail(place, *(fault("replace", n) for n in range(1, 9)))
    assert "could not release" in caplog.text
    place.faulty.disarm()
    assert place.view().lock.job_id == "job-7"
    place.take_over()


def test_work_that_is_done_is_not_undone_by_a_release_that_fails(place: Place) -> None:
    with place.registry.locked("job-7") as held:
        held.change({"a": 1})
        place.faulty.arm(*(faulty.unavailable("replace", n) for n in range(1, 9)))
    assert place.view().state == {"a": 1}


@pytest.mark.parametrize("fault", LOST)
def test_a_release_whose_answer_was_lost_is_made(place: Place, fault: MakeFault) -> None:
    with place.registry.locked("job-7"):
        place.faulty.arm(fault("replace"))
    assert not place.view().lock.job_id


def test_releasing_twice_is_harmless(place: Place) -> None:
    place.registry.acquire("job-7")
    released = place.registry.release("job-7")
    assert place.registry.release("job-7").document == released.document
    place.other.acquire("job-8")
    with pytest.raises(RegistryLocked, match="job-8"):
        place.registry.release("job-7")


def test_nothing_is_written_after_the_lock_was_given_back(place: Place) -> None:
    with place.registry.locked("job-7") as held:
        pass
    after = place.view().document
    with pytest.raises(RegistryLocked, match="given back"):
        held.change({"a": 1})
    assert place.view().document == after


def test_an_operator_takes_the_lock_that_was_seen_and_no_other(place: Place) -> None:
    with place.registry.locked("job-7") as held:
        seen = place.view().lock
        place.other.force_unlock(seen)
        with pytest.raises(RegistryLocked, match="taken away"):
            held.change({"a": 1})
        place.other.acquire("job-8")
        with pytest.raises(RegistryLocked, match="job-8"):
            place.other.force_unlock(seen)
    assert place.view().lock.job_id == "job-8"


def test_a_registry_that_was_deleted_is_a_lost_lock(place: Place) -> None:
    with place.registry.locked("job-7") as held:
        snapshot = place.store.read(place.registry.name)
        assert snapshot is not None
        place.store.delete(place.registry.name, snapshot.etag)
        with pytest.raises(RegistryLocked, match="no registry"):
            held.change({"a": 1})
        assert held.lost.is_set()
    assert place.registry.read() is None


# The lock is kept


def until_of(place: Place) -> datetime:
    until = place.view().lock.until
    assert until is not None
    return until


def test_work_that_takes_longer_than_the_lock_keeps_it(place: Place) -> None:
    with place.registry.locked("job-7", duration_seconds=30) as held:
        for _ in range(9):
            before = until_of(place)
            place.clock.advance(10)
            wait_until(lambda before=before: until_of(place) > before, "the lock to be extended")  # type: ignore[misc] # a lambda with a default
        assert place.clock.passed == 90
        with pytest.raises(RegistryLocked, match="job-7"):
            place.other.acquire("job-8")
        assert held.change({"a": 1})["a"] == 1
        assert not held.lost.is_set()


def test_a_lock_that_was_taken_away_is_noticed_at_the_next_beat(place: Place) -> None:
    with place.registry.locked("job-7", duration_seconds=30) as held:
        place.other.force_unlock(place.view().lock)
        place.clock.advance(10)
        assert held.lost.wait(30)


def test_a_holder_that_cannot_extend_stops_before_its_lock_ends(place: Place) -> None:
    with place.registry.locked("job-7", duration_seconds=30) as held:
        place.faulty.arm(*(faulty.unavailable("read", n) for n in range(1, 1000)))
        place.clock.advance(29)
        assert held.lost.wait(30)
        assert place.view().is_locked
        place.faulty.disarm()


def test_a_write_that_is_not_answered_does_not_keep_the_lock_from_being_given_back(place: Place) -> None:
    entered, leave = threading.Event(), threading.Event()
    refused: list[Exception] = []

    def hang() -> None:
        entered.set()
        leave.wait(30)

    def change(held: HeldRegistry) -> None:
        try:
            held.change({"a": 1})
        except Exception as error:
            refused.append(error)

    with place.registry.locked("job-7") as held:
        place.faulty.arm(faulty.before("replace", hang))
        writing = threading.Thread(target=change, args=[held])
        writing.start()
        assert entered.wait(30)
        with pytest.raises(Unavailable, match="busy"):
            held.heartbeat(wait_seconds=0.01)
    assert not place.view().is_locked
    leave.set()
    writing.join()
    assert place.view().state == {}
    assert isinstance(refused[0], RegistryLocked)


def test_many_threads_of_one_holder_do_not_take_each_other_for_others(place: Place) -> None:
    with place.registry.locked("job-7") as held, ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda number: held.change({f"f{number}": number}), range(60)))
        list(pool.map(lambda number: held.heartbeat(), range(20)))
    assert place.view().state == {f"f{number}": number for number in range(60)}


# Settings


@pytest.mark.parametrize("store", ["memory"], indirect=True)
def test_a_lock_too_short_for_the_stores_clock_is_refused(
    store: MemoryDocumentStore, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(store, "skew_margin_seconds", BlobDocumentStore.skew_margin_seconds)
    registry = Registry(store, name=name)
    with pytest.raises(ConfigurationError, match="more than 4"):
        registry.acquire("job-7", duration_seconds=4)
    with pytest.raises(ConfigurationError, match="more than 4"), registry.locked("job-7", duration_seconds=4):
        pytest.fail("the block ran")
    assert registry.read() is None


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"job_id": ""}, "job id"),
        ({"duration_seconds": 0}, "cannot last"),
        ({"heartbeat_interval_seconds": 1800}, "below half"),
    ],
)
def test_settings_that_make_no_sense_are_refused_before_anything_is_written(
    place: Place, options: dict[str, Any], told: str
) -> None:
    with pytest.raises(ConfigurationError, match=told), place.registry.locked(**{"job_id": "job-7", **options}):
        pytest.fail("the block ran")
    assert place.registry.read() is None


def test_a_registry_is_kept_under_the_name_of_its_application() -> None:
    documents = MemoryDocumentStore()
    assert Registry(documents, app_name="shop").name == "registry/shop.json"
    assert Registry(documents, name="registry/shop/tenant-7.json").name == "registry/shop/tenant-7.json"
    with pytest.raises(ConfigurationError, match="storage path"):
        Registry(documents, app_name="../shop")


def test_what_a_holder_reads_is_a_copy(place: Place) -> None:
    with place.registry.locked("job-7") as held:
        held.change({"list": [1]})
        held.registry["list"].append(2)
        assert held.registry["list"] == [1]
        assert (held.job_id, held.tables) == ("job-7", EngineTablesConfig())
