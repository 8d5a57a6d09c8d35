"""Registries under test on every kind of store, and time that stands still until it is stepped, for waiters too."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from azure.storage.blob import ContainerClient

from holdfast.core.config import DbConfig
from holdfast.database.pools import EngineProvider
from holdfast.engines.registry import Registry, RegistryView
from holdfast.lease.documents import DocumentStore
from holdfast.lease.stores.blob import BlobDocumentStore
from holdfast.lease.stores.memory import MemoryDocumentStore
from holdfast.lease.stores.sql import SqlDocumentStore
from tests.clocks import SteppedClock, SteppedTimeStore
from tests.components.azurite import AzuriteServer
from tests.components.mariadb import MariadbServer
from tests.components.postgres import PostgresServer
from tests.lease.faulty import FaultyDocumentStore

SHORT_SECONDS = 0.3  # above the longest pause of a release: nobody steps the clock for it


@contextlib.contextmanager
def opened(kind: str, request: pytest.FixtureRequest, directory: Path) -> Iterator[DocumentStore]:
    """Open an empty store that several tests share, each with a registry of its own name."""
    match kind:
        case "memory":
            yield MemoryDocumentStore()
        case "blob":
            server: AzuriteServer = request.getfixturevalue("azurite")
            with ContainerClient.from_connection_string(server.connection_string, server.create_container()) as client:
                yield BlobDocumentStore(client)
        case "sqlite":
            yield from _sql(f"sqlite:///{directory / 'registry.db'}")
        case _:
            database_server: PostgresServer | MariadbServer = request.getfixturevalue(kind)
            database_server.start()  # a test before this one may have left it stopped
            database = database_server.create_database()
            yield from _sql(database_server.url(database))
            database_server.drop_database(database)


def _sql(url: str) -> Iterator[DocumentStore]:
    engine = EngineProvider().create_isolated_engine(DbConfig(connection_url=url))
    store = SqlDocumentStore(engine)
    store.create_table()
    yield store
    engine.dispose()


class HandClock(SteppedClock):
    """A clock that only ``advance`` moves: who waits on it sleeps until enough was stepped. Short pauses are none.

    A wait counts from the time that its thread saw last: who was about to wait while it was stepped oversleeps nothing.
    """

    def __init__(self) -> None:
        super().__init__()
        self._moved = threading.Condition()
        self._seen = threading.local()

    def monotonic(self) -> float:
        self._seen.passed = self.passed
        return self.passed

    def wait(self, event: threading.Event, seconds: float) -> bool:
        with self._moved:
            end = getattr(self._seen, "passed", self.passed) + seconds
            while seconds > SHORT_SECONDS and not event.is_set() and self.passed < end:
                self._moved.wait(0.01)  # an event that is set tells nobody
            self._seen.passed = self.passed
        return event.is_set()

    def advance(self, seconds: float) -> None:
        with self._moved:
            self.passed += seconds
            self._moved.notify_all()


class Place:
    """A registry over a real store that fails on cue, with time that the test steps; ``other`` sees no faults."""

    def __init__(self, store: DocumentStore, name: str) -> None:
        self.clock = HandClock()
        self.store = SteppedTimeStore(store, self.clock)
        self.faulty = FaultyDocumentStore(self.store)
        self.registry = Registry(self.faulty, name=name, clock=self.clock)
        self.other = Registry(self.store, name=name, clock=self.clock)

    @property
    def margin_seconds(self) -> float:
        return self.store.skew_margin_seconds or 0.0

    def view(self) -> RegistryView:
        found = self.other.read()
        assert found is not None
        return found

    def take_over(self, job_id: str = "thief", after_seconds: float = 0.0) -> None:
        """Let the present lock run out, and another job take it."""
        until = self.view().lock.until
        assert until is not None
        self.clock.advance((until - self.clock.now()).total_seconds() + self.margin_seconds + after_seconds)
        self.other.acquire(job_id)
