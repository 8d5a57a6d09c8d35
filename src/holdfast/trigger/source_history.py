"""How a trigger's source and its state stand to each other: whether what takes rows back takes the checkpoint, too."""

from __future__ import annotations

from functools import cached_property

from ..core.errors import ConfigurationError
from ..core.types import JsonObject
from ..database.history import History, UnknownHistory
from ..lease import document as doc
from ..lease.history import Finding, KeptHistory, begun, judged, kept_history
from ..lease.store import StateStore
from ..lease.stores.sql import SqlDocumentStore
from .sources.protocol import HistorySource


class SourceHistory:
    """The history of one trigger's source, as its checkpoint sees it."""

    def __init__(self, name: str, source: HistorySource, store: StateStore) -> None:
        self.name = name
        self.source = source
        self._store = store

    @classmethod
    def of(cls, name: str, source: object, store: object) -> SourceHistory | None:
        """Return it, None where the source tells nothing of its history, or the store keeps nothing of it."""
        return cls(name, source, store) if isinstance(source, HistorySource) and isinstance(store, StateStore) else None

    @cached_property
    def is_together(self) -> bool:
        """Return whether the state is in the source's own database."""
        documents = self._store.documents
        return isinstance(documents, SqlDocumentStore) and self.source.is_in(documents.engine)

    def present(self, kept: KeptHistory | None, *, marks: bool = False) -> History | UnknownHistory:
        """Return the source's history now, with its past since what is kept."""
        reader = None if self.is_together else f"{self._store.app_name}/{self.name}"
        return self.source.history(reader, None if kept is None else kept.timeline, marks=marks)

    def judged(self, kept: KeptHistory | None, present: History, checkpoint: JsonObject) -> Finding:
        """Return how a checkpoint fits.

        Raises:
            RestoredSourceError: nobody can know where to go on without missing rows.
        """
        transaction = self.source.transaction_of(checkpoint)
        return judged(self.name, kept, present, is_together=self.is_together, transaction=transaction)

    def begun(self, present: History, checkpoint: JsonObject) -> KeptHistory:
        """Return what is kept of a history of which nothing was kept yet."""
        return begun(present, checkpoint, is_together=self.is_together)

    def finding(self, document: doc.Document) -> Finding | None:
        """Return how the checkpoint in a document fits now; None where that is not known.

        Raises:
            RestoredSourceError: the trigger would deliver nothing.
        """
        kept = kept_history(document)
        present = self.present(kept)
        if isinstance(present, UnknownHistory):
            return None
        return self.judged(kept, present, document.get("checkpoint") or {})

    def to_adopt(self, document: doc.Document) -> KeptHistory | None:
        """Return the present history for a checkpoint that is to be kept; None where it is not known.

        Raises:
            ConfigurationError: the place cannot be kept: nothing that is written now would come behind it.
        """
        checkpoint = document.get("checkpoint") or {}
        present = self.present(None, marks=True)
        if isinstance(present, UnknownHistory):
            return None
        transaction = self.source.transaction_of(checkpoint)
        following = present.next_transaction
        if transaction is not None and following is not None and transaction >= following:
            raise ConfigurationError(
                f"The place of trigger '{self.name}' cannot be kept: it is behind transaction {transaction}, and what "
                f"is written now is of {following} and on, before it. Write pg_current_xact_id() into the "
                "column of the rows that are still to be delivered, and use 'holdfast trigger reset-to-cursor'."
            )
        return self.begun(present, checkpoint)
