"""A source is the same however its database is reached; what older releases stored is recognised and rewritten."""

from __future__ import annotations

import hashlib
import json
from typing import Any

import pytest

from holdfast import FingerprintMismatchError, SqlAlchemySource
from holdfast.core.types import SourceDescriptor
from holdfast.lease import document as doc
from holdfast.lease.store import StateStore
from holdfast.lease.stores.memory import MemoryDocumentStore

TTL = 30
HOME = "postgresql://shop:secret@db-1.internal:5432/shop"


def described(url: str, table: str = "orders", **settings: Any) -> SourceDescriptor:
    columns: dict[str, Any] = {"cursor_column": "at", "pk_columns": ["id"]}
    return SqlAlchemySource(url=url, table=table, **columns, **settings).source_descriptor


def form_1(user: str | None, host: str, port: int) -> str:
    """Return what the release before this one stored for the table `orders` in the database `shop`."""
    form = {
        "form": 1,
        "database": {"scheme": "postgresql", "user": user, "host": host, "port": port, "database": "shop"},
        "table": "orders",
        "cursor": "at",
        "keys": ["id"],
    }
    return "sha256:" + hashlib.sha256(json.dumps(form, sort_keys=True).encode()).hexdigest()


@pytest.mark.parametrize(
    "moved",
    [
        "postgresql://shop:other@db-1.internal:5432/shop",
        "postgresql://rotated:other@db-1.internal/shop",
        "postgresql+psycopg://shop@pooler.internal:6432/shop",
        "postgresql://shop@/shop?host=10.0.0.1:5432&host=10.0.0.2:5432&target_session_attrs=read-write",
        "postgresql://shop@/shop?host=/run/postgresql",
        "postgresql:///?service=primary&dbname=shop",
    ],
)
def test_another_way_to_the_same_database_is_the_same_source(moved: str) -> None:
    assert described(moved).fingerprint == described(HOME).fingerprint


@pytest.mark.parametrize(
    ("url", "table", "settings"),
    [
        ("postgresql://shop@db-1.internal/other", "orders", {}),
        ("mysql://shop@db-1.internal/shop", "orders", {}),
        (HOME, "drafts", {}),
        (HOME, "orders", {"where": "total > 1"}),
        (HOME, "orders", {"schema": "archive"}),
    ],
)
def test_other_rows_are_another_source(url: str, table: str, settings: dict[str, Any]) -> None:
    assert described(url, table, **settings).fingerprint != described(HOME).fingerprint


def test_odbc_databases_are_told_apart_by_their_names() -> None:
    def odbc(server: str, database: str) -> str:
        return described(f"mssql+pyodbc:///?odbc_connect=Server={server};Database={database};Uid=a;Pwd=b").fingerprint

    assert odbc("one", "shop") == odbc("two", "shop")
    assert odbc("one", "shop") != odbc("one", "other")


@pytest.fixture
def store() -> StateStore:
    return StateStore(MemoryDocumentStore(), app_name="shop")


def leave(store: StateStore, fingerprint: str) -> None:
    """Leave a checkpoint behind that another release wrote, with what it knows of."""
    document = {**doc.empty("orders"), "source_fingerprint": fingerprint, "checkpoint": {"cursor": 7}, "revision": 1}
    store.documents.create(store.document_name("orders"), doc.render(document))


@pytest.mark.parametrize(
    ("stored", "url"),
    [
        (form_1("shop", "db-1.internal", 5432), HOME),
        (form_1("shop", "localhost", 5432), "postgresql://shop@127.0.0.1/shop"),
        (form_1("shop", "127.0.0.1", 5432), "postgresql://shop@localhost/shop"),
        (described(HOME).legacy_fingerprints[-1], HOME),
    ],
    ids=["as it was", "localhost became an address", "an address became localhost", "azure-functions-db"],
)
def test_a_stored_fingerprint_is_recognised_and_rewritten(store: StateStore, stored: str, url: str) -> None:
    leave(store, stored)
    source = described(url)
    store.check("orders", source, "reject")
    lease = store.acquire("orders", ttl_seconds=TTL, source=source)
    assert lease.checkpoint == {"cursor": 7}
    lease.release()
    moved = described("postgresql://rotated@elsewhere.internal:6432/shop")
    assert store.acquire("orders", ttl_seconds=TTL, source=moved).checkpoint == {"cursor": 7}


def test_the_release_before_can_go_on_where_this_one_was(store: StateStore) -> None:
    store.acquire("orders", ttl_seconds=TTL, source=described(HOME)).release()
    view = store.read("orders")
    assert view is not None
    assert view.document["source_fingerprint"] == form_1("shop", "db-1.internal", 5432)


def test_what_the_release_before_wrote_meanwhile_counts(store: StateStore) -> None:
    """Back on the release before, the trigger was reset for another table: the newer form is of the former one."""
    store.acquire("orders", ttl_seconds=TTL, source=described(HOME)).release()
    snapshot = store.documents.read(store.document_name("orders"))
    assert snapshot is not None
    document = {**json.loads(snapshot.content), "source_fingerprint": "sha256:of another table"}
    store.documents.replace(store.document_name("orders"), doc.render(document), snapshot.etag)
    with pytest.raises(FingerprintMismatchError):
        store.acquire("orders", ttl_seconds=TTL, source=described(HOME))


def test_another_source_is_still_refused(store: StateStore) -> None:
    leave(store, form_1("shop", "db-1.internal", 5432))
    with pytest.raises(FingerprintMismatchError, match="reset"):
        store.acquire("orders", ttl_seconds=TTL, source=described(HOME, "drafts"))
