"""State documents as entities of an Azure Storage table."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from holdfast.core.errors import (
    StateStoreError,
    UnreadableStateError,
)
from holdfast.lease.documents import ETag, Snapshot, Written

from ...core.extras import needed
from ._http import SKEW_MARGIN_SECONDS, Call, Failure, Place, classify
from ._names import decoded_name, encoded_key, encoded_name

with needed("TableDocumentStore needs azure-data-tables", "azure"):
    from azure.core.exceptions import ResourceExistsError, ResourceNotFoundError
    from azure.data.tables import TableClient, TableEntity, UpdateMode

    from ._azure import code_of, one_attempt, unmodified

_CHUNK_BYTES = 60 * 1024  # a property holds at most 64 KiB
_MOST_CHUNKS = 15  # an entity holds at most 1 MiB
_LARGEST_BYTES = _CHUNK_BYTES * _MOST_CHUNKS
_LONGEST_KEY = 512
_ROW = "document"


class TableDocumentStore:
    """One entity per document: the encoded name is its partition key, the content lies in binary properties.

    Conditions are ``If-Match`` on the entity's etag, and an insert that fails on an existing key. Each call
    is one HTTP request: the client's own retries are switched off for it, because a retried conditional
    write would meet its own first attempt. If the process dies during a write, the table has either the old
    entity or the new one. A document can have 900 KiB.

    Every call raises ``Unavailable`` when the service surely did nothing, and ``StateStoreError`` when the
    table is missing or access to it is refused; a write raises ``Ambiguous`` when its answer was lost.

    Args:
        table_client: the table, with whatever credential you use; it must exist.
        timeout_seconds: how long to wait for a connection, and for each part of an answer.
    """

    skew_margin_seconds: float | None = SKEW_MARGIN_SECONDS

    def __init__(self, table_client: TableClient, *, timeout_seconds: float = 10.0) -> None:
        self._table = table_client
        self._timeout_seconds = timeout_seconds
        self._place = Place(
            f"table '{table_client.table_name}' of account '{table_client.account_name}'",
            "Check the key or connection string, or give this identity 'Storage Table Data Contributor'.",
        )

    @classmethod
    def from_connection_string(cls, connection_string: str, table: str = "holdfaststate") -> TableDocumentStore:
        """Return a store on ``table``, which is created when it is missing.

        Raises:
            Unavailable: the account does not answer.
            StateStoreError: the account refuses the credential.
        """
        store = cls(TableClient.from_connection_string(connection_string, table))
        with one_attempt(Call(store._place, "open", table), store._timeout_seconds) as attempt:
            try:
                store._table.create_table(**attempt.options)
            except ResourceExistsError as error:
                if code_of(error) != "TableAlreadyExists":
                    raise
        return store

    def read(self, name: str) -> Snapshot | None:
        """Return the document with the time of the answer, or None when there is none.

        Raises:
            UnreadableStateError: the entity is not one that this store wrote.
        """
        key = _key(name)
        with one_attempt(Call(self._place, "read", name), self._timeout_seconds) as attempt:
            try:
                entity = self._table.get_entity(key, _ROW, **attempt.options)
            except ResourceNotFoundError as error:
                if code_of(error) == "TableNotFound":
                    raise
                return None
        return Snapshot(_content(entity, name), ETag(str(entity.metadata["etag"])), attempt.date)

    def create(self, name: str, content: bytes) -> Written:
        """Insert a document that must not exist yet.

        Raises:
            Conflict: it exists; nothing was changed.
            StateStoreError: it is larger than 900 KiB; nothing was sent.
        """
        entity = _entity(name, content)
        with one_attempt(Call(self._place, "create", name), self._timeout_seconds) as attempt:
            answer = self._table.create_entity(entity, **attempt.options)
            return Written(ETag(answer["etag"]), attempt.date)

    def replace(self, name: str, content: bytes, if_match: ETag) -> Written:
        """Overwrite the document read with ``if_match``.

        Raises:
            Conflict: it changed since, or is gone; nothing was changed.
            StateStoreError: it is larger than 900 KiB; nothing was sent.
        """
        entity = _entity(name, content)
        with one_attempt(Call(self._place, "replace", name), self._timeout_seconds) as attempt:
            answer = self._table.update_entity(
                entity, mode=UpdateMode.REPLACE, **unmodified(if_match), **attempt.options
            )
            return Written(ETag(answer["etag"]), attempt.date)

    def delete(self, name: str, if_match: ETag) -> None:
        """Delete the document read with ``if_match``.

        Raises:
            Conflict: it changed since, or is gone; nothing was changed.
        """
        key, call = _key(name), Call(self._place, "delete", name)
        with one_attempt(call, self._timeout_seconds) as attempt:
            self._table.delete_entity(key, _ROW, **unmodified(if_match), **attempt.options)
        if attempt.status == 404:  # the SDK keeps this answer to itself
            raise classify(call, Failure("it is gone", status=404))

    def list(self, prefix: str) -> Iterator[str]:
        """Yield the names that start with ``prefix``, in ascending order, as they were at the call."""
        low = encoded_name(prefix)
        with one_attempt(Call(self._place, "list", prefix), self._timeout_seconds) as attempt:
            entities = self._table.query_entities(
                "PartitionKey ge @low and PartitionKey lt @high and RowKey eq @row",
                parameters={
                    "low": low,
                    "high": low + "~",
                    "row": _ROW,
                },  # "~" is above every encoded character
                select=["PartitionKey"],
                **attempt.options,
            )
            return iter(sorted(decoded_name(entity["PartitionKey"]) for entity in entities))

    def close(self) -> None:
        """Close the client's connections; the store cannot be used after that."""
        self._table.close()


def _key(name: str) -> str:
    return encoded_key(name, _LONGEST_KEY, "an Azure table")


def _entity(name: str, content: bytes) -> dict[str, Any]:
    if len(content) > _LARGEST_BYTES:
        raise StateStoreError(
            f"The document '{name}' has {len(content)} bytes, but an Azure table entity can hold only "
            f"{_LARGEST_BYTES}; nothing was written. Keep it in a blob container or a database instead."
        )
    chunks = [content[start : start + _CHUNK_BYTES] for start in range(0, len(content), _CHUNK_BYTES)]
    properties = {f"content{number:02d}": chunk for number, chunk in enumerate(chunks)}
    return {"PartitionKey": _key(name), "RowKey": _ROW, "size": len(content), **properties}


def _content(entity: TableEntity, name: str) -> bytes:
    chunks = [entity[key] for key in sorted(entity) if key.startswith("content")]
    content = b"".join(chunk for chunk in chunks if isinstance(chunk, bytes))
    if len(content) != entity.get("size"):
        raise UnreadableStateError(
            f"The document '{name}' in the table is corrupt: its parts do not add up to its size. Nothing "
            "was changed. Restore it from a backup, or delete the entity to start from the beginning."
        )
    return content
