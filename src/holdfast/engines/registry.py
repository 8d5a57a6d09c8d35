"""``Registry``: what an application's engines share, changed by one job at a time.

This is the second layer of the standard's singleton: the first keeps one operation from running twice, this one keeps
every other writer out. Every write, not only taking the lock, is a compare-and-set that checks who has the lock.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from datetime import datetime, timedelta

from ..core.clock import Clock, SystemClock, new_id
from ..core.errors import ConfigurationError, Conflict
from ..core.moments_ahead import MomentsAhead
from ..core.names import checked_name, default_app_name
from ..core.types import FencingToken
from ..lease.conditional_write import QUICK_TRIES, Command, ConditionalDocument, DocumentShape
from ..lease.documents import DocumentStore
from ..runtime.keeper import checked_interval, keeping
from . import registry_document as doc
from .registry_document import Holder
from .registry_lock import HeldRegistry
from .registry_shape import (
    DEFAULT_LOCK_SECONDS,
    Document,
    EngineTablesConfig,
    LockView,
    RegistryView,
    checked_duration,
    checked_job_id,
    lock_of,
    parse,
    path_segment,
    tables_elsewhere,
    tables_in_database,
    version_of,
)

__all__ = ["EngineTablesConfig", "HeldRegistry", "LockView", "Registry", "RegistryView"]

_MOST_MARGIN_SECONDS = 1.0
_TRIES = 20
_REGISTRY = DocumentShape(parse, version_of, doc.has_landed, doc.no_registry, "holdfast registry show")


class Registry:
    """One registry document in any document store: the application's, or of one of its instances.

    Args:
        documents: where it is kept.
        app_name: whose it is; ``WEBSITE_SITE_NAME``, else ``default``.
        name: the document's name, ``registry/{app_name}.json`` when left out.
        tables_in_database: whether the engines' tables are in the database, which has no others than its own.
        instance_id: whose it is when it is one instance's and not the whole application's: see ``instance``.
        skew_margin_seconds: how far clocks may differ, where the store itself does not need more.
        ahead: what the process has seen of moments in the future.

    Whether a lock has run out is decided with the store's own time. Methods that take a ``fencing_token`` refuse an
    earlier acquisition of the same job; without it the job's name alone decides. Every write can also raise
    ``Conflict`` (others were faster time and again) and ``Unavailable``, both with nothing written, and ``Ambiguous``.
    """

    def __init__(
        self,
        documents: DocumentStore,
        *,
        app_name: str | None = None,
        name: str | None = None,
        instance_id: str | None = None,
        tables_in_database: bool = False,
        skew_margin_seconds: float | None = None,
        clock: Clock | None = None,
        ahead: MomentsAhead | None = None,
    ) -> None:
        self.documents = documents
        self._tables_in_database = tables_in_database
        self.instance_id = instance_id
        self.name = name or f"registry/{checked_name('The app name', app_name or default_app_name())}.json"
        self._clock = clock or SystemClock()
        self._ahead = ahead or MomentsAhead(self._clock)
        self._margin_seconds = max(skew_margin_seconds or 0.0, documents.skew_margin_seconds or 0.0)

    def over(self, documents: DocumentStore) -> Registry:
        """Return the same registry through another way to its store, such as one inside a transaction."""
        return self._like(documents, self.name, self.instance_id)

    def instance(self, instance_id: str | None) -> Registry:
        """Return the registry of one instance: ``registry/{app_name}/{instance}.json``, with a lock of its own.

        It holds what is that instance's; ``engineTablesConfig`` is the application's and stays in the document above.
        None is the application's registry itself.

        Raises:
            ConfigurationError: it is no text of 1 to 200 characters.
        """
        if instance_id is None:
            return self
        name = f"{self.name.removesuffix('.json')}/{path_segment(instance_id)}.json"
        return self._like(self.documents, name, instance_id)

    def _like(self, documents: DocumentStore, name: str, instance_id: str | None) -> Registry:
        return Registry(
            documents,
            name=name,
            instance_id=instance_id,
            tables_in_database=self._tables_in_database,
            skew_margin_seconds=self._margin_seconds,
            clock=self._clock,
            ahead=self._ahead,
        )

    def read(self) -> RegistryView | None:
        """Return the registry, or None when there is none yet.

        Raises:
            UnreadableStateError: it is corrupt.
            Unavailable: the store did not answer.
        """
        document = self._document()
        found = document.read()
        return None if found is None else self._view(found, document)

    def init(self, tables: EngineTablesConfig | None = None, state: Mapping[str, object] | None = None) -> RegistryView:
        """Make the registry, with the application's own fields in ``state``. One that is there is never overwritten.

        Raises:
            Conflict: there is one already; nothing was changed.
            Ambiguous: the answer was lost, and whether it was made could not be found out.
            ConfigurationError: ``state`` is not JSON, or names a field that the registry keeps itself; or ``tables``
                are given to the registry of an instance.
        """
        if tables is not None:
            self.require_tables(tables)
        document = self._document()
        try:
            created = document.create(doc.stamped(self._initial(tables, state), new_id()))
        except Conflict as error:
            raise Conflict(f"There is a registry '{self.name}' already; nothing was changed.") from error
        return self._view(created, document)

    def require_free(self, job_id: str | None = None) -> None:
        """Look whether the lock can be had now, by ``job_id`` if given. Only taking it makes sure.

        Raises:
            RegistryLocked: another job has it; the message names the job and until when (HTTP 409).
        """
        view = self.read()
        if view is not None:
            doc.require_free(
                view.document,
                now=view.read_at,
                skew_margin=self._skew_margin,
                job_id=job_id,
                outlived=self._outlived(view.lock, view.read_at),
            )

    @contextmanager
    def locked(
        self,
        job_id: str,
        *,
        duration_seconds: float = DEFAULT_LOCK_SECONDS,
        heartbeat_interval_seconds: float | None = None,
    ) -> Iterator[HeldRegistry]:
        """Hold the lock while the block runs; extend it beside the block; release it whatever happens.

        The lock is extended every third of its duration, so the block may take longer. If the process dies, the lock
        ends by itself after ``duration_seconds``, or the same job takes it up again at once.

        Raises:
            RegistryLocked: another job has the lock; the block is not run (HTTP 409).
            ConfigurationError: the job's name, the duration or the interval cannot be used.
        """
        margin = self._holder_margin(duration_seconds)
        checked_interval(heartbeat_interval_seconds, duration_seconds)
        asked_at = self._clock.monotonic()
        held = HeldRegistry(
            self._apply,
            self.acquire(job_id, duration_seconds=duration_seconds),
            require_tables=self.require_tables,
            duration_seconds=duration_seconds,
            margin_seconds=margin,
            clock=self._clock,
            asked_at=asked_at,
        )
        try:
            with keeping(held, self._clock, interval_seconds=heartbeat_interval_seconds):
                yield held
        finally:
            held.give_back()

    # Step by step, for operations whose steps run in different processes

    def acquire(self, job_id: str, *, duration_seconds: float = DEFAULT_LOCK_SECONDS) -> RegistryView:
        """Take the lock; ``lock.fencing_token`` of the answer names this acquisition. Makes the registry if need be.

        A job that has the lock already keeps it, for a whole duration from now.

        Raises:
            RegistryLocked: another job has it; the message names the job and until when (HTTP 409).
            ConfigurationError: the job's name or the duration cannot be used.
        """
        checked_job_id(job_id)
        self._holder_margin(duration_seconds)
        view = self._apply(
            lambda document, now: doc.acquire_lock(
                document,
                job_id,
                now=now,
                duration_seconds=duration_seconds,
                skew_margin=self._skew_margin,
                outlived=self._outlived(lock_of(document), now),
            ),
            create=True,
        )
        doc.require_lock(view.document, Holder(job_id))  # it may have landed, its answer lost, and be gone again by now
        return view

    def extend(
        self, job_id: str, *, duration_seconds: float | None = None, fencing_token: FencingToken | None = None
    ) -> RegistryView:
        """Keep the lock for a whole duration from now: the one it was taken with, or another.

        Raises:
            RegistryLocked: the lock is not the job's, or has run out.
        """
        holder = Holder(job_id, fencing_token)
        return self._apply(
            lambda document, now: doc.extend_lock(document, holder, now=now, duration_seconds=duration_seconds)
        )

    def change(
        self,
        job_id: str,
        changes: Mapping[str, object],
        *,
        remove: Collection[str] = (),
        tables: EngineTablesConfig | None = None,
        fencing_token: FencingToken | None = None,
    ) -> RegistryView:
        """Set the application's own fields, remove others, and set where engines keep their tables, in one write.

        Raises:
            RegistryLocked: the lock is not the job's, or has run out; nothing was written.
            ConfigurationError: a value is not JSON, or a field is one that the registry keeps itself; or ``tables``
                are given to the registry of an instance.
        """
        holder = Holder(job_id, fencing_token)
        if tables is not None:
            self.require_tables(tables)

        def changed(document: Document, now: datetime) -> Document:
            revised = doc.change(document, holder, changes, now=now, remove=remove)
            return revised if tables is None else doc.configure_tables(revised, holder, tables, now=now)

        return self._apply(changed)

    def configure_tables(
        self, job_id: str, tables: EngineTablesConfig, *, fencing_token: FencingToken | None = None
    ) -> RegistryView:
        """Set where engines keep dead letters and history.

        Raises:
            RegistryLocked: the lock is not the job's, or has run out; nothing was written.
            ConfigurationError: this is the registry of an instance, or the tables cannot be named so: see
                ``require_tables``.
        """
        self.require_tables(tables)
        holder = Holder(job_id, fencing_token)
        return self._apply(lambda document, now: doc.configure_tables(document, holder, tables, now=now))

    def release(self, job_id: str, *, fencing_token: FencingToken | None = None) -> RegistryView:
        """Give the lock back; it is free at once. Does nothing when nobody has it.

        Raises:
            RegistryLocked: another job has the lock, or a later acquisition of the same job.
        """
        holder = Holder(job_id, fencing_token)
        return self._apply(lambda document, now: doc.release_lock(document, holder))

    def force_unlock(self, seen: LockView) -> RegistryView:
        """Take the lock away from the job that was ``seen`` to have it. That job can change nothing from then on.

        Raises:
            RegistryLocked: the lock is another one by now; nothing was changed.
        """
        return self._apply(lambda document, now: doc.force_unlock(document, seen))

    def _outlived(self, lock: LockView, now: datetime) -> LockView | None:
        """Return a lock that was watched for its whole duration, its end in the future by a wrong clock; else None."""
        if lock.until is None or not lock.ends_ahead(now):
            return None
        is_outlived = self._ahead.is_wrong(
            f"the lock of registry '{self.name}'",
            lock.until,
            now,
            what="its end",
            remedy=f"job '{lock.job_id}' has not extended it for its whole duration, so it is free",
            watched_seconds=lock.duration_seconds + self._margin_seconds,
        )
        return lock if is_outlived else None

    def _document(self) -> ConditionalDocument:
        return ConditionalDocument(self.documents, self.name, _REGISTRY, self._clock, quick_tries=QUICK_TRIES)

    def _apply(self, command: Command, *, create: bool = False) -> RegistryView:
        """Change the registry by a write whose id stays in it, by which its writer can find it again."""
        document, write_id = self._document(), new_id()
        if create:
            document.read_or_create(self._initial())

        def stamped(found: Document, now: datetime) -> Document:
            changed = command(found, now)
            return found if changed is found else doc.stamped(changed, write_id)

        return self._view(document.apply(stamped, tries=_TRIES), document)

    def _view(self, found: Document, document: ConditionalDocument) -> RegistryView:
        return RegistryView(self.name, found, document.time.now(), self.instance_id)

    def _initial(self, tables: EngineTablesConfig | None = None, state: Mapping[str, object] | None = None) -> Document:
        return doc.initial(tables, state, has_tables=self.instance_id is None)

    def require_tables(self, tables: EngineTablesConfig) -> None:
        """Look whether this registry may say that engines keep their tables there.

        Raises:
            ConfigurationError: it is the registry of an instance; or the tables are in the database, which has no
                others than Holdfast's own.
        """
        if self.instance_id is not None:
            raise tables_elsewhere(self.name, self.instance_id)
        if self._tables_in_database and not tables.has_usual_names:
            raise tables_in_database(self.name)

    @property
    def _skew_margin(self) -> timedelta:
        """Return how long after its end a lock is left alone."""
        return timedelta(seconds=self._margin_seconds)

    def _holder_margin(self, duration_seconds: float) -> float:
        """Return how long before its end a holder stops to believe in its lock.

        Raises:
            ConfigurationError: the duration is too short for the margin the store's clock needs.
        """
        checked_duration(duration_seconds)
        margin = max(self._margin_seconds, min(_MOST_MARGIN_SECONDS, duration_seconds / 10))
        if duration_seconds <= 2 * margin:
            raise ConfigurationError(
                f"A registry lock of {duration_seconds:g} s is too short: this store's clock needs a margin of "
                f"{margin:g} s on either side, so use more than {2 * margin:g}."
            )
        return margin
