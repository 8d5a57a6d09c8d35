"""Read a document, apply a pure command, write it back on condition, find out about an answer that was lost.

Every document changes in this one way: a poller's lease and checkpoint, and the engines' registry. A command is a pure
function of what is stored and of the store's time, and refuses by raising. After a lost race it decides again on what
the winner wrote, a bounded number of times. After a lost answer the document is read, and its shape tells whether the
write landed; as long as that is not known, no other answer is given than ``Ambiguous``.
"""

from __future__ import annotations

import itertools
import math
import threading
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from typing import TypeAlias, TypeVar

from ..core.clock import Clock, StoreTime
from ..core.errors import Ambiguous, Conflict, DbError, Unavailable
from .document import Document, render
from .documents import DocumentStore, ETag, Written

QUICK_TRIES = 3
_FIRST_PAUSE_SECONDS = 0.05
_LONGEST_PAUSE_SECONDS = 0.5

_Result = TypeVar("_Result")

Command: TypeAlias = Callable[[Document, datetime], Document]
"""Takes what is stored and the store's time; returns what is to be stored, or the very document it was given."""
Landed: TypeAlias = Callable[[Document, Document, Document], bool | None]
"""Takes what was found, what was written and what that was based on; None when nobody can know."""


@dataclass(frozen=True, slots=True)
class DocumentShape:
    """What one kind of document knows of itself.

    Args:
        parse: reads what is stored under a name; raises when nobody can tell what it means.
        version: what every write raises.
        landed: returns whether a write is in what was found.
        missing: what is raised when there is none to change.
        shown_by: the command that shows one to people.
    """

    parse: Callable[[bytes, str], Document]
    version: Callable[[Document], int]
    landed: Landed
    missing: Callable[[str], DbError]
    shown_by: str


class ConditionalDocument:
    """One document as its writer knows it: the etag of the last answer is the condition of the next write.

    For one thread at a time. A step that is ``Unavailable`` is taken up to ``quick_tries`` times.
    """

    def __init__(
        self, documents: DocumentStore, name: str, shape: DocumentShape, clock: Clock, *, quick_tries: int = 1
    ) -> None:
        self.documents = documents
        self.name = name
        self.time = StoreTime(clock)
        self.content: Document = {}
        self.etag: ETag | None = None
        self._shape = shape
        self._clock = clock
        self._quick_tries = quick_tries

    def read(self) -> Document | None:
        """Return what is stored, or None.

        Raises:
            UnreadableStateError: it is corrupt.
            Unavailable: the store did not answer.
        """
        snapshot = self._patiently(lambda: self.documents.read(self.name))
        if snapshot is None:
            self.forget()
            return None
        return self.adopt(self._shape.parse(snapshot.content, self.name), Written(snapshot.etag, snapshot.store_time))

    def current(self) -> Document:
        """Return what the etag stands for, read again when the last answer was lost.

        Raises:
            DbError: there is none: what the shape says of that.
        """
        found = self.read() if self.etag is None else self.content
        if found is None:
            raise self._shape.missing(self.name)
        return found

    def adopt(self, document: Document, written: Written) -> Document:
        """Take ``document`` for what is stored, as an answer of the store has shown."""
        self.content, self.etag = document, written.etag
        self.time.learn(written.store_time)
        return document

    def forget(self) -> None:
        """Read again before the next write: what is stored is not known any more."""
        self.etag = None

    def condition(self) -> ETag:
        """Return the condition of the next write.

        Raises:
            Unavailable: the last answer was lost, and nothing was read since.
        """
        if self.etag is None:
            raise Unavailable(f"The present state of '{self.name}' is not known.")
        return self.etag

    def create(self, document: Document, *, landed: Landed | None = None) -> Document:
        """Write the first version.

        Raises:
            Conflict: there is one already; nothing was changed.
            Ambiguous: the answer was lost, and whether it landed could not be found out.
        """
        try:
            return self._created(document)
        except Ambiguous as error:
            with suppress(Unavailable):
                found = self.read()
                is_ours = None if found is None else (landed or self._shape.landed)(found, document, {})
                if is_ours:
                    return self.content
                if is_ours is False:
                    raise Conflict(f"There is a document '{self.name}' already; nothing was changed.") from error
            raise

    def read_or_create(self, initial: Document) -> Document:
        """Return what is stored; where there is nothing, write ``initial``, which also tells the store's time."""
        for left in reversed(range(self._quick_tries)):
            found = self.read()
            if found is not None:
                return found
            try:
                return self._created(initial)
            except (Conflict, Ambiguous):  # whoever made it, it should be there now
                if not left and self.read() is None:
                    raise
        return self.current()

    def replace(self, changed: Document) -> Document:
        """Write once on condition, and do not look for an answer that was lost.

        Raises:
            Conflict: another was faster; nothing was written.
            Ambiguous: the answer was lost.
        """
        content, etag = render(changed), self.condition()
        try:
            written = self._patiently(lambda: self.documents.replace(self.name, content, etag))
        except (Conflict, Ambiguous):
            self.forget()
            raise
        return self.adopt(changed, written)

    def apply(self, command: Command, *, tries: int = 1, landed: Landed | None = None) -> Document:
        """Change the document by ``command``, and return it as it is then.

        If the process dies here, the write has landed or it has not; whoever reads the document sees which.

        Raises:
            DbError: the command refuses, at first or after a lost race; nothing of it was written.
            Conflict: others were faster ``tries`` times; nothing was written.
            Unavailable: the store did not answer; nothing was written.
            Ambiguous: the answer was lost, and so was every way to find out whether the write landed.
        """
        write = _Write(landed or self._shape.landed, self._shape.version)
        try:
            for _ in range(tries):
                if self._has_applied(command, write):
                    return self.content
            raise Conflict(f"The document '{self.name}' was changed by others {tries} times in a row. Try again.")
        except DbError as error:
            if write.doubt is None:
                raise
            raise Ambiguous(
                f"The answer to a write of '{self.name}' was lost, and whether it landed could not be found out. Look "
                f"with '{self._shape.shown_by}' before you repeat it."
            ) from error

    def _has_applied(self, command: Command, write: _Write) -> bool:
        base = self.current()
        changed = command(base, self.time.now())
        if changed is base:
            return True
        try:
            self.replace(changed)
            return True
        except Ambiguous:
            write.doubt = write.doubt or (changed, base)
        except Conflict:
            if write.doubt is None:
                return False
        return write.is_found_in(self.current())

    def _created(self, document: Document) -> Document:
        content = render(document)
        return self.adopt(document, self._patiently(lambda: self.documents.create(self.name, content)))

    def _patiently(self, step: Callable[[], _Result]) -> _Result:
        return patiently(step, self._clock, self._quick_tries)


@dataclass(slots=True)
class _Write:
    """One command's write, with what it was made of while nobody knows whether it landed."""

    landed: Landed
    version: Callable[[Document], int]
    doubt: tuple[Document, Document] | None = None

    def is_found_in(self, document: Document) -> bool:
        """Return whether the write is in what was read since; in doubt, never guess."""
        changed, base = self.doubt or ({}, {})
        landed = self.landed(document, changed, base)
        if landed is None:
            raise Ambiguous("It was changed so often since that this is not known any more.")
        if self.version(document) > self.version(base):
            self.doubt = None  # the version it was made on is gone, so it cannot arrive any more
        return landed


def patiently(
    step: Callable[[], _Result],
    clock: Clock,
    tries: int | None = None,
    *,
    lost: threading.Event | None = None,
    seconds_left: Callable[[], float] = lambda: math.inf,
) -> _Result:
    """Take a step again while it is ``Unavailable``: the store has done nothing, so that is safe.

    Up to ``tries`` times, if that is given, and while ``seconds_left()`` is more than the next pause.
    """
    for failed in itertools.count(1):
        try:
            return step()
        except Unavailable:
            pause = min(_FIRST_PAUSE_SECONDS * failed, _LONGEST_PAUSE_SECONDS)
            if failed == tries or seconds_left() <= pause:
                raise
        clock.wait(lost or threading.Event(), pause)
    raise AssertionError("unreachable")
