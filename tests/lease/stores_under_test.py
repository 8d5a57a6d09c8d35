"""Every document store on its real server, in the one shape the conformance suite works with."""

import contextlib
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
from azure.cosmos import CosmosClient
from azure.data.tables import TableClient
from azure.storage.blob import ContainerClient
from botocore.config import Config

from holdfast.core.config import DbConfig
from holdfast.database.pools import EngineProvider
from holdfast.lease.documents import DocumentStore
from holdfast.lease.stores.blob import BlobDocumentStore
from holdfast.lease.stores.cosmos import CosmosDocumentStore
from holdfast.lease.stores.file import FileDocumentStore
from holdfast.lease.stores.memory import MemoryDocumentStore
from holdfast.lease.stores.s3 import S3DocumentStore
from holdfast.lease.stores.sql import SqlDocumentStore
from holdfast.lease.stores.table import TableDocumentStore
from tests.components.azurite import AzuriteServer
from tests.components.cosmos import KEY as COSMOS_KEY
from tests.components.cosmos import CosmosServer
from tests.components.proxy import FaultProxy
from tests.components.s3 import CREDENTIALS, S3Server
from tests.components.server import Server

Redirect = Callable[[str], str]
Opener = Callable[[Redirect, float], DocumentStore]

# The Cosmos imitation answers 500 to the read of a missing item, unless a header that the real service
# ignores on such a read lets it skip its broken check of the partition key.
COSMOS_HEADERS = {"x-ms-documentdb-query-enablecrosspartition": "true"}


@dataclass(frozen=True, slots=True)
class StoreUnderTest:
    """An empty place for documents, and how to reach it.

    Attributes:
        open_through: opens another store on the same place; its address goes through the function given, so
            that a proxy can stand between, and an answer may take the seconds given.
        port: the server's, None when the store has no server.
        page_size: how many names one page of a listing holds, None when listings have no pages.
        etag_is_hash: whether equal bytes have equal etags.
        body_comes_later: whether a write sends its headers, waits to be asked, and sends the content then.
    """

    open_through: Opener
    port: int | None = None
    page_size: int | None = None
    etag_is_hash: bool = False
    body_comes_later: bool = False

    def open(self) -> DocumentStore:
        """Open another store, with connections of its own."""
        return self.open_through(lambda address: address, 10.0)

    def open_behind(self, proxy: FaultProxy, timeout_seconds: float = 10.0) -> DocumentStore:
        """Open another store whose every byte passes `proxy`."""
        return self.open_through(proxy.redirect, timeout_seconds)

    def sent_last_in_a_write(self, name: str) -> str:
        """Return a text in the last piece of a write of `name`, whose content must hold `in-{name}`."""
        return f"in-{name}" if self.body_comes_later else name


def build(kind: str, request: pytest.FixtureRequest, cleanup: contextlib.ExitStack) -> StoreUnderTest:
    """Return an empty store of `kind`; its clients are closed with `cleanup`."""
    return _BUILDERS[kind](request, cleanup)


def _memory(request: pytest.FixtureRequest, cleanup: contextlib.ExitStack) -> StoreUnderTest:
    store = MemoryDocumentStore()
    return StoreUnderTest(lambda redirect, seconds: store)


def _file(request: pytest.FixtureRequest, cleanup: contextlib.ExitStack) -> StoreUnderTest:
    directory: Path = request.getfixturevalue("tmp_path")
    return StoreUnderTest(lambda redirect, seconds: FileDocumentStore(directory / "state"))


def _blob(request: pytest.FixtureRequest, cleanup: contextlib.ExitStack) -> StoreUnderTest:
    server: AzuriteServer = request.getfixturevalue("azurite")
    container: str = request.getfixturevalue("azurite_container")

    def open_through(redirect: Redirect, timeout_seconds: float) -> DocumentStore:
        client = ContainerClient.from_connection_string(redirect(server.connection_string), container)
        cleanup.callback(client.close)
        return BlobDocumentStore(client, timeout_seconds=timeout_seconds)

    return StoreUnderTest(open_through, server.blob_port)


def _table(request: pytest.FixtureRequest, cleanup: contextlib.ExitStack) -> StoreUnderTest:
    server: AzuriteServer = request.getfixturevalue("azurite")
    table: str = request.getfixturevalue("azurite_table")

    def open_through(redirect: Redirect, timeout_seconds: float) -> DocumentStore:
        client = TableClient.from_connection_string(redirect(server.connection_string), table)
        cleanup.callback(client.close)
        return TableDocumentStore(client, timeout_seconds=timeout_seconds)

    return StoreUnderTest(open_through, server.table_port, page_size=1_000)


def _s3(request: pytest.FixtureRequest, cleanup: contextlib.ExitStack) -> StoreUnderTest:
    server: S3Server = request.getfixturevalue("s3_server")
    bucket: str = request.getfixturevalue("s3_bucket")

    def open_through(redirect: Redirect, timeout_seconds: float) -> DocumentStore:
        options: dict[str, Any] = {
            **CREDENTIALS,
            "endpoint_url": redirect(server.endpoint_url),
            "config": Config(connect_timeout=timeout_seconds, read_timeout=timeout_seconds),
        }
        store = S3DocumentStore.from_bucket(bucket, "holdfast/", **options)
        cleanup.callback(store.close)
        return store

    return StoreUnderTest(open_through, server.port, page_size=1_000, etag_is_hash=True, body_comes_later=True)


def _cosmos(request: pytest.FixtureRequest, cleanup: contextlib.ExitStack) -> StoreUnderTest:
    server: CosmosServer = request.getfixturevalue("cosmos_server")
    database, container = request.getfixturevalue("cosmos_container")

    def open_through(redirect: Redirect, timeout_seconds: float) -> DocumentStore:
        client = CosmosClient(
            redirect(server.endpoint), COSMOS_KEY, enable_endpoint_discovery=False, headers=COSMOS_HEADERS
        )
        cleanup.enter_context(client)
        proxy = client.get_database_client(database).get_container_client(container)
        return CosmosDocumentStore(proxy, timeout_seconds=timeout_seconds)

    return StoreUnderTest(open_through, server.port)


def _sql(url_fixture: str, server_fixture: str | None) -> Callable[..., StoreUnderTest]:
    def builder(request: pytest.FixtureRequest, cleanup: contextlib.ExitStack) -> StoreUnderTest:
        url: str = request.getfixturevalue(url_fixture)

        def open_through(redirect: Redirect, timeout_seconds: float) -> SqlDocumentStore:
            engine = EngineProvider().create_isolated_engine(DbConfig(connection_url=redirect(url)))
            cleanup.callback(engine.dispose)
            return SqlDocumentStore(engine)

        open_through(lambda address: address, 10.0).create_table()
        subject = StoreUnderTest(open_through)
        if server_fixture is None:
            return subject
        server: Server = request.getfixturevalue(server_fixture)
        return replace(subject, port=server.port)

    return builder


_BUILDERS: dict[str, Callable[[pytest.FixtureRequest, contextlib.ExitStack], StoreUnderTest]] = {
    "memory": _memory,
    "file": _file,
    "blob": _blob,
    "table": _table,
    "s3": _s3,
    "cosmos": _cosmos,
    "sqlite": _sql("sqlite_url", None),
    "postgres18": _sql("postgres_url", "postgres_server"),
    "postgres15": _sql("postgres15_url", "postgres15_server"),
    "mariadb": _sql("mariadb_url", "mariadb_server"),
}
ALL = tuple(_BUILDERS)
WITH_SERVER = ("blob", "table", "s3", "cosmos", "postgres18", "postgres15", "mariadb")
OVER_HTTP = ("blob", "table", "s3", "cosmos")
