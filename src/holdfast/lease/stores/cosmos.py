"""State documents as items of an Azure Cosmos DB container (the API for NoSQL)."""

from __future__ import annotations

import base64
from collections.abc import Iterator, Mapping
from typing import Any

from holdfast.core.errors import ConfigurationError, UnreadableStateError
from holdfast.lease.documents import ETag, Snapshot, Written

from ...core.extras import needed
from ._http import SKEW_MARGIN_SECONDS, Call, Place
from ._names import encoded_key

with needed("CosmosDocumentStore needs azure-cosmos", "cosmos"):
    from azure.cosmos import ContainerProxy
    from azure.cosmos.exceptions import CosmosResourceNotFoundError

    from ._azure import one_attempt, unmodified

_LONGEST_ID = 1023


class CosmosDocumentStore:
    """One item per document; its id is the encoded name, its content a string property.

    Conditions are ``If-Match`` on the item's etag, and a create that fails on an existing id. A write leaves
    at most once per call, whatever the client's retry settings are: a retried conditional write would meet
    its own first attempt. If the process dies during a write, Cosmos has either the old item or the new one.

    The account must have **one write region**: with several, Cosmos accepts conflicting writes and settles
    them later, so no condition holds. With session consistency (the default) another process may read an
    older version for a while; its write then ends in ``Conflict``, never in a lost update.

    Every call raises ``Unavailable`` when the service surely did nothing, and ``StateStoreError`` when the
    container is missing or access to it is refused; a write raises ``Ambiguous`` when its answer was lost.

    Args:
        container_proxy: the container, from a client with whatever credential you use; it must exist.
        partition_key_path: the container's partition key, one level deep; every item carries its id there.
        timeout_seconds: how long to wait for a connection, and for each part of an answer.

    Raises:
        ConfigurationError: the partition key path has not one level.
    """

    skew_margin_seconds: float | None = SKEW_MARGIN_SECONDS

    def __init__(
        self,
        container_proxy: ContainerProxy,
        *,
        partition_key_path: str = "/id",
        timeout_seconds: float = 10.0,
    ) -> None:
        root, _, self._partition_key = partition_key_path.partition("/")
        if root or not self._partition_key or "/" in self._partition_key:
            raise ConfigurationError(
                f"The partition key path {partition_key_path!r} cannot be used: give one level, as '/id'."
            )
        self._container = container_proxy
        self._timeout_seconds = timeout_seconds
        self._place = Place(
            f"Cosmos container '{container_proxy.id}'",
            "Check the account key, or give this identity the role 'Cosmos DB Built-in Data Contributor'.",
        )

    def read(self, name: str) -> Snapshot | None:
        """Return the document with the time of the answer, or None when there is none.

        Raises:
            UnreadableStateError: the item is not one that this store wrote.
        """
        key = _key(name)
        with one_attempt(Call(self._place, "read", name), self._timeout_seconds) as attempt:
            try:
                item = self._container.read_item(key, partition_key=key, **attempt.options)
            except CosmosResourceNotFoundError as error:
                if attempt.place_is_missing(error):
                    raise
                return None
        return Snapshot(_content(item, name), ETag(item["_etag"]), attempt.date)

    def create(self, name: str, content: bytes) -> Written:
        """Write an item that must not exist yet.

        Raises:
            Conflict: it exists; nothing was changed.
        """
        body = self._body(name, content)
        with one_attempt(Call(self._place, "create", name), self._timeout_seconds) as attempt:
            item = self._container.create_item(body, **attempt.guarded_options)
            return Written(ETag(item["_etag"]), attempt.date)

    def replace(self, name: str, content: bytes, if_match: ETag) -> Written:
        """Overwrite the item read with ``if_match``.

        Raises:
            Conflict: it changed since, or is gone; nothing was changed.
        """
        body = self._body(name, content)
        with one_attempt(Call(self._place, "replace", name), self._timeout_seconds) as attempt:
            item = self._container.replace_item(body["id"], body, **unmodified(if_match), **attempt.guarded_options)
            return Written(ETag(item["_etag"]), attempt.date)

    def delete(self, name: str, if_match: ETag) -> None:
        """Delete the item read with ``if_match``.

        Raises:
            Conflict: it changed since, or is gone; nothing was changed.
        """
        key = _key(name)
        with one_attempt(Call(self._place, "delete", name), self._timeout_seconds) as attempt:
            self._container.delete_item(key, partition_key=key, **unmodified(if_match), **attempt.guarded_options)

    def list(self, prefix: str) -> Iterator[str]:
        """Yield the names that start with ``prefix``, in ascending order, as they were at the call."""
        with one_attempt(Call(self._place, "list", prefix), self._timeout_seconds) as attempt:
            found = self._container.query_items(
                "SELECT c.name FROM c WHERE STARTSWITH(c.name, @prefix)",
                parameters=[{"name": "@prefix", "value": prefix}],
                enable_cross_partition_query=True,
                **attempt.options,
            )
            return iter(sorted(item["name"] for item in found))

    def _body(self, name: str, content: bytes) -> dict[str, Any]:
        key = _key(name)
        return {self._partition_key: key, "id": key, "name": name, **_encoded(content)}


def _key(name: str) -> str:
    return encoded_key(name, _LONGEST_ID, "Cosmos")


def _encoded(content: bytes) -> dict[str, str]:
    try:
        return {"encoding": "utf-8", "content": content.decode()}
    except UnicodeDecodeError:
        return {"encoding": "base64", "content": base64.b64encode(content).decode()}


def _content(item: Mapping[str, Any], name: str) -> bytes:
    encoding, content = item.get("encoding"), item.get("content")
    if encoding == "utf-8" and isinstance(content, str):
        return content.encode()
    if encoding == "base64" and isinstance(content, str):
        return base64.b64decode(content)
    raise UnreadableStateError(
        f"The document '{name}' in Cosmos is corrupt: it has no content in a known encoding. Nothing was "
        "changed. Restore it from a backup, or delete the item to start from the beginning."
    )
