"""A document store in this process's memory, for tests and for programs that are one process."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from datetime import datetime
from threading import Lock

from holdfast.core.clock import SystemClock
from holdfast.core.errors import Conflict
from holdfast.lease.documents import ETag, Snapshot, Written

from ._names import checked_document_name


class MemoryDocumentStore:
    """Documents in a dictionary behind a lock: safe between threads, gone when the process ends.

    Its time is exact: every snapshot and write carries what ``clock`` returns (the machine's UTC time when
    none is given). Etags count up over the whole store, so one never recurs, not even after a delete.
    """

    skew_margin_seconds: float | None = None

    def __init__(self, clock: Callable[[], datetime] | None = None) -> None:
        self._clock = clock if clock is not None else SystemClock().now
        self._lock = Lock()
        self._etags = (ETag(str(number)) for number in itertools.count(1))
        self._documents: dict[str, tuple[bytes, ETag]] = {}

    def read(self, name: str) -> Snapshot | None:
        """Return the document, or None when there is none."""
        key = checked_document_name(name)
        with self._lock:
            found = self._documents.get(key)
            return None if found is None else Snapshot(*found, store_time=self._clock())

    def create(self, name: str, content: bytes) -> Written:
        """Write a document that must not exist yet.

        Raises:
            Conflict: it exists; nothing was changed.
        """
        key = checked_document_name(name)
        with self._lock:
            if key in self._documents:
                raise Conflict(f"The document '{name}' already exists in memory; nothing was written.")
            return self._put(key, content)

    def replace(self, name: str, content: bytes, if_match: ETag) -> Written:
        """Overwrite the document read with ``if_match``.

        Raises:
            Conflict: it changed since, or is gone; nothing was changed.
        """
        key = checked_document_name(name)
        with self._lock:
            self._check(key, if_match)
            return self._put(key, content)

    def delete(self, name: str, if_match: ETag) -> None:
        """Delete the document read with ``if_match``.

        Raises:
            Conflict: it changed since, or is gone; nothing was changed.
        """
        key = checked_document_name(name)
        with self._lock:
            self._check(key, if_match)
            del self._documents[key]

    def list(self, prefix: str) -> Iterator[str]:
        """Yield the names that start with ``prefix``, in ascending order, as they were at the call."""
        with self._lock:
            return iter(sorted(name for name in self._documents if name.startswith(prefix)))

    def _check(self, key: str, if_match: ETag) -> None:
        found = self._documents.get(key)
        if found is None or found[1] != if_match:
            fact = "is gone" if found is None else "has changed"
            raise Conflict(f"The document '{key}' {fact} in memory since it was read; nothing was written.")

    def _put(self, key: str, content: bytes) -> Written:
        etag = next(self._etags)
        self._documents[key] = (bytes(content), etag)
        return Written(etag, self._clock())
