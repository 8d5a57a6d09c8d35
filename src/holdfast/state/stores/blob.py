"""State documents as blobs of an Azure Storage container."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

from holdfast.core.errors import MissingDependencyError
from holdfast.state.documents import ETag, Snapshot, Written

from ._http import SKEW_MARGIN_SECONDS, Call, Place
from ._names import checked_document_name

try:
    from azure.core import MatchConditions
    from azure.core.exceptions import ResourceExistsError, ResourceNotFoundError
    from azure.storage.blob import ContainerClient, ContentSettings

    from ._azure import code_of, one_attempt
except ImportError as error:
    raise MissingDependencyError(
        "BlobDocumentStore needs azure-storage-blob: run \"pip install 'holdfast[azure]'\"."
    ) from error


class BlobDocumentStore:
    """One block blob per document, under the document's own name.

    Conditions are ``If-Match`` and ``If-None-Match`` on the blob's etag, which Azure never reuses. Each call
    is one HTTP request: the client's own retries are switched off for it, because a retried conditional
    write would meet its own first attempt. If the process dies during a write, Azure has either the old blob
    or the new one.

    Every call raises ``Unavailable`` when the service surely did nothing, and ``StateStoreError`` when the
    container is missing or access to it is refused; a write raises ``Ambiguous`` when its answer was lost.

    Args:
        container_client: the container, with whatever credential you use; it must exist.
        timeout_seconds: how long to wait for a connection, and for each part of an answer.
        create_container: make the container on first use when it is missing, instead of raising.
    """

    skew_margin_seconds: float | None = SKEW_MARGIN_SECONDS

    def __init__(
        self, container_client: ContainerClient, *, timeout_seconds: float = 10.0, create_container: bool = False
    ) -> None:
        self._container = container_client
        self._timeout_seconds = timeout_seconds
        self._creates_container = create_container
        self._place = Place(
            f"container '{container_client.container_name}' of account '{container_client.account_name}'",
            "Check the key or connection string, or give this identity 'Storage Blob Data Contributor'.",
        )

    @classmethod
    def from_connection_string(cls, connection_string: str, container: str = "db-state") -> BlobDocumentStore:
        """Return a store on ``container``, which is created when it is missing.

        Raises:
            Unavailable: the account does not answer.
            StateStoreError: the account refuses the credential.
        """
        store = cls(ContainerClient.from_connection_string(connection_string, container))
        store._create_container()
        return store

    def _create_container(self) -> None:
        """Make the container; harmless when it exists, or when another process makes it at the same time."""
        call = Call(self._place, "open", self._container.container_name)
        with one_attempt(call, self._timeout_seconds) as attempt, contextlib.suppress(ResourceExistsError):
            self._container.create_container(**attempt.options)

    def read(self, name: str) -> Snapshot | None:
        """Return the blob with the time of the answer, or None when there is none."""
        blob = self._container.get_blob_client(checked_document_name(name))
        with one_attempt(Call(self._place, "read", name), self._timeout_seconds) as attempt:
            try:
                download = blob.download_blob(**attempt.options)
                return Snapshot(download.readall(), ETag(download.properties.etag), attempt.date)
            except ResourceNotFoundError as error:
                if code_of(error) == "ContainerNotFound" and self._creates_container:
                    self._create_container()  # whoever writes a document has looked for it first
                    return None
                if code_of(error) == "BlobNotFound":
                    return None
                raise

    def create(self, name: str, content: bytes) -> Written:
        """Write a blob that must not exist yet.

        Raises:
            Conflict: it exists; nothing was changed.
        """
        return self._upload(Call(self._place, "create", name), content, {"overwrite": False})

    def replace(self, name: str, content: bytes, if_match: ETag) -> Written:
        """Overwrite the blob read with ``if_match``.

        Raises:
            Conflict: it changed since, or is gone; nothing was changed.
        """
        return self._upload(Call(self._place, "replace", name), content, {"overwrite": True, **_unmodified(if_match)})

    def delete(self, name: str, if_match: ETag) -> None:
        """Delete the blob read with ``if_match``, and its snapshots.

        Raises:
            Conflict: it changed since, or is gone; nothing was changed.
        """
        blob = self._container.get_blob_client(checked_document_name(name))
        with one_attempt(Call(self._place, "delete", name), self._timeout_seconds) as attempt:
            blob.delete_blob(delete_snapshots="include", **_unmodified(if_match), **attempt.options)

    def list(self, prefix: str) -> Iterator[str]:
        """Yield the names that start with ``prefix``, in ascending order, as they were at the call."""
        with one_attempt(Call(self._place, "list", prefix), self._timeout_seconds) as attempt:
            return iter(sorted(self._container.list_blob_names(name_starts_with=prefix, **attempt.options)))

    def close(self) -> None:
        """Close the client's connections; the store cannot be used after that."""
        self._container.close()

    def _upload(self, call: Call, content: bytes, condition: dict[str, Any]) -> Written:
        blob = self._container.get_blob_client(checked_document_name(call.name))
        with one_attempt(call, self._timeout_seconds) as attempt:
            answer = blob.upload_blob(
                content,
                content_settings=ContentSettings(content_type="application/json"),
                **condition,
                **attempt.options,
            )
            return Written(ETag(answer["etag"]), attempt.date)


def _unmodified(if_match: ETag) -> dict[str, Any]:
    return {"etag": str(if_match), "match_condition": MatchConditions.IfNotModified}
