"""Issue 13, line 6: what users of azure-functions-db have: its metrics, its events, its store, and an outbox."""

from __future__ import annotations

import asyncio
import logging
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import pytest
from azure.core import MatchConditions
from azure.core.exceptions import ResourceExistsError, ResourceModifiedError, ResourceNotFoundError

from holdfast import (
    BlobCheckpointStore,
    ConfigurationError,
    DbBindings,
    DbConnectionError,
    FetchError,
    HandlerError,
    LeaseConflictError,
    LostLeaseError,
    PollerError,
    PollTrigger,
    RowChange,
    SourceDescriptor,
    StateStore,
)
from holdfast.lease.stores.memory import MemoryDocumentStore
from tests.binding.databases import Database
from tests.components.ports import HOST, free_port
from tests.components.processes import wait_until
from tests.decorator.polling import make_orders, place, polling

db = DbBindings()


class Failures:
    """Remembers the failures that were counted."""

    def __init__(self) -> None:
        self.types: list[str] = []

    def increment(self, name: str, value: float = 1, *, labels: Any = None) -> None:
        if name == "azfdb_failures_total":
            self.types.append(labels["error_type"])

    def observe(self, name: str, value: float, *, labels: Any = None) -> None:
        """Not counted here."""

    def set_gauge(self, name: str, value: float, *, labels: Any = None) -> None:
        """Not counted here."""


def told(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.event for record in caplog.records if hasattr(record, "event")]


def test_13_6_a_failure_is_counted_by_the_handlers_own_error(
    database: Database, caplog: pytest.LogCaptureFixture
) -> None:
    make_orders(database)
    place(database, 1)
    failures = Failures()

    @db.trigger(arg_name="events", metrics=failures, **polling(database))
    def ship(events: list[RowChange]) -> None:
        raise ZeroDivisionError("no way")

    with pytest.raises(HandlerError):
        ship()
    assert failures.types == ["ZeroDivisionError"]
    [record] = [each for each in caplog.records if getattr(each, "event", "") == "handler_failed"]
    assert record.__dict__["error_type"] == "ZeroDivisionError"


class Broken:
    """A source of one's own that cannot be read, or whose records are none."""

    source_descriptor = SourceDescriptor(name="broken", kind="own", fingerprint="sha256:x")

    def __init__(self, error: Exception | None) -> None:
        self._error = error

    def fetch(self, cursor: object, batch_size: int) -> list[dict[str, object]]:
        if self._error is not None:
            raise self._error
        return [{"id": 1}]


def refuse(record: Any, source: Any) -> RowChange:
    raise KeyError("no such column")


@pytest.mark.parametrize(
    ("error", "counted", "event"),
    [
        (PermissionError("no"), "PermissionError", "fetch_failed"),
        (FetchError("no"), "FetchError", "fetch_failed"),
        (None, "KeyError", "normalize_failed"),
    ],
)
def test_13_6_each_failing_step_has_its_event(
    error: Exception | None, counted: str, event: str, caplog: pytest.LogCaptureFixture
) -> None:
    failures = Failures()
    trigger = PollTrigger(
        name="orders",
        source=Broken(error),
        checkpoint_store=StateStore(MemoryDocumentStore()),
        normalizer=refuse,
        metrics=failures,
    )
    with pytest.raises(PollerError):
        trigger.run(timer=None, handler=lambda events: None)
    assert failures.types == [counted]
    assert event in told(caplog)


def test_13_6_the_events_of_a_tick_are_logged(database: Database, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG, "holdfast.trigger")
    make_orders(database)

    @db.trigger(arg_name="events", **polling(database))
    def ship(events: list[RowChange]) -> None:
        """Ship."""

    ship()
    assert told(caplog) == ["tick_start", "fetch_empty", "tick_complete"]
    caplog.clear()
    place(database, 1)
    ship()
    assert told(caplog) == ["tick_start", "batch_complete", "tick_complete"]


# A container that is no SDK's


@dataclass
class OwnBlob:
    """A blob in memory, with the keywords that azure-functions-db passes, and no others."""

    content: bytes | None = None
    changes: int = 0

    def download_blob(self) -> Any:
        if self.content is None:
            raise ResourceNotFoundError("no such blob")
        properties = SimpleNamespace(etag=str(self.changes))
        return SimpleNamespace(readall=lambda: self.content, properties=properties)

    def upload_blob(
        self,
        data: bytes,
        *,
        overwrite: bool = False,
        etag: str | None = None,
        match_condition: MatchConditions | None = None,
    ) -> dict[str, str]:
        if match_condition is MatchConditions.IfMissing and self.content is not None:
            raise ResourceExistsError("there is one")
        if match_condition is MatchConditions.IfNotModified and etag != str(self.changes):
            raise ResourceModifiedError("it has changed")
        self.content, self.changes = data, self.changes + 1
        return {"etag": str(self.changes)}


@dataclass
class OwnContainer:
    """A container that has neither a name nor an account."""

    blobs: dict[str, OwnBlob] = field(default_factory=dict)

    def get_blob_client(self, blob: str) -> OwnBlob:
        return self.blobs.setdefault(blob, OwnBlob())


def own_store(container: OwnContainer) -> BlobCheckpointStore:
    return BlobCheckpointStore(container_client=container, source_fingerprint="sha256:x")  # type: ignore[arg-type]  # as users do


def test_13_6_a_blob_store_takes_any_object_with_the_clients_methods() -> None:
    container = OwnContainer()
    first, second = own_store(container), own_store(container)
    lease = first.acquire_lease("orders", 60)
    with pytest.raises(LeaseConflictError):
        second.acquire_lease("orders", 60)
    first.commit_checkpoint("orders", {"cursor": 7}, lease)
    assert second.load_checkpoint("orders")["cursor"] == 7
    first.release_lease("orders", lease)
    with pytest.raises(LostLeaseError):
        first.renew_lease("orders", lease, 60)
    second.acquire_lease("orders", 60)


def test_13_6_a_change_in_between_is_met_there_too() -> None:
    container = OwnContainer()
    store = own_store(container)
    lease = store.acquire_lease("orders", 60)
    [blob] = [each for each in container.blobs.values() if each.content is not None]
    blob.content = (
        (blob.content or b"")
        .replace(b'"fencing_token":1', b'"fencing_token":2')
        .replace(b'"fencing_token": 1', b'"fencing_token": 2')
    )
    blob.changes += 1
    with pytest.raises(LostLeaseError):
        store.commit_checkpoint("orders", {"cursor": 7}, lease)


# An outbox


def make_outbox(database: Database) -> None:
    number = {
        "postgresql": "bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY",
        "mysql": "bigint AUTO_INCREMENT PRIMARY KEY",
        "sqlite": "integer PRIMARY KEY AUTOINCREMENT",
    }[database.kind]
    database.execute(f"CREATE TABLE my_outbox (seq {number}, kind varchar(40) NOT NULL, data varchar(200))")


def append(database: Database, *kinds: str) -> None:
    for kind in kinds:
        database.execute("INSERT INTO my_outbox (kind, data) VALUES (:kind, '{}')", kind=kind)


def outbox(database: Database, **settings: Any) -> dict[str, Any]:
    found = {"strategy": "outbox", "source": "my_outbox", "position": "seq", "message_type": "kind"}
    state = {"checkpoint_store": StateStore(MemoryDocumentStore()), "engine_provider": database.provider}
    return {**found, **state, "url": database.url, **settings}


def test_13_6_messages_of_an_outbox_come_as_an_argument_and_once(database: Database) -> None:
    make_outbox(database)
    seen: list[str] = []

    @db.trigger(arg_name="events", **outbox(database, types=["Placed"]))
    def ship(timer: Any, events: list[RowChange]) -> None:
        seen.extend(str((event.after or {})["kind"]) for event in events)

    append(database, "Placed", "Other", "Placed")
    wait_until(lambda: ship("tick") or len(seen) == 2, "the first messages")
    append(database, "Placed")
    wait_until(lambda: ship("tick") or len(seen) == 3, "the third message")
    ship("tick")
    assert seen == ["Placed"] * 3


def test_13_6_an_async_function_reads_an_outbox_too(sqlite: Database) -> None:
    make_outbox(sqlite)
    append(sqlite, "Placed")
    seen: list[int] = []

    @db.trigger(arg_name="events", **outbox(sqlite))
    async def ship(events: list[RowChange]) -> None:
        seen.append(len(events))

    asyncio.run(ship())
    assert seen == [1]


def test_13_6_an_outbox_is_looked_up_when_it_first_runs_and_again_after_a_failure(sqlite: Database) -> None:
    seen: list[int] = []

    @db.trigger(arg_name="events", **outbox(sqlite))
    def ship(events: list[RowChange]) -> None:
        seen.append(len(events))

    with pytest.raises(Exception, match="my_outbox"):
        ship()
    make_outbox(sqlite)
    append(sqlite, "Placed")
    ship()
    assert seen == [1]


def test_13_6_a_function_app_is_importable_while_the_database_does_not_answer(sqlite: Database) -> None:
    url = f"postgresql://nobody@{HOST}:{free_port()}/none"

    @db.trigger(arg_name="events", **outbox(sqlite, url=url))
    def ship(events: list[RowChange]) -> None:
        """Ship."""

    with pytest.raises(DbConnectionError):
        ship()


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"strategy": "changes"}, "strategy='changes' is not known: use 'cursor' or 'outbox'"),
        ({"strategy": "outbox", "url": "sqlite://", "source": ""}, "needs the name of the outbox table"),
        ({"strategy": "outbox", "url": "sqlite://", "source": Broken(None)}, "a source of your own has a strategy"),
        ({"strategy": "outbox"}, "an outbox needs url=… or db_config=…"),
        ({"strategy": "outbox", "url": "sqlite://", "batch_size": 0}, "batch_size"),
        ({"strategy": "outbox", "url": "sqlite://", "types": "Placed"}, "types"),
        ({"position": "seq"}, "position=… is for an outbox"),
        ({"schema": "shop"}, "schema=… is for strategy='outbox'"),
        ({}, "source must be a source of changes"),
    ],
)
def test_13_6_what_does_not_go_together_is_refused_at_once(settings: dict[str, Any], message: str) -> None:
    def ship(events: list[RowChange]) -> None:
        """Ship."""

    given = {"source": "my_outbox", "checkpoint_store": StateStore(MemoryDocumentStore()), **settings}
    with pytest.raises((ConfigurationError, ValueError), match=message):
        db.trigger(arg_name="events", **given)(ship)
