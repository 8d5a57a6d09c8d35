"""State documents as blobs of an Azure Storage container."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

from holdfast.lease.documents import ETag, Snapshot, Written

from ...core.extras import needed
from ._http import SKEW_MARGIN_SECONDS, Call, Place
from ._names import checked_document_name

with needed("BlobDocumentStore needs azure-storage-blob", "azure"):
    from azure.core.exceptions import ResourceExistsError, ResourceNotFoundError
    from azure.storage.blob import ContainerClient, ContentSettings

    from ._azure import MISSING, code_of, one_attempt, taken_by, unmodified


class BlobDocumentStore:
    """One block blob per document, under the document's own name.

    Conditions are ``If-Match`` and ``If-None-Match`` on the blob's etag, which Azure never reuses. Each call
    is one HTTP request: the client's own retries are switched off for it, because a retried conditional
    write would meet its own first attempt. If the process dies during a write, Azure has either the old blob
    or the new one.

    Every call raises ``Unavailable`` when the service surely did nothing, and ``StateStoreError`` when the
    container is missing or access to it is refused; a write raises ``Ambiguous`` when its answer was lost.

    Args:
        container_client: the container, with whatever credential you use; it must exist. Any object will do that has
            the client's methods which are called here; a method is passed the options that it takes.
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
        self._name = str(getattr(container_client, "container_name", type(container_client).__name__))
        account = getattr(container_client, "account_name", None)
        self._place = Place(
            f"container '{self._name}'" + ("" if account is None else f" of account '{account}'"),
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
        call = Call(self._place, "open", self._name)
        with one_attempt(call, self._timeout_seconds) as attempt, contextlib.suppress(ResourceExistsError):
            self._container.create_container(**taken_by(self._container.create_container, attempt.options))

    def read(self, name: str) -> Snapshot | None:
        """Return the blob with the time of the answer, or None when there is none."""
        blob = self._container.get_blob_client(checked_document_name(name))
        with one_attempt(Call(self._place, "read", name), self._timeout_seconds) as attempt:
            try:
                download = blob.download_blob(**taken_by(blob.download_blob, attempt.options))
                return Snapshot(download.readall(), ETag(download.properties.etag), attempt.date)
            except ResourceNotFoundError as error:
                if code_of(error) == "ContainerNotFound" and self._creates_container:
                    self._create_container()  # whoever writes a document has looked for it first
                    return None
                if code_of(error) == "BlobNotFound" or error.status_code is None:  # no answer: a client of one's own
                    return None
                raise

    def create(self, name: str, content: bytes) -> Written:
        """Write a blob that must not exist yet.

        Raises:
            Conflict: it exists; nothing was changed.
        """
        return self._upload(Call(self._place, "create", name), content, {"overwrite": False, **MISSING})

    def replace(self, name: str, content: bytes, if_match: ETag) -> Written:
        """Overwrite the blob read with ``if_match``.

        Raises:
            Conflict: it changed since, or is gone; nothing was changed.
        """
        return self._upload(Call(self._place, "replace", name), content, {"overwrite": True, **unmodified(if_match)})

    def delete(self, name: str, if_match: ETag) -> None:
        """Delete the blob read with ``if_match``, and its snapshots.

        Raises:
            Conflict: it changed since, or is gone; nothing was changed.
        """
        blob = self._container.get_blob_client(checked_document_name(name))
        with one_attempt(Call(self._place, "delete", name), self._timeout_seconds) as attempt:
            options = taken_by(blob.delete_blob, {"delete_snapshots": "include", **attempt.options})
            blob.delete_blob(**unmodified(if_match), **options)

    def list(self, prefix: str) -> Iterator[str]:
        """Yield the names that start with ``prefix``, in ascending order, as they were at the call."""
        with one_attempt(Call(self._place, "list", prefix), self._timeout_seconds) as attempt:
            options = taken_by(self._container.list_blob_names, attempt.options)
            return iter(sorted(self._container.list_blob_names(name_starts_with=prefix, **options)))

    def close(self) -> None:
        """Close the client's connections; the store cannot be used after that."""
        self._container.close()

    def _upload(self, call: Call, content: bytes, condition: dict[str, Any]) -> Written:
        blob = self._container.get_blob_client(checked_document_name(call.name))
        with one_attempt(call, self._timeout_seconds) as attempt:
            settings = {"content_settings": ContentSettings(content_type="application/json"), **attempt.options}
            answer = blob.upload_blob(content, **condition, **taken_by(blob.upload_blob, settings))
            return Written(ETag(answer["etag"]), attempt.date)
