"""What a trigger needs from a source, and how the simpler sources of azure-functions-db fit in."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Protocol, runtime_checkable

from sqlalchemy.engine import Engine

from ...core.cursor import OpaqueCursor, parse_cursor
from ...core.errors import CursorSerializationError, FetchError, SerializationError
from ...core.types import CursorValue, JsonObject, RawRecord, SourceDescriptor
from ...database.history import History, UnknownHistory


@dataclass(frozen=True, slots=True)
class AdapterCapability:
    """What a source can promise. People read it in ``holdfast trigger show``; the runner does not depend on it.

    ``detects_updates`` means that an update which moves the cursor is delivered. Whether every update does move it is
    ``updates``: ``proved``, ``trusted`` (the application said so), ``not proved`` or ``inserts only``, with the reason
    in ``updates_because`` and the command that would prove more in ``prove_updates_with``. It holds, and so does
    ``safe_from_late_commits``, of the rows that ``covers`` names. ``misses`` says which rows that commit late are
    missed where it does not. ``hidden`` says, with what to do, that row level security keeps rows from the source's
    role. ``notices_restore`` means that it is noticed when rows that were delivered are taken back, by a restore or a
    fail-over; ``restore`` says how far, or why not.
    """

    detects_updates: bool = True
    detects_deletes: bool = False
    ordered: bool = True
    safe_from_late_commits: bool = False
    horizon: str = "none"
    updates: str = "not proved"
    updates_because: str = "nothing is known of this source"
    prove_updates_with: str | None = None
    covers: str = "every row"
    hidden: str | None = None
    misses: str | None = None
    notices_restore: bool = False
    restore: str = "nothing is known of this source"


@dataclass(frozen=True, slots=True)
class Waiting:
    """A row that is committed and cannot be read safely yet, with its time where the source can tell it."""

    at: datetime | None


@dataclass(frozen=True, slots=True)
class FetchResult:
    """One page of changes.

    ``next_checkpoint`` is where the trigger stands once the page was delivered (None: it is read off the last event).
    ``caught_up`` means that nothing more can be read at this moment, ``exhausted`` that nothing more could be read when
    the source last looked how far it may. ``oldest_at`` and ``newest_at`` are the times of
    the first and the last record where the source reads in time order; ``held_back_by`` says in words what keeps the
    source from reading further, and ``waiting`` is the oldest row that waits behind it.
    """

    records: Sequence[RawRecord]
    next_checkpoint: JsonObject | None = None
    caught_up: bool = False
    newest_at: datetime | None = None
    held_back_by: tuple[str, ...] = ()
    oldest_at: datetime | None = None
    waiting: Waiting | None = None
    exhausted: bool = False


@runtime_checkable
class SourceAdapter(Protocol):
    """A source of changes, read page by page from a checkpoint."""

    @property
    def source_descriptor(self) -> SourceDescriptor:
        """Return what the source is."""
        ...

    def validate(self) -> None:
        """Check the definition against the real database; raise ``SourceConfigurationError`` naming what is wrong."""
        ...

    def open(self) -> None:
        """Make ready to fetch. May be called again after ``close``."""
        ...

    def close(self) -> None:
        """Give resources back."""
        ...

    def fetch_changes(self, checkpoint: JsonObject, limit: int) -> FetchResult:
        """Return at most ``limit`` changes after ``checkpoint``, in order."""
        ...

    def capability(self) -> AdapterCapability:
        """Return what the source can promise."""
        ...


@runtime_checkable
class HistorySource(Protocol):
    """A source that can tell whether what was read of it is still there. Other sources need none of this."""

    def sessions(self) -> int:
        """Return how many sessions it has begun: after a new one, everything may be another server's."""
        ...

    def is_in(self, database: Engine) -> bool:
        """Return whether its rows are in that database, so that whatever takes one back takes the other, too."""
        ...

    def history(self, reader: str | None, since: str | None, *, marks: bool = False) -> History | UnknownHistory:
        """Return its history now, with the past since a timeline; see ``present_history``."""
        ...

    def transaction_of(self, checkpoint: JsonObject) -> int | None:
        """Return the transaction id that a checkpoint stands at; None where its cursor is something else."""
        ...

    def close(self) -> None:
        """Forget what was found out about the database: it is another one now."""
        ...


@runtime_checkable
class SimpleSource(Protocol):
    """The source protocol of azure-functions-db: one method."""

    @property
    def source_descriptor(self) -> SourceDescriptor:
        """Return what the source is."""
        ...

    def fetch(self, cursor: CursorValue | None, batch_size: int) -> Sequence[RawRecord]:
        """Return at most ``batch_size`` records after ``cursor``."""
        ...


class SimpleSourceAdapter:
    """Makes a one-method source look like a full one. Its cursor is whatever its events' cursor is."""

    def __init__(self, source: SimpleSource) -> None:
        self._source = source

    @property
    def source_descriptor(self) -> SourceDescriptor:
        """Return what the source is."""
        return self._source.source_descriptor

    def validate(self) -> None:
        """Nothing can be checked from outside."""

    def open(self) -> None:
        """Nothing to make ready."""

    def close(self) -> None:
        """Nothing to give back."""

    def capability(self) -> AdapterCapability:
        """Return the most cautious promise: nothing is known of this source."""
        return AdapterCapability()

    def fetch_changes(self, checkpoint: JsonObject, limit: int) -> FetchResult:
        """Fetch with the event-style cursor the last event had."""
        try:
            cursor = parse_cursor(checkpoint.get("cursor"))
        except CursorSerializationError as error:
            raise SerializationError(str(error)) from error
        if cursor is not None and not isinstance(cursor, OpaqueCursor):
            raise SerializationError(
                f"The checkpoint of source '{self.source_descriptor.name}' was written by a SQL source. Give this "
                "trigger another name, or reset it."
            )
        records = self._source.fetch(None if cursor is None else cursor.parts, limit)
        return FetchResult(records, caught_up=len(records) < limit)


def checkpoint_after(cursor: CursorValue, source_name: str) -> JsonObject:
    """Return the checkpoint behind an event of a one-method source.

    Raises:
        FetchError: the event has no cursor, so the same batch would come again for ever.
    """
    if cursor is None or cursor == ():
        raise FetchError(
            f"An event of source '{source_name}' has no cursor, so the trigger could never move on. Let the normalizer "
            "set RowChange.cursor."
        )
    return {"cursor": OpaqueCursor(cursor).to_json()}


def adapted(source: SourceAdapter | SimpleSource) -> SourceAdapter:
    """Return the full form of either kind of source."""
    return source if isinstance(source, SourceAdapter) else SimpleSourceAdapter(source)
