"""State documents that are written inside a transaction of the application's database, with what else it changes."""

from __future__ import annotations

from sqlalchemy.engine import Connection, Engine
from sqlalchemy.exc import IntegrityError

from ...core.clock import new_id
from ...core.errors import Conflict
from ..documents import DocumentStore, ETag, Written
from .sql import SqlDocumentStore


def are_in(documents: DocumentStore, database: Engine) -> bool:
    """Return whether documents are kept in a database, so that a transaction there can change them."""
    return isinstance(documents, SqlDocumentStore) and documents.engine.url == database.url


class TransactionDocuments(SqlDocumentStore):
    """The state documents of the application's database, written on a connection whose transaction is open.

    They are read from beside it, so a document that was written here is seen once the transaction has committed.
    """

    def __init__(self, engine: Engine, connection: Connection) -> None:
        super().__init__(engine)
        self._connection = connection

    @classmethod
    def of(cls, documents: DocumentStore, connection: Connection | None) -> DocumentStore:
        """Return the documents as they are changed in a transaction; as they are when there is none."""
        if connection is None or not isinstance(documents, SqlDocumentStore):
            return documents
        return cls(documents.engine, connection)

    def create(self, name: str, content: bytes) -> Written:
        """Insert the document; it counts once the transaction commits.

        Raises:
            Conflict: there is one; the transaction is of no use any more.
        """
        etag = ETag(new_id())
        if self.read(name) is not None:
            raise Conflict(f"The state document '{name}' exists already.")
        try:
            self._connection.execute(self._insert, {"name": name, "content": content, "etag": etag})
        except IntegrityError as error:  # another was faster
            raise Conflict(f"The state document '{name}' exists already.") from error
        return Written(etag, self._present_time(self._connection))

    def replace(self, name: str, content: bytes, if_match: ETag) -> Written:
        """Replace the document; it counts once the transaction commits."""
        return self.replace_on(self._connection, name, content, if_match)
