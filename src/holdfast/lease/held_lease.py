"""A held lease: the one lane through which its holder changes the state document.

Heartbeat and commit of the same holder would race each other into a false "lease lost" if each read and wrote on its
own. So every write of a lease goes through one lock, and the etag of the last write is the condition of the next: a
commit is one round trip. Only when an answer was lost is the document read again, to learn what became of the write.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias, TypeVar, cast, runtime_checkable

from ..core.clock import Clock
from ..core.errors import Ambiguous, CommitError, Conflict, LostLeaseError, StateStoreError, Unavailable
from ..core.renewed import Renewed
from ..core.types import FencingToken, JsonObject, JsonValue, OwnerId
from . import document as doc
from .conditional_write import Command, ConditionalDocument, patiently
from .documents import ETag, Written
from .history import KeptHistory, kept_history

if TYPE_CHECKING:
    from .foreign import ForeignLease

_TRIES_TO_RELEASE = 6  # for about a second: a process that ends is waited for, and a lease ends by itself
_Result = TypeVar("_Result")


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

    def read_on(self, connection: Any, name: str) -> tuple[bytes, str | None] | None:
        """Return a document as the transaction sees it, with the transaction's id where it has one."""
        ...

    def replace_on(self, connection: Any, name: str, content: bytes, if_match: ETag) -> Written:
        """Replace a document inside the transaction; ``Conflict`` when it changed."""
        ...


@runtime_checkable
class ManyAtOnce(Protocol):
    """A store that can replace many documents by one write."""

    @property
    def replaces_many(self) -> bool:
        """Return whether it can, where it is."""
        ...

    def replace_many(self, writes: Sequence[tuple[str, bytes, ETag]]) -> dict[str, Written]:
        """Replace documents that have not changed; return those, by name."""
        ...


HeldLease: TypeAlias = "Lease | ForeignLease"
"""A lease, wherever it is kept."""


class Lease(Renewed):
    """A lease held on one poller. Made by ``StateStore.acquire``; safe to use from several threads.

    ``lost`` is set as soon as the lease is known to be gone, or can no longer be proved to be ours: from then on
    nothing is committed.
    """

    def __init__(
        self,
        document: ConditionalDocument,
        holder: doc.Holder,
        *,
        ttl: timedelta,
        skew_margin: timedelta,
        clock: Clock,
        asked_at: float,
    ) -> None:
        super().__init__(clock, ttl.total_seconds(), asked_at, skew_margin.total_seconds())
        self._document = document
        self._name = document.name
        self._holder = holder
        self._ttl = ttl
        self._lane = threading.RLock()
        self._protected = threading.Event()

    @property
    def owner_id(self) -> OwnerId:
        """Return who holds the lease: this session."""
        return self._holder.owner_id

    @property
    def fencing_token(self) -> FencingToken:
        """Return the token of this acquisition; every later holder has a higher one."""
        return self._holder.fencing_token

    @property
    def checkpoint(self) -> JsonObject:
        """Return the last checkpoint this session read or wrote."""
        checkpoint: JsonObject = self._document.content.get("checkpoint") or {}
        return checkpoint

    def now(self) -> datetime:
        """Return the store's time."""
        return self._document.time.now()

    def protect(self, locked: bool) -> None:
        """Note whether the handler's own transaction has locked the store, so that nobody can take the lease.

        On SQLite a writing transaction locks the whole database: heartbeats cannot be written meanwhile, and are not
        needed, because a takeover would have to be written too.
        """
        if locked:
            self._protected.set()
        else:
            self._protected.clear()

    @property
    def is_protected(self) -> bool:  # type: ignore[override] # here it comes and goes
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
                lambda document, now: doc.heartbeat(document, self._holder, ttl=self._ttl, now=now, progress=progress)
            )
        finally:
            self._lane.release()

    @property
    def beats_with(self) -> object | None:
        """Return what leases have in common that are extended by one write; None when each is extended alone."""
        many = self._document.documents
        return many if isinstance(many, ManyAtOnce) and many.replaces_many and not self.is_protected else None

    @staticmethod
    def heartbeat_together(leases: Sequence[Lease]) -> None:
        """Extend leases of one store by one write. Those it does not reach are as they were.

        Raises:
            StateStoreError: the store did not answer, or not in time.
        """
        with ExitStack() as lanes:
            ready = [lease for lease in leases if lease._enters(lanes)]
            if len(ready) > 1:
                Lease._replace_together(ready, cast(ManyAtOnce, ready[0]._document.documents))

    def _enters(self, lanes: ExitStack) -> bool:
        """Take the lane, unless something else is on its way in it."""
        if not self._lane.acquire(blocking=False):
            return False
        lanes.callback(self._lane.release)
        return self._document.etag is not None and not self.lost.is_set()

    @staticmethod
    def _replace_together(leases: Sequence[Lease], store: ManyAtOnce) -> None:
        asked_at = leases[0]._clock.monotonic()
        changed = [
            (each, doc.heartbeat(each._document.content, each._holder, ttl=each._ttl, now=each.now()))
            for each in leases
        ]
        written = store.replace_many(
            [(each._name, doc.render(new), each._document.condition()) for each, new in changed]
        )
        for lease, document in changed:
            if lease._name in written:
                lease._adopt(document, written[lease._name], asked_at)

    @property
    def kept_history(self) -> KeptHistory | None:
        """Return the history of the source that the checkpoint was made in, as far as it is kept."""
        return kept_history(self._document.content)

    def go_back(self, history: KeptHistory, checkpoint: JsonObject | None) -> None:
        """Go on under a token far ahead, at a former checkpoint unless None: rows of the source were taken back.

        Raises:
            LostLeaseError: it is someone else's by now.
            Unavailable: the store did not answer, or the write did not land.
        """
        place = self.checkpoint if checkpoint is None else checkpoint
        with self._lane:
            self._write(
                lambda document, now: doc.gone_back(
                    document, self._holder, history.to_json(place), checkpoint, ttl=self._ttl, now=now
                )
            )
            token = FencingToken(self._document.content["lease"]["fencing_token"])
            self._holder = doc.Holder(self._holder.owner_id, token)

    def commit(
        self,
        checkpoint: JsonObject,
        joined: JoinedTransaction | None = None,
        history: KeptHistory | None = None,
    ) -> None:
        """Record a checkpoint, fenced; with ``joined`` in one transaction with the handler's writes.

        ``history`` is the source's that the checkpoint was made in, where it is known.

        If the process dies before the write lands, the batch is delivered again; after it, it is not.

        Raises:
            LostLeaseError: someone else holds the lease; nothing was recorded, a joined transaction is rolled back.
            CommitError: the store could not record it; nothing was recorded, a joined transaction is rolled back.
        """
        kept = None if history is None else history.to_json(checkpoint)

        def apply(document: doc.Document, now: datetime) -> doc.Document:
            return doc.commit(document, self._holder, checkpoint, ttl=self._ttl, now=now, history=kept)

        with self._lane:
            if joined is None:
                self._commit_alone(apply)
            else:
                self._commit_joined(apply, joined)

    def check_on(self, connection: Any) -> str | None:
        """Look, inside the handler's transaction and before its first statement, whether the lease is still ours.

        Returns the transaction's id where it has one.

        Raises:
            LostLeaseError: it is not.
        """
        found = self._joining.read_on(connection, self._name)
        with self._noticing_loss():
            if found is None:
                raise doc.deleted(self._name)
            doc.require_holder(doc.parse(found[0], self._name), self._holder)
        self._require_held()
        return found[1]

    def stop(self, reason: str) -> None:
        """Give the lease back and let nobody take it until someone resumes it.

        It can be written although the lease was declared lost by the clock, as long as nobody has taken it.

        Raises:
            LostLeaseError: someone else holds the lease; nothing was written.
            CommitError: the store could not record it.
        """
        with self._lane:
            self._commit_alone(lambda document, now: doc.stop(document, self._holder, reason, now=now), if_lost=True)
            self.mark_lost()

    @property
    def failures(self) -> int:
        """Return how many deliveries have failed in a row, this session's and those before it."""
        return int((doc.failure_of(self._document.content) or {}).get("count", 0))

    def record_failure(self, error: str, next_try_at: datetime | None) -> None:
        """Keep why a delivery failed, for people to see.

        Raises:
            LostLeaseError: someone else holds the lease.
            Unavailable: the store did not answer.
        """
        with self._lane:
            self._write(
                lambda document, now: doc.failed(document, self._holder, error, next_try_at=next_try_at, now=now)
            )

    def record_success(self) -> None:
        """Forget a failure that is over, if one is kept; a commit does so by itself.

        Raises:
            LostLeaseError: someone else holds the lease.
            Unavailable: the store did not answer.
        """
        with self._lane:
            if self.failures:
                self._write(lambda document, now: doc.succeeded(document, self._holder))

    def release(self, *, wait_seconds: float = -1) -> None:
        """Free the lease at once. Does nothing when it is lost already.

        When a write that is not answered keeps the lane for ``wait_seconds``, the store stays away for more than about
        a second, or the process dies before this, the lease frees itself after its time to live plus the margin.
        """
        with self._ending(wait_seconds):
            if not self.lost.is_set():
                patiently(self._release_once, self._clock, _TRIES_TO_RELEASE, seconds_left=self.seconds_left)

    def _release_once(self) -> None:
        self._write(lambda document, now: doc.release(document, self._holder, now=now), settles=False)

    def discard(self, *, wait_seconds: float = -1) -> None:
        """Free the lease at once by deleting its document. Does nothing when it is lost already.

        What keeps ``release`` from freeing it leaves it here to run out, and its document to the next holder.
        """
        with self._ending(wait_seconds):
            if not self.lost.is_set():
                self._current()
                self._document.documents.delete(self._name, self._document.condition())

    @contextmanager
    def _ending(self, wait_seconds: float) -> Iterator[None]:
        """Have the lane for the last write, after which nothing is written under the lease any more."""
        if not self._lane.acquire(timeout=wait_seconds):
            self.mark_lost()
            raise Unavailable(f"A write to '{self._name}' is not answered; its lease frees itself when it runs out.")
        try:
            yield
        finally:
            self.mark_lost()
            self._lane.release()

    def _commit_alone(self, apply: Command, *, if_lost: bool = False) -> None:
        try:
            self._with_retries(lambda: self._write(apply, if_lost=if_lost))
        except StateStoreError as error:
            raise CommitError(
                f"The checkpoint of '{self._name}' could not be recorded: {error} The batch will be delivered again."
            ) from error

    def _with_retries(self, step: Callable[[], _Result]) -> _Result:
        """Repeat a step that is ``Unavailable`` for as long as the lease is ours: a store may throttle for a while."""
        return patiently(step, self._clock, lost=self.lost, seconds_left=self.seconds_left)

    def _commit_joined(self, apply: Command, joined: JoinedTransaction) -> None:
        """Write the checkpoint as the last statement of the handler's transaction, then commit both."""
        self._require_held()
        changed = apply(self._current(), self.now())
        asked_at = self._clock.monotonic()
        written: list[Written] = []

        def record(connection: Any) -> None:
            content, etag = doc.render(changed), self._document.condition()
            written.append(self._joining.replace_on(connection, self._name, content, etag))

        try:
            joined.settle(record)
        except Ambiguous as error:
            self._after_lost_answer(changed, error)
            self._renewed_at = asked_at
        except StateStoreError as error:
            joined.close()
            self._after_refusal(error)
        else:
            self._adopt(changed, written[0], asked_at)

    def _after_refusal(self, error: StateStoreError) -> None:
        self._document.forget()
        if isinstance(error, Conflict):
            self._current()  # raises LostLeaseError when someone else holds it
            raise CommitError(
                f"The state document '{self._name}' was changed by hand while a batch was handled. The handler's "
                "writes were rolled back; the batch will be delivered again."
            ) from error
        raise CommitError(
            f"The checkpoint could not be recorded: {error} The handler's writes were rolled back."
        ) from error

    def _after_lost_answer(self, changed: doc.Document, error: Ambiguous) -> None:
        self._document.forget()
        try:
            found = self._with_retries(self._current)
        except StateStoreError as unread:
            raise CommitError(
                f"The connection broke while '{self._name}' and the handler's writes were committed, and the state "
                f"could not be read since: {unread} Both were kept or neither; the next run starts from what was kept."
            ) from unread
        if not doc.has_landed(found, changed):
            raise CommitError(
                f"The connection broke while '{self._name}' and the handler's writes were committed, and neither was "
                "kept. The batch will be delivered again."
            ) from error

    @property
    def _joining(self) -> JoiningStore:
        return cast(JoiningStore, self._document.documents)

    def _write(self, apply: Command, *, settles: bool = True, if_lost: bool = False) -> None:
        if not if_lost:
            self._require_held()
        asked_at = self._clock.monotonic()
        try:
            with self._noticing_loss():
                if settles:
                    self._document.apply(apply)
                else:
                    self._document.replace(apply(self._document.current(), self.now()))
        except (Conflict, Ambiguous) as error:
            if not settles and isinstance(error, Ambiguous):
                return
            self._current()  # raises LostLeaseError when someone else holds it
            raise Unavailable(f"A write to '{self._name}' did not land.") from error
        self._renewed_at = asked_at

    def _adopt(self, changed: doc.Document, written: Written, asked_at: float) -> None:
        self._document.adopt(changed, written)
        self._renewed_at = asked_at

    def _require_held(self) -> None:
        if self.lost.is_set():
            raise LostLeaseError(f"The lease of '{self._name}' was lost; nothing is written under it any more.")

    def _current(self) -> doc.Document:
        """Return the document as it is known, read again when an answer was lost, if the lease in it is ours."""
        with self._noticing_loss():
            document = self._document.current()
            doc.require_holder(document, self._holder)
        return document

    @contextmanager
    def _noticing_loss(self) -> Iterator[None]:
        try:
            yield
        except LostLeaseError:
            self.mark_lost()
            raise
