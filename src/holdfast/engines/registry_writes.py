"""The registry on any document store: read, apply a pure change, write on condition.

A lost race is run again on what the winner wrote: the command itself decides whether it still applies. Every write
carries an id that stays in the document, so that a writer whose answer was lost finds out what became of its write.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from typing import TypeVar

from ..core.clock import Clock, StoreTime, new_id
from ..core.errors import Ambiguous, Conflict, RegistryLocked, Unavailable
from ..core.types import JsonObject
from ..state.document import render
from ..state.documents import DocumentStore, ETag, Snapshot
from . import registry_document as doc
from .registry_shape import Document, EngineTablesConfig, LockView, lock_of, own_fields, parse, tables_of

Command = Callable[[Document, datetime], Document]
_Result = TypeVar("_Result")

_TRIES = 20
_QUICK_RETRIES = 3
_QUICK_RETRY_SECONDS = 0.05


@dataclass(frozen=True, slots=True)
class RegistryView:
    """The registry as it was read or written, and the store's time of that."""

    name: str
    document: Document
    read_at: datetime

    @property
    def version(self) -> int:
        """Return ``registryVersion``."""
        return int(self.document["registryVersion"])

    @property
    def lock(self) -> LockView:
        """Return the lock part."""
        return lock_of(self.document, self.name)

    @property
    def is_locked(self) -> bool:
        """Return whether some job had a valid lock when this was read."""
        return self.lock.is_valid(self.read_at)

    @property
    def tables(self) -> EngineTablesConfig:
        """Return where engines keep dead letters and history."""
        return tables_of(self.document, self.name)

    @property
    def state(self) -> JsonObject:
        """Return the application's own fields."""
        return own_fields(self.document)


@dataclass(slots=True)
class _Write:
    """One command's write: its id, and the version it was made on while it is not known whether it landed."""

    id: str
    doubtful_on: int | None = None

    def has_landed_in(self, view: RegistryView) -> bool:
        """Return whether the registry has this write already; in doubt, never guess.

        Raises:
            Ambiguous: it cannot be told any more.
        """
        if self.doubtful_on is None:
            return False
        known = doc.knows_write(view.document, self.id, self.doubtful_on)
        if known is None:
            raise self.ambiguous(view.name)
        if view.version > self.doubtful_on:
            self.doubtful_on = None  # that version is gone, and with it the write's condition
        return known

    def ambiguous(self, name: str) -> Ambiguous:
        return Ambiguous(
            f"The answer to a write of the registry '{name}' was lost, and whether it landed could not be found out. "
            "Look with 'holdfast registry show' before you repeat it."
        )


@dataclass(frozen=True, slots=True)
class _Found:
    """A registry that was read, and the condition of the next write."""

    view: RegistryView
    etag: ETag
    time: StoreTime


class RegistryWrites:
    """Reads and writes one registry. Safe between threads."""

    def __init__(self, documents: DocumentStore, name: str, clock: Clock) -> None:
        self.documents = documents
        self.name = name
        self._clock = clock

    def read(self) -> RegistryView | None:
        """Return the registry, or None when there is none.

        Raises:
            UnreadableStateError: it is corrupt.
            Unavailable: the store did not answer.
        """
        snapshot = self._patiently(lambda: self.documents.read(self.name))
        return None if snapshot is None else self._found(snapshot).view

    def create(self, document: Document) -> RegistryView:
        """Write the first version.

        Raises:
            Conflict: there is a registry already; nothing was changed.
        """
        write_id = new_id()
        content = render(doc.stamped(document, write_id))
        try:
            return self._found(self._created(content)).view
        except Conflict as error:
            raise self._exists_already() from error
        except Ambiguous as error:
            try:
                found = self.read()
            except Unavailable:
                raise error from None
            if found is None:
                raise
            if not doc.knows_write(found.document, write_id, 0):
                raise self._exists_already() from error
            return found

    def apply(self, command: Command, *, create: bool = False) -> RegistryView:
        """Change the registry by ``command``; with ``create`` make it first when there is none.

        If the process dies here, the write has landed or it has not; whoever reads the registry sees which.

        Raises:
            RegistryLocked: the command is refused, at first or after a lost race; nothing of it was written.
            Conflict: others were faster time and again; nothing was written.
            Unavailable: the store did not answer; nothing was written.
            Ambiguous: the answer was lost, and so was every way to find out whether the write landed.
        """
        write = _Write(new_id())
        for _ in range(_TRIES):
            found = self._read_for(write, create)
            if write.has_landed_in(found.view):
                return found.view
            changed = self._applied(command, found, write)
            if changed is found.view.document:
                return found.view
            landed = self._replaced(found, doc.stamped(changed, write.id), write)
            if landed is not None:
                return landed
        if write.doubtful_on is not None:
            raise write.ambiguous(self.name)
        raise Conflict(f"The registry '{self.name}' was changed by others {_TRIES} times in a row. Try again.")

    def _applied(self, command: Command, found: _Found, write: _Write) -> Document:
        try:
            return command(found.view.document, found.time.now())
        except RegistryLocked as refused:
            if write.doubtful_on is None:
                raise
            raise write.ambiguous(self.name) from refused  # nobody has written since, so it may still arrive

    def _replaced(self, found: _Found, changed: Document, write: _Write) -> RegistryView | None:
        """Write on condition; None when another was faster, or when the answer was lost and must be looked for."""
        content = render(changed)
        try:
            written = self._patiently(lambda: self.documents.replace(self.name, content, found.etag))
        except Conflict:
            return None
        except Ambiguous:
            if write.doubtful_on is None:
                write.doubtful_on = found.view.version
            return None
        except Unavailable as error:
            if write.doubtful_on is None:
                raise
            raise write.ambiguous(self.name) from error
        return RegistryView(self.name, changed, found.time.learn(written.store_time))

    def _read_for(self, write: _Write, create: bool) -> _Found:
        try:
            return self._found(self._snapshot(create))
        except Unavailable as error:
            if write.doubtful_on is None:
                raise
            raise write.ambiguous(self.name) from error

    def _snapshot(self, create: bool) -> Snapshot:
        """Read, or create an unlocked registry: no lock is dated before the store has told its time."""
        for _ in range(_QUICK_RETRIES):
            snapshot = self._patiently(lambda: self.documents.read(self.name))
            if snapshot is not None:
                return snapshot
            if not create:
                raise RegistryLocked(
                    f"There is no registry '{self.name}', so nobody has its lock. 'holdfast registry init' makes one."
                )
            with suppress(Conflict, Ambiguous):  # whoever made it, it is there now
                return self._created(render(doc.initial()))
        raise Unavailable(f"The registry '{self.name}' could not be made: its store does not keep it. Try again.")

    def _created(self, content: bytes) -> Snapshot:
        written = self._patiently(lambda: self.documents.create(self.name, content))
        return Snapshot(content, written.etag, written.store_time)

    def _exists_already(self) -> Conflict:
        return Conflict(f"There is a registry '{self.name}' already; nothing was changed.")

    def _found(self, snapshot: Snapshot) -> _Found:
        time = StoreTime(self._clock)
        read_at = time.learn(snapshot.store_time)
        return _Found(RegistryView(self.name, parse(snapshot.content, self.name), read_at), snapshot.etag, time)

    def _patiently(self, step: Callable[[], _Result]) -> _Result:
        """Repeat a step that is ``Unavailable`` a few times: the store has done nothing, so that is safe."""
        for attempt in range(1, _QUICK_RETRIES):
            try:
                return step()
            except Unavailable:
                self._clock.wait(threading.Event(), _QUICK_RETRY_SECONDS * attempt)
        return step()
