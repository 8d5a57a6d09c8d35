"""``BlobCheckpointStore``: the name and signature of azure-functions-db, over the state kernel.

A blob that azure-functions-db wrote at its own path, ``state/{poller_name}.json``, is taken over where it is: the old
and the new package contend for one lease, so a rolling deployment never runs both at once.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..core.clock import Clock
from ..core.names import checked_name
from ..core.types import SourceDescriptor
from .store import StateStore

if TYPE_CHECKING:
    from azure.storage.blob import ContainerClient


class BlobCheckpointStore(StateStore):
    """Checkpoints and leases in Azure Blob Storage, one blob per poller.

    ``source_fingerprint`` is what a caller of the five-method protocol vouches for; a ``PollTrigger`` passes its
    source's own description, including the forms older packages stored. With ``create_container`` a missing container
    is made on first use; making this object never talks to the storage account.
    """

    def __init__(
        self,
        *,
        container_client: ContainerClient,
        source_fingerprint: str,
        app_name: str | None = None,
        skew_margin_seconds: float | None = None,
        clock: Clock | None = None,
        create_container: bool = False,
    ) -> None:
        from .stores.blob import BlobDocumentStore

        super().__init__(
            BlobDocumentStore(container_client, create_container=create_container),
            app_name=app_name,
            skew_margin_seconds=skew_margin_seconds,
            clock=clock,
        )
        self._source_fingerprint = source_fingerprint
        self._names: dict[str, str] = {}

    def document_name(self, poller_name: str) -> str:
        """Return the older package's path when it has a blob there, else ``state/{app_name}/{poller_name}.json``."""
        if poller_name not in self._names:
            older = f"state/{checked_name('The trigger name', poller_name)}.json"
            is_there = self.documents.read(older) is not None
            self._names[poller_name] = older if is_there else super().document_name(poller_name)
        return self._names[poller_name]

    def _declared_source(self) -> SourceDescriptor:
        return SourceDescriptor(name="declared", kind="declared", fingerprint=self._source_fingerprint)
