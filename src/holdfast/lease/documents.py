"""The port between the state kernel and any place that can keep a small document.

A document store keeps named byte strings and offers one guarantee: a write with a condition
either finds the document exactly as it was when the given etag was handed out, or fails with
``Conflict`` and changes nothing. Everything else (leases, fencing, checkpoints) is built on that
in ``document.py`` and ``store.py``; a store knows nothing about what the bytes mean.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime
from typing import NewType, Protocol, runtime_checkable

ETag = NewType("ETag", str)


@dataclass(frozen=True, slots=True)
class Snapshot:
    """A document as it was read, with the store's own time of the answer (aware, UTC) if it tells one."""

    content: bytes
    etag: ETag
    store_time: datetime | None


@dataclass(frozen=True, slots=True)
class Written:
    """What a successful write returns: the condition for the next write, and the store's time if known."""

    etag: ETag
    store_time: datetime | None


@runtime_checkable
class DocumentStore(Protocol):
    """Five methods over named documents. Names look like ``state/app/orders.json``.

    Every method raises ``Unavailable`` when the store surely did nothing and a retry can help.
    A write raises ``Ambiguous`` when its answer was lost and it may have landed. A store must not retry a
    conditional write by itself: the second try would see its own first one as a conflict.
    """

    @property
    def skew_margin_seconds(self) -> float | None:
        """The least safety margin this store's clock needs, or None when its time is exact (SQL, memory)."""
        ...

    def read(self, name: str) -> Snapshot | None:
        """Return the document, or None when there is none."""
        ...

    def create(self, name: str, content: bytes) -> Written:
        """Write a document that must not exist yet; ``Conflict`` when it does."""
        ...

    def replace(self, name: str, content: bytes, if_match: ETag) -> Written:
        """Overwrite the document read with ``if_match``; ``Conflict`` when it changed or is gone."""
        ...

    def delete(self, name: str, if_match: ETag) -> None:
        """Delete the document read with ``if_match``; ``Conflict`` when it changed or is gone."""
        ...

    def list(self, prefix: str) -> Iterator[str]:
        """Yield the names that start with ``prefix``, in ascending order."""
        ...
