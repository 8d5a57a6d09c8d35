"""A held lease: the one lane through which its holder changes the state document.

Heartbeat and commit of the same holder would race each other into a false "lease lost" if each read and wrote on its
own. So every write of a lease goes through one lock, and the etag of the last write is the condition of the next: a
commit is one round trip. Only when an answer was lost is the document read again, to learn what became of the write.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from datetime import datetime, timedelta
from typing import Any, Protocol, TypeVar, cast

from ..core.clock import Clock, StoreTime
from ..core.errors import Ambiguous, CommitError, Conflict, LostLeaseError, StateStoreError, Unavailable
from ..core.types import FencingToken, JsonObject, JsonValue, OwnerId
from . import document as doc
from .documents import DocumentStore, ETag, Written

_Result = TypeVar("_Result")

_QUICK_RETRIES = 3
_QUICK_RETRY_SECONDS = 0.05


class JoinedTransaction(Protocol):
    """The handler's open transaction, which the checkpoint joins so that both commit or neither does."""

    def settle(self, record: Callable[[Any], None]) -> None:
        """Call ``record`` with the open connection, then commit what it and the handler wrote.

        ``Ambiguous`` when the answer was lost, ``Unavailable`` when it surely did not commit.
        """
        ...

    def close(self) -> None:
        """Undo everything the handler wrote, if that is not settled."""
        ...


class JoiningStore(Protocol):
    """A store whose writes can be part of somebody else's transaction."""

    def read_on(self, connection: Any, name: str) -> bytes | None:
        """Return a document as the transaction sees it."""
        ...

    def replace_on(self, connection: Any, name: str, content: bytes, if_match: ETag) -> Written:
        """Replace a document inside the transaction; ``Conflict`` when it changed."""
        ...


class HeldLease(Protocol):
    """What the runner needs of a lease, wherever it is kept."""

    lost: threading.Event

    @property
    def ttl_seconds(self) -> float: ...  # noqa: D102 - see Lease
    @property
    def is_protected(self) -> bool: ...  # noqa: D102 - see Lease
    def seconds_since_renewal(self) -> float: ...  # noqa: D102 - see Lease
    def seconds_left(self) -> float: ...  # noqa: D102 - see Lease
    def mark_lost(self) -> None: ...  # noqa: D102 - see Lease
    def heartbeat(self, progress: JsonValue = None, *, wait_seconds: float = -1) -> None: ...  # noqa: D102 - see Lease

    @property
    def owner_id(self) -> OwnerId: ...  # noqa: D102 - see Lease
    @property
    def fencing_token(self) -> FencingToken: ...  # noqa: D102 - see Lease
    @property
    def checkpoint(self) -> JsonObject: ...  # noqa: D102 - see Lease
    def now(self) -> datetime: ...  # noqa: D102 - see Lease
    def when_lost(self, callback: Callable[[], None]) -> Callable[[], None]: ...  # noqa: D102 - see Lease
    def protect(self, locked: bool) -> None: ...  # noqa: D102 - see Lease
    def commit(self, checkpoint: JsonObject, joined: JoinedTransaction | None = None) -> None: ...  # noqa: D102 - see Lease
    def release(self, *, wait_seconds: float = -1) -> None: ...  # noqa: D102 - see Lease


class Lease:
    """A lease held on one poller. Made by ``StateStore.acquire``; safe to use from several threads.

    ``lost`` is set as soon as the lease is known to be gone, or can no longer be proved to be ours: from then on
    nothing is committed.
    """

    def __init__(
        self,
        documents: DocumentStore,
        name: str,
        document: doc.Document,
        written: Written,
        holder: doc.Holder,
        *,
        ttl: timedelta,
        skew_margin: timedelta,
        time: StoreTime,
        clock: Clock,
        asked_at: float,
    ) -> None:
        self._documents = documents
        self._name = name
        self._document = document
        self._etag: ETag | None = written.etag
        self._holder = holder
        self._ttl = ttl
        self._skew_margin = skew_margin
        self._time = time
        self._clock = clock
        self._renewed_at = asked_at
        self._lane = threading.RLock()
        self._protected = threading.Event()
        self._on_lost: list[Callable[[], None]] = []
        self.lost = threading.Event()

    @property
    def owner_id(self) -> OwnerId:
        """Return who holds the lease: this session."""
        return self._holder.owner_id

    @property
    def fencing_token(self) -> FencingToken:
        """Return the token of this acquisition; every later holder has a higher one."""
        return self._holder.fencing_token

    @property
    def ttl_seconds(self) -> float:
        """Return how long the lease lives without a heartbeat."""
        return self._ttl.total_seconds()

    @property
    def checkpoint(self) -> JsonObject:
        """Return the last checkpoint this session read or wrote."""
        checkpoint: JsonObject = self._document.get("checkpoint") or {}
        return checkpoint

    def now(self) -> datetime:
        """Return the store's time."""
        return self._time.now()

    def seconds_since_renewal(self) -> float:
        """Return how long ago the last write that extended the lease was sent."""
        return self._clock.monotonic() - self._renewed_at

    def seconds_left(self) -> float:
        """Return how long we may still act on the lease: until its expiry minus the margin, on our own clock."""
        usable = self._ttl.total_seconds() - self._skew_margin.total_seconds()
        return usable - self.seconds_since_renewal()

    def when_lost(self, callback: Callable[[], None]) -> Callable[[], None]:
        """Call ``callback`` once the lease is lost (at once when it already is); return what takes that back."""
        self._on_lost.append(callback)
        if self.lost.is_set():
            callback()
        return lambda: self._on_lost.remove(callback)

    def mark_lost(self) -> None:
        """Give the lease up as lost: nothing is committed from now on."""
        if not self.lost.is_set():
            self.lost.set()
            for callback in list(self._on_lost):
                callback()

    def protect(self, locked: bool) -> None:
        """Tell that the handler's own transaction has locked the store, so that nobody can take the lease.

        On SQLite a writing transaction locks the whole database: heartbeats cannot be written meanwhile, and are not
        needed, because a takeover would have to be written too.
        """
        if locked:
            self._protected.set()
        else:
            self._protected.clear()

    @property
    def is_protected(self) -> bool:
        """Return whether the handler's transaction keeps everybody else from writing."""
        return self._protected.is_set()

    def heartbeat(self, progress: JsonValue = None, *, wait_seconds: float = -1) -> None:
        """Extend the lease by one write.

        Raises:
            LostLeaseError: it is someone else's by now, or is already known to be lost.
            Unavailable: the store did not answer; a retry can help while ``seconds_left()`` is positive.
        """
        if self.is_protected:
            return
        if not self._lane.acquire(timeout=wait_seconds):
            raise Unavailable("The lease's writer lane is busy with a commit that has not been answered yet.")
        try:
            self._write(
                lambda document: doc.heartbeat(document, self._holder, ttl=self._ttl, now=self.now(), progress=progress)
            )
        finally:
            self._lane.release()

    def commit(self, checkpoint: JsonObject, joined: JoinedTransaction | None = None) -> None:
        """Record a checkpoint, fenced; with ``joined`` in one transaction with the handler's writes.

        If the process dies before the write lands, the batch is delivered again; after it, it is not.

        Raises:
            LostLeaseError: someone else holds the lease; nothing was recorded, a joined transaction is rolled back.
            CommitError: the store could not record it; nothing was recorded, a joined transaction is rolled back.
        """

        def apply(document: doc.Document) -> doc.Document:
            return doc.commit(document, self._holder, checkpoint, ttl=self._ttl, now=self.now())

        with self._lane:
            if joined is None:
                self._commit_alone(apply)
            else:
                self._commit_joined(apply, joined)

    def check_on(self, connection: Any) -> None:
        """Look, inside the handler's transaction and before its first statement, whether the lease is still ours.

        Raises:
            LostLeaseError: it is not.
        """
        content = self._joining.read_on(connection, self._name)
        if content is None or not self._is_ours(doc.parse(content, self._name)):
            self.mark_lost()
        self._require_held()

    def stop(self, reason: str) -> None:
        """Give the lease back and let nobody take it until someone resumes it.

        Raises:
            LostLeaseError: someone else holds the lease; nothing was written.
            CommitError: the store could not record it.
        """
        with self._lane:
            self._commit_alone(lambda document: doc.stop(document, self._holder, reason, now=self.now()))
            self.mark_lost()

    def release(self, *, wait_seconds: float = -1) -> None:
        """Free the lease at once. Does nothing when it is lost already.

        When a write that is not answered keeps the lane for ``wait_seconds``, or the process dies before this, the
        lease frees itself after its time to live plus the margin.
        """
        if not self._lane.acquire(timeout=wait_seconds):
            self.mark_lost()
            raise Unavailable(f"A write to '{self._name}' is not answered; its lease frees itself when it runs out.")
        try:
            if not self.lost.is_set():
                self._write(lambda document: doc.release(document, self._holder, now=self.now()), released=True)
        finally:
            self.mark_lost()
            self._lane.release()

    def _commit_alone(self, apply: Callable[[doc.Document], doc.Document]) -> None:
        try:
            self._with_retries(lambda: self._write(apply))
        except StateStoreError as error:
            raise CommitError(
                f"The checkpoint of '{self._name}' could not be recorded: {error} The batch will be delivered again."
            ) from error

    def _with_retries(self, step: Callable[[], _Result]) -> _Result:
        """Repeat a step that is ``Unavailable`` a few times, as long as the lease is ours."""
        for attempt in range(1, _QUICK_RETRIES):
            try:
                return step()
            except Unavailable:
                if self.seconds_left() <= 0:
                    raise
                self._clock.wait(self.lost, _QUICK_RETRY_SECONDS * attempt)
        return step()

    def _commit_joined(self, apply: Callable[[doc.Document], doc.Document], joined: JoinedTransaction) -> None:
        """Write the checkpoint as the last statement of the handler's transaction, then commit both."""
        self._require_held()
        changed = apply(self._current())
        asked_at = self._clock.monotonic()
        written: list[Written] = []

        def record(connection: Any) -> None:
            content = doc.render(changed)
            written.append(self._joining.replace_on(connection, self._name, content, self._known_etag()))

        try:
            joined.settle(record)
        except Ambiguous as error:
            self._after_lost_answer(changed, asked_at, error)
        except Conflict as error:
            joined.close()
            self._etag = None
            self._current()  # raises LostLeaseError when someone else holds it
            raise CommitError(
                f"The state document '{self._name}' was changed by hand while a batch was handled. The handler's "
                "writes were rolled back; the batch will be delivered again."
            ) from error
        except StateStoreError as error:
            joined.close()
            self._etag = None
            raise CommitError(
                f"The checkpoint could not be recorded: {error} The handler's writes were rolled back."
            ) from error
        else:
            self._adopt(changed, written[0], asked_at)

    def _after_lost_answer(self, changed: doc.Document, asked_at: float, error: Ambiguous) -> None:
        self._etag = None
        if not self._landed_for_sure(changed):
            raise CommitError(
                f"The connection broke while '{self._name}' and the handler's writes were committed, and neither was "
                "kept. The batch will be delivered again."
            ) from error
        self._renewed_at = asked_at

    @property
    def _joining(self) -> JoiningStore:
        return cast(JoiningStore, self._documents)

    def _write(self, apply: Callable[[doc.Document], doc.Document], *, released: bool = False) -> None:
        self._require_held()
        changed = apply(self._current())
        asked_at = self._clock.monotonic()
        try:
            written = self._documents.replace(self._name, doc.render(changed), self._known_etag())
        except (Conflict, Ambiguous) as error:
            self._etag = None
            if released and isinstance(error, Ambiguous):
                return
            if not self._landed(changed):
                raise Unavailable(f"A write to '{self._name}' did not land.") from error
            self._renewed_at = asked_at
            return
        self._adopt(changed, written, asked_at)

    def _adopt(self, changed: doc.Document, written: Written, asked_at: float) -> None:
        self._document = changed
        self._etag = written.etag
        self._renewed_at = asked_at
        self._time.learn(written.store_time)

    def _require_held(self) -> None:
        if self.lost.is_set():
            raise LostLeaseError(f"The lease of '{self._name}' was lost; nothing is written under it any more.")

    def _known_etag(self) -> ETag:
        if self._etag is None:
            raise Unavailable(f"The present state of '{self._name}' is not known.")
        return self._etag

    def _current(self) -> doc.Document:
        """Return the document our etag stands for, reading it again when an answer was lost."""
        if self._etag is None:
            self._refresh()
        return self._document

    def _refresh(self) -> None:
        snapshot = self._documents.read(self._name)
        if snapshot is None:
            self.mark_lost()
            raise LostLeaseError(f"The state document '{self._name}' was deleted; the lease went with it.")
        found = doc.parse(snapshot.content, self._name)
        self._time.learn(snapshot.store_time)
        if not self._is_ours(found):
            self.mark_lost()
            doc.release(found, self._holder, now=self.now())  # raises LostLeaseError naming the present holder
        self._document = found
        self._etag = snapshot.etag

    def _is_ours(self, document: doc.Document) -> bool:
        lease = doc.lease_of(document, self._name)
        return (
            lease is not None
            and lease.owner_id == self._holder.owner_id
            and lease.fencing_token == self._holder.fencing_token
        )

    def _landed_for_sure(self, changed: doc.Document) -> bool:
        try:
            return self._with_retries(lambda: self._landed(changed))
        except StateStoreError as error:
            raise CommitError(
                f"The connection broke while '{self._name}' and the handler's writes were committed, and the state "
                f"could not be read since: {error} Both were kept or neither; the next run starts from what was kept."
            ) from error

    def _landed(self, changed: doc.Document) -> bool:
        """Read once and tell whether ``changed`` is what is stored. Adopts what is there when it is still ours."""
        self._refresh()
        return all(self._document.get(part) == changed.get(part) for part in ("revision", "checkpoint", "lease"))
