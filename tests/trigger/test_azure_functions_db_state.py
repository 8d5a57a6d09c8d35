"""A state blob that azure-functions-db 0.8.3 wrote is taken over without a reset."""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any

import azure_functions_db as old
import pytest
from azure.storage.blob import ContainerClient
from sqlalchemy import create_engine, text

import holdfast as new
from tests.components.azurite import AzuriteServer
from tests.components.processes import wait_until


@pytest.fixture
def container(azurite: AzuriteServer, azurite_container: str) -> Iterator[ContainerClient]:
    with ContainerClient.from_connection_string(azurite.connection_string, azurite_container) as client:
        yield client


def fill(url: str) -> str:
    """Create five events with distinct and equal times; return the URL both packages are given."""
    given = url.replace("postgresql://", "postgresql+psycopg://")
    engine = create_engine(given)
    with engine.begin() as connection:
        connection.execute(
            text("CREATE TABLE events (id BIGINT PRIMARY KEY, at TIMESTAMPTZ NOT NULL DEFAULT now(), amount NUMERIC)")
        )
        connection.execute(text("CREATE INDEX ON events (at, id)"))
        moment = datetime(2026, 1, 1, 12, 0, 0, 123456, tzinfo=UTC)
        connection.execute(
            text("INSERT INTO events VALUES (:id, :at, 1.50)"), [{"id": each, "at": moment} for each in range(1, 6)]
        )
    engine.dispose()
    return given


@pytest.fixture
def providers() -> Iterator[dict[str, Any]]:
    """Engines that are closed at the end of the test."""
    made: dict[str, Any] = {"old": old.EngineProvider(), "new": new.EngineProvider()}
    yield made
    for provider in made.values():
        provider.dispose_all()


def definition(url: str, provider: Any) -> dict[str, Any]:
    return {
        "engine_provider": provider,
        "url": url,
        "table": "events",
        "cursor_column": "at",
        "pk_columns": ["id"],
        "where": "amount > :least",
        "parameters": {"least": 1},
    }


def test_the_newer_package_goes_on_where_the_older_one_stopped(
    container: ContainerClient, postgres_url: str, providers: dict[str, Any]
) -> None:
    url = fill(postgres_url)
    old_source = old.SqlAlchemySource(**definition(url, providers["old"]))
    old_trigger = old.PollTrigger(
        name="events",
        source=old_source,
        checkpoint_store=old.BlobCheckpointStore(
            container_client=container, source_fingerprint=old_source.source_descriptor.fingerprint
        ),
        batch_size=3,
        lease_ttl_seconds=5,
    )
    before: list[object] = []
    assert old_trigger.run(timer=None, handler=lambda events: before.extend(e.pk["id"] for e in events)) == 3
    written = json.loads(container.download_blob("state/events.json").readall())
    assert "revision" not in written, "the blob was not written by the older package"

    source = new.SqlAlchemySource(**definition(url, providers["new"]))
    assert written["source_fingerprint"] in source.source_descriptor.legacy_fingerprints
    store = new.BlobCheckpointStore(container_client=container, source_fingerprint=source.source_descriptor.fingerprint)
    trigger = new.PollTrigger(name="events", source=source, checkpoint_store=store, batch_size=10, lease_ttl_seconds=10)
    after: list[object] = []

    def run() -> int:
        return trigger.run(timer=None, handler=lambda events: after.extend(e.pk["id"] for e in events))

    wait_until(run, "the rest to be delivered")
    assert before == [1, 2, 3]
    assert after == [4, 5], "rows were repeated or skipped at the take-over"
    names = [blob.name for blob in container.list_blobs()]
    assert names == ["state/events.json"], "the state was not upgraded in place"
    upgraded = json.loads(container.download_blob("state/events.json").readall())
    assert upgraded["checkpoint"]["cursor"]["kind"] == "timestamp+pk"
    assert upgraded["lease"]["fencing_token"] > written["lease"]["fencing_token"]


def test_a_lease_the_older_package_holds_is_respected(
    container: ContainerClient, postgres_url: str, providers: dict[str, Any]
) -> None:
    url = fill(postgres_url)
    old_source = old.SqlAlchemySource(**definition(url, providers["old"]))
    old_store = old.BlobCheckpointStore(
        container_client=container, source_fingerprint=old_source.source_descriptor.fingerprint
    )
    old_store.acquire_lease("events", 60)
    source = new.SqlAlchemySource(**definition(url, providers["new"]))
    store = new.BlobCheckpointStore(container_client=container, source_fingerprint=source.source_descriptor.fingerprint)
    with pytest.raises(new.LeaseConflictError):
        store.acquire("events", ttl_seconds=30, source=source.source_descriptor)


def test_the_five_methods_of_the_older_protocol_work(container: ContainerClient) -> None:
    store = new.BlobCheckpointStore(container_client=container, source_fingerprint="sha256:x", app_name="shop")
    lease = store.acquire_lease("events", 30)
    with pytest.raises(new.LeaseConflictError):
        store.acquire_lease("events", 30)
    store.renew_lease("events", lease, 30)
    store.commit_checkpoint("events", {"cursor": ["a", 1], "batch_id": "b"}, lease)
    assert store.load_checkpoint("events")["cursor"] == ["a", 1]
    store.release_lease("events", lease)
    with pytest.raises(new.LostLeaseError):
        store.commit_checkpoint("events", {"cursor": ["b", 2]}, lease)
    assert store.acquire_lease("events", 30) != lease, "not free at once after a release"
    other = new.BlobCheckpointStore(container_client=container, source_fingerprint="sha256:y", app_name="shop")
    with pytest.raises(new.FingerprintMismatchError):
        other.acquire_lease("events", 30)


def test_a_store_written_for_the_older_protocol_is_accepted(sqlite_url: str, providers: dict[str, Any]) -> None:
    class OldStore:
        """Keeps state in a dictionary, as user code written against the older package would."""

        def __init__(self) -> None:
            self.checkpoint: dict[str, object] = {}
            self.calls: list[str] = []

        def acquire_lease(self, poller_name: str, ttl_seconds: int) -> str:
            self.calls.append("acquire")
            return "me:7"

        def renew_lease(self, poller_name: str, lease_id: str, ttl_seconds: int) -> None:
            self.calls.append("renew")

        def release_lease(self, poller_name: str, lease_id: str) -> None:
            self.calls.append("release")

        def load_checkpoint(self, poller_name: str) -> dict[str, object]:
            return json.loads(json.dumps(self.checkpoint))  # type: ignore[no-any-return]  # JSON gives Any

        def commit_checkpoint(self, poller_name: str, checkpoint: dict[str, object], lease_id: str) -> None:
            self.checkpoint = checkpoint

    engine = create_engine(sqlite_url)
    with engine.begin() as connection:
        connection.execute(text("CREATE TABLE items (id INTEGER PRIMARY KEY AUTOINCREMENT)"))
        connection.execute(text("INSERT INTO items (id) VALUES (1), (2), (3)"))
    engine.dispose()
    store = OldStore()
    source = new.SqlAlchemySource(
        url=sqlite_url, table="items", cursor_column="id", pk_columns=["id"], engine_provider=providers["new"]
    )
    trigger = new.PollTrigger(name="items", source=source, checkpoint_store=store, batch_size=2, max_batches_per_tick=5)
    tokens: set[int] = set()

    def handle(events: list[new.RowChange], context: new.PollContext) -> None:
        tokens.add(context.fencing_token)
        with pytest.raises(new.ConfigurationError, match="not kept in a SQL database"):
            _ = context.transaction

    assert trigger.run(timer=None, handler=handle) == 3
    assert trigger.run(timer=None, handler=handle) == 0
    assert tokens == {7}
    assert store.calls == ["acquire", "release", "acquire", "release"]
