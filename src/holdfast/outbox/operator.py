"""What people do with processors: look, promote, stop, resume, reset, rebuild, forget. Every change is audited."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from sqlalchemy import ColumnElement, Table, and_, delete, select, text
from sqlalchemy.engine import Connection, Engine

from ..core.errors import ConfigurationError, Conflict, NotFoundError
from ..core.moments_ahead import TOLERATED_SECONDS
from ..database.reflection import reflect_table
from ..lease.document import LeaseView
from ..lease.store import StateStore
from ..records import audit
from ..records.database import changing, reading, translated
from ..records.times import database_now, database_time
from . import parking
from .housekeeping import HeldBackBy, held_back_by
from .letters import withdraw
from .message import Checkpoint
from .pruned import lock_pruned, refusal
from .reader import OutboxReader, Selection
from .schema import checkpoints_table, waiting_table
from .store import CheckpointStore, PartitionId, Place, Role, Status, is_any_of
from .wake_ups import notify_of_changes

_WAITING_IS_SEEN = timedelta(seconds=30)
_columns = checkpoints_table.c
NOT_RUNNING = "not running"


@dataclass(frozen=True, slots=True)
class ProcessorView:
    """One partition of a processor as people see it."""

    place: Place
    behind: int
    holder: str | None
    lease_until: datetime | None
    waiting: list[str]

    @property
    def status(self) -> str:
        """Return what it does now: ``running`` and ``rebuilding`` only while an instance holds its lease."""
        if not self.place.may_run:
            return self.place.role.value if self.place.role is Role.RETIRED else self.place.status.value
        if self.holder is None:
            return NOT_RUNNING
        return "rebuilding" if self.place.rebuild_to is not None else self.place.status.value


@dataclass(frozen=True, slots=True)
class Progress:
    """How far a rebuild is."""

    done: int
    total: int

    @property
    def is_over(self) -> bool:
        """Return whether everything was replayed."""
        return self.done >= self.total


class ProcessorOperator:
    """Looks at processors and changes them."""

    def __init__(self, engine: Engine, checkpoints: CheckpointStore, leases: StateStore) -> None:
        self._engine = engine
        self._checkpoints = checkpoints
        self._leases = leases

    # Looking

    def views(self, processor_id: str | None = None) -> list[ProcessorView]:
        """Return every partition, or those of one processor.

        Raises:
            NotFoundError: there is no such processor.
        """
        places = self._checkpoints.of(processor_id)
        if processor_id is not None and not places:
            raise self._unknown(processor_id)
        return [self._view(place) for place in places]

    def held_back_by(self) -> HeldBackBy | None:
        """Return whom committed messages wait for, None when they wait for nobody."""
        return held_back_by(self._engine)

    def behind(self, place: Place, checkpoint: Checkpoint | None) -> int:
        """Return how many messages lie behind a checkpoint, in a processor's own order, counted up to a limit."""
        return self._reader(place).behind(checkpoint)

    def end_of(self, place: Place) -> Checkpoint | None:
        """Return the last message a processor could read now."""
        return self._reader(place).end()

    def is_rebuilding(self, processor_id: str, version: int) -> bool:
        """Return whether a rebuild was started and is not over."""
        return any(place.rebuild_to is not None for place in self._checkpoints.of(processor_id, version))

    def _view(self, place: Place) -> ProcessorView:
        lease = self._lease(place.id)
        return ProcessorView(
            place,
            self._reader(place).behind(place.checkpoint),
            None if lease is None else str(lease.owner_id),
            None if lease is None else lease.expires_at,
            self._waiting(place.id),
        )

    def _lease(self, partition: PartitionId) -> LeaseView | None:
        """Return a lease that is held now."""
        view = self._leases.read(partition.lease_name)
        lease = None if view is None else view.lease
        if view is None or lease is None or not lease.is_live(view.read_at, timedelta()):
            return None
        return lease

    def _waiting(self, partition: PartitionId) -> list[str]:
        columns = waiting_table.c
        with reading(self._engine) as connection:
            now = database_now(connection)
            query = select(columns.instance_id).where(
                columns.processor_id == partition.processor_id,
                columns.version == partition.version,
                columns.partition_number == partition.partition,
                columns.seen_at.between(now - _WAITING_IS_SEEN, now + timedelta(seconds=TOLERATED_SECONDS)),
            )
            return sorted(connection.execute(query).scalars())

    def _reader(self, place: Place) -> OutboxReader:
        return OutboxReader(self._engine, Selection(), place.reading_order)

    # Changing

    def promote(self, processor_id: str, version: int | None = None, *, actor: str, force: bool = False) -> int:
        """Put the version that runs beside the active one in its place, and retire that; return the version.

        Raises:
            NotFoundError: there is no such processor or version.
            Conflict: it has not caught up, or is active already; nothing was changed.
        """
        with changing(self._engine) as connection:
            places = self._locked(connection, processor_id)
            chosen = self._promotable(places, processor_id, version)
            if not force:
                self._require_caught_up(places, chosen)
            self._checkpoints.change(
                connection,
                and_(_columns.processor_id == processor_id, _columns.role == Role.ACTIVE.value),
                role=Role.RETIRED.value,
            )
            values = {"role": Role.ACTIVE.value, "fencing_token": 0}  # who runs it looks again before its next batch
            self._checkpoints.change(connection, _of(processor_id, chosen), **values)
            audit.record(connection, actor, "processor promote", processor_id, {"version": chosen, "force": force})
        return chosen

    def _promotable(self, places: Sequence[Place], processor_id: str, version: int | None) -> int:
        beside = sorted({place.id.version for place in places if place.role is Role.BESIDE})
        if version is None:
            if not beside:
                raise Conflict(
                    f"No version of processor '{processor_id}' runs beside the active one. Declare a higher version=… "
                    "and run it first; nothing was changed."
                )
            return beside[-1]
        if version in beside:
            return version
        known = {place.id.version: place.role.value for place in places}
        if version not in known:
            raise NotFoundError(
                f"Processor '{processor_id}' has no version {version}. Versions: {', '.join(map(str, known))}."
            )
        raise Conflict(f"Version {version} of processor '{processor_id}' is {known[version]}; nothing was changed.")

    def _require_caught_up(self, places: Sequence[Place], version: int) -> None:
        """The new version must have come as far as the active one, and not further.

        What it has passed beyond the active one it has handled as inactive, and nobody would as the active one.
        """
        new = [place for place in places if place.id.version == version]
        active = [place for place in places if place.role is Role.ACTIVE]
        if not active:
            return
        name = f"Version {version} of processor '{places[0].id.processor_id}'"
        if {place.checkpoint for place in new} == {place.checkpoint for place in active}:
            return
        left = max(self._reader(place).behind(place.checkpoint) for place in new)
        active_left = max(self._reader(place).behind(place.checkpoint) for place in active)
        if left == active_left == 0:
            return
        which = f"{left:,} messages before it" if left >= active_left else "gone further than the active version"
        raise Conflict(
            f"{name} has {which}, and the active one has {active_left:,} messages before it. Wait until both have "
            "handled the same, for example while nothing is appended, or pass --force; nothing was changed."
        )

    def stop(self, processor_id: str, *, actor: str, reason: str = "stopped by hand") -> int:
        """Let a processor deliver nothing until it is resumed; return how many partitions that are."""
        return len(self._set(processor_id, actor, "processor stop", status=Status.STOPPED.value, reason=reason))

    def resume(self, processor_id: str, *, actor: str) -> int:
        """Let a stopped processor go on; return how many partitions were stopped.

        Those that run look again where they stand: so they go on, too, when their lease's document was lost.
        """
        values = {"status": Status.RUNNING.value, "reason": None, "fencing_token": 0}
        if self._engine.dialect.name in ("mysql", "mariadb"):
            with changing(self._engine) as connection:
                connection.execute(text("UPDATE holdfast_outbox_sequence SET fencing_token = 0"))
        before = self._set(processor_id, actor, "processor resume", **values)
        return sum(place.status is Status.STOPPED for place in before)

    def _set(self, processor_id: str, actor: str, action: str, **values: object) -> list[Place]:
        """Change the partitions that are not retired; return them as they were."""
        with changing(self._engine) as connection:
            places = self._locked(connection, processor_id)
            wanted = and_(_columns.processor_id == processor_id, _columns.role != Role.RETIRED.value)
            self._checkpoints.change(connection, wanted, **values)
            audit.record(connection, actor, action, processor_id, {})
        return [place for place in places if place.role is not Role.RETIRED]

    def reset(
        self,
        processor_id: str,
        to: Checkpoint | None,
        *,
        actor: str,
        version: int | None = None,
        first_kept: Checkpoint | None = None,
    ) -> int:
        """Move every partition's checkpoint by hand (None: to the beginning); return how many partitions.

        A batch that is being handled is waited for; what comes after it is read from the new place.

        Raises:
            Conflict: retention has deleted the first messages, and ``first_kept`` does not name the first one kept.
        """
        with changing(self._engine) as connection:
            places = self._locked(connection, processor_id)
            chosen = version or _newest(places)
            to = self._reachable(next(place for place in places if place.id.version == chosen), to, connection)
            changed = self._checkpoints.change(connection, _of(processor_id, chosen), **_checkpoint_columns(to))
            if to is None:
                self._require_everything(connection, places, chosen, first_kept)
                withdraw(connection, processor_id, chosen, actor)
            details = {"version": chosen, "to": None if to is None else str(to)}
            audit.record(connection, actor, "processor reset", processor_id, details)
        return changed

    def _reachable(self, place: Place, to: Checkpoint | None, connection: Connection) -> Checkpoint | None:
        """Return a checkpoint as a processor's order has it.

        Raises:
            Conflict: it lies beyond the last message, so that messages to come would be skipped.
        """
        if to is None:
            return None
        reader = self._reader(place)
        wanted = reader.in_order(to)
        last = reader.last(connection)
        if last is None or wanted > last:
            raise Conflict(
                f"{to} lies beyond the last message ({last or 'there is none'}): what is appended up to there would "
                "never be delivered. Use 'end' to go on behind what is there; nothing was changed."
            )
        return wanted

    def forget(self, processor_id: str, version: int | None = None, *, actor: str, force: bool = False) -> int:
        """Delete what is stored of a processor, so that retention waits for it no more; return how many partitions.

        Raises:
            NotFoundError: there is no such processor.
            Conflict: an instance runs it; nothing was changed.
        """
        places = [item for item in self._checkpoints.of(processor_id) if version in (None, item.id.version)]
        if not places:
            raise self._unknown(processor_id)
        for place in places:
            lease = self._lease(place.id)
            if lease is not None and not force:
                raise Conflict(f"Processor {place.id} is run by {lease.owner_id}. Stop it first; nothing was changed.")
        with changing(self._engine) as connection:
            wanted = and_(
                _columns.processor_id == processor_id, _columns.version.in_({place.id.version for place in places})
            )
            deleted = connection.execute(delete(checkpoints_table).where(wanted)).rowcount
            parking.forget_all(connection, processor_id, version)
            audit.record(connection, actor, "processor forget", processor_id, {"version": version})
        return deleted

    # Rebuilding

    def require_everything(self, processor_id: str, version: int, first_kept: Checkpoint | None = None) -> None:
        """Refuse the beginning where retention has deleted the first messages, unless the first one kept is named.

        Raises:
            Conflict: it is not named.
        """
        with changing(self._engine) as connection:
            self._require_everything(
                connection, self._checkpoints.of(processor_id, connection=connection), version, first_kept
            )

    def _require_everything(
        self, connection: Connection, places: Sequence[Place], version: int, first_kept: Checkpoint | None
    ) -> None:
        """Refuse the beginning where the first messages are gone, unless the caller names the first one kept."""
        place = next(place for place in places if place.id.version == version)
        reader = self._reader(place)
        first = reader.first(connection)
        why = refusal(lock_pruned(connection), first, None if first_kept is None else reader.in_order(first_kept))
        if why is not None:
            step = (
                "Append messages first" if first is None else f"Pass first_kept (--first-kept {first}) to begin there"
            )
            raise Conflict(f"Processor '{place.id.processor_id}': {why}. {step}; nothing was changed.")

    def start_rebuild(
        self,
        processor_id: str,
        tables: Sequence[str],
        *,
        actor: str,
        version: int | None = None,
        restart: bool = False,
        first_kept: Checkpoint | None = None,
    ) -> bool:
        """Empty the tables and put the checkpoint back to the beginning, in one transaction.

        Returns False when a rebuild is under way already: it goes on, and nothing is emptied again.

        Raises:
            NotFoundError: there is no such processor.
            ConfigurationError: a table cannot be emptied; nothing was changed.
            Conflict: retention has deleted the first messages, and ``first_kept`` does not name the first one kept.
        """
        found = [_existing_table(self._engine, name) for name in tables]
        with changing(self._engine) as connection:
            places = self._locked(connection, processor_id)
            chosen = version or _newest(places)
            places = [place for place in places if place.id.version == chosen]
            if not places:
                raise NotFoundError(f"Processor '{processor_id}' has no version {chosen}; nothing was changed.")
            if not restart and any(place.rebuild_to is not None for place in places):
                return False
            self._require_everything(connection, places, chosen, first_kept)
            for place in places:
                self._put_back_to_the_beginning(connection, place)
            withdraw(connection, processor_id, chosen, actor)
            with translated(self._engine, writes=True):
                _empty(connection, found)
            details = {"version": chosen, "tables": list(tables)}
            audit.record(connection, actor, "processor rebuild", processor_id, details)
        return True

    def _put_back_to_the_beginning(self, connection: Connection, place: Place) -> None:
        last = self._reader(place).last(connection)
        self._checkpoints.change(
            connection,
            is_any_of([place.id]),
            **_checkpoint_columns(None),
            rebuild_transaction_id=None if last is None else last.transaction_id,
            rebuild_position=None if last is None else last.position,
            rebuild_started_at=None if last is None else database_time(connection.dialect),
            status=Status.RUNNING.value,
            reason=None,
        )

    def rebuild_progress(self, processor_id: str, version: int | None = None) -> Progress:
        """Return how far the rebuild of a processor is, in messages; it is over when ``done`` is ``total``."""
        places = [item for item in self._checkpoints.of(processor_id) if version in (None, item.id.version)]
        done = total = 0
        for place in places:
            if place.rebuild_to is None:
                continue
            reader = self._reader(place)
            all_messages = reader.behind(None, most=2**31 - 1)
            beyond = reader.behind(place.rebuild_to, most=2**31 - 1)
            left = 0 if _has_reached(place) else reader.behind(place.checkpoint, most=2**31 - 1)
            total += all_messages - beyond
            done += all_messages - beyond if _has_reached(place) else max(0, all_messages - left)
        return Progress(done, total)

    def end_rebuild(self, processor_id: str) -> None:
        """Note that rebuilds that have reached their end are over."""
        with changing(self._engine) as connection:
            over = [place.id for place in self._locked(connection, processor_id) if _has_reached(place)]
            for partition in over:
                self._checkpoints.change(
                    connection,
                    is_any_of([partition]),
                    rebuild_transaction_id=None,
                    rebuild_position=None,
                    rebuild_started_at=None,
                )

    def _locked(self, connection: Connection, processor_id: str) -> list[Place]:
        """Return the places of a processor, locked until the transaction ends."""
        query = select(_columns.version).where(_columns.processor_id == processor_id).with_for_update()
        connection.execute(query).all()
        notify_of_changes(connection)
        places = self._checkpoints.of(processor_id, connection=connection)
        if not places:
            raise self._unknown(processor_id)
        return places

    def _unknown(self, processor_id: str) -> NotFoundError:
        known = sorted({place.id.processor_id for place in self._checkpoints.of()})
        return NotFoundError(f"There is no processor '{processor_id}'. Known: {', '.join(known) or 'none'}.")


def _has_reached(place: Place) -> bool:
    return place.rebuild_to is not None and place.checkpoint is not None and place.checkpoint >= place.rebuild_to


def _newest(places: Sequence[Place]) -> int:
    found = [place.id.version for place in places if place.role is not Role.RETIRED]
    if not found:
        raise Conflict(f"Every version of processor '{places[0].id.processor_id}' is retired; nothing was changed.")
    return max(found)


def _of(processor_id: str, version: int) -> ColumnElement[bool]:
    return and_(_columns.processor_id == processor_id, _columns.version == version)


def _checkpoint_columns(to: Checkpoint | None) -> dict[str, int | None]:
    return {
        "last_processed_transaction_id": None if to is None else to.transaction_id,
        "last_processed_position": None if to is None else to.position,
    }


def _existing_table(engine: Engine, name: str) -> Table:
    schema, _, table = name.rpartition(".")
    if table.startswith("holdfast_"):
        raise ConfigurationError(f"'{name}' is a table of Holdfast itself. Name the tables your processor fills.")
    return reflect_table(engine, table, schema or None, ConfigurationError)


def _empty(connection: Connection, tables: Sequence[Table]) -> None:
    """Empty tables inside the transaction. MariaDB would commit at a TRUNCATE: there and on SQLite rows are deleted."""
    names = [connection.dialect.identifier_preparer.format_table(table) for table in tables]
    if not names:
        return
    if connection.dialect.name == "postgresql":
        connection.execute(text(f"TRUNCATE {', '.join(names)}"))
        return
    for name in names:
        connection.execute(text(f"DELETE FROM {name}"))
