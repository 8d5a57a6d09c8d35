"""What some process must do now and then: say who holds the outbox back, and delete what everyone has passed."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from datetime import timedelta
from functools import partial

from sqlalchemy.engine import Engine

from ..core.clock import Clock
from ..database.pools import autocommit
from ..database.statements import family
from ..records import audit
from ..records.database import changing, translated
from ..records.times import database_now
from ..runtime.housekeeping import Chore, pruning
from .message import Checkpoint
from .pruned import lock_pruned, note_pruned
from .statements import named
from .store import CheckpointStore, Place, Role

_log = logging.getLogger("holdfast.outbox")
_LOOK_SECONDS = 30.0
_WORTH_LOGGING_SECONDS = 10.0
_LOG_AGAIN_SECONDS = 60.0
_PRUNED_AT_ONCE = 5000


@dataclass(frozen=True, slots=True)
class HeldBackBy:
    """The transaction that committed messages wait for [OUTBOX-5]."""

    who: str
    seconds: float | None
    """None when this role may not see how old another's transaction is."""

    def __str__(self) -> str:
        if self.seconds is None:
            return f"{self.who}, open for a time this role may not see (GRANT pg_read_all_stats)"
        return f"{self.who}, open for {self.seconds:.0f} s"


class OutboxHousekeeping:
    """The outbox's chores in one process."""

    def __init__(
        self, engine: Engine, checkpoints: CheckpointStore, clock: Clock, retention: timedelta | None = None
    ) -> None:
        self._engine = engine
        self._checkpoints = checkpoints
        self._clock = clock
        self._retention = retention
        self._log_at = 0.0

    def chores(self) -> list[Chore]:
        """Return what is to be done now and then."""
        found = [Chore("looking who holds the outbox back", self.warn, _LOOK_SECONDS)]
        if self._retention is not None:
            due = partial(prune_some, self._engine, self._checkpoints, self._retention)
            found.append(pruning("deleting messages past their retention", due, _PRUNED_AT_ONCE))
        return found if self._engine.dialect.name == "postgresql" else found[1:]

    def warn(self) -> None:
        """Warn when messages wait for a transaction that has been open for long."""
        now, found = self._clock.monotonic(), held_back_by(self._engine)
        is_old = found is not None and (found.seconds is None or found.seconds >= _WORTH_LOGGING_SECONDS)
        if is_old and now >= self._log_at:
            self._log_at = now + _LOG_AGAIN_SECONDS
            _log.warning(
                "Messages wait for %s: those of later transactions cannot be delivered in order until it ends", found
            )


def held_back_by(engine: Engine) -> HeldBackBy | None:
    """Return whom committed messages wait for, None when they wait for nobody."""
    if engine.dialect.name != "postgresql":
        return None
    with translated(engine, writes=False), autocommit(engine) as connection:
        row = connection.exec_driver_sql(named.statement("postgresql", "held_back")).one()
    is_held, pid, seconds, database, application, prepared, prepared_seconds = row
    if not is_held:
        return None
    if prepared is not None:
        return HeldBackBy(f"prepared transaction '{prepared}'", prepared_seconds)
    if pid is None:
        return None
    name = f" ({application})" if application else ""
    return HeldBackBy(f"the transaction of pid {pid}{name} in database '{database}'", seconds)


def prune(engine: Engine, checkpoints: CheckpointStore, retention: timedelta, actor: str | None = None) -> int:
    """Delete messages older than ``retention`` that every registered processor has passed; return how many.

    Each transaction deletes some thousands, and has a row in the audit if a person (``actor``) wants it.
    """
    deleted = 0
    while (found := prune_some(engine, checkpoints, retention, actor)) == _PRUNED_AT_ONCE:
        deleted += found
    return deleted + found


def prune_some(engine: Engine, checkpoints: CheckpointStore, retention: timedelta, actor: str | None = None) -> int:
    """Delete some of them, in one transaction; return how many [OUTBOX-7]. They are counted [OUTBOX-8]."""
    dialect = family(engine.dialect.name)
    with changing(engine) as connection:
        lock_pruned(connection)
        passed = _passed_by_all(checkpoints.of(connection=connection))
        if passed is None:
            return 0
        before = database_now(connection) - retention
        moment = before if dialect == "postgresql" else f"{before.replace(tzinfo=None):%Y-%m-%d %H:%M:%S.%f}"
        values = {**passed, "before": moment, "most": _PRUNED_AT_ONCE}
        deleted = connection.exec_driver_sql(named.statement(dialect, "prune"), values).rowcount
        if deleted:
            note_pruned(connection, deleted)
        if deleted and actor is not None:
            details = {"older_than_seconds": retention.total_seconds(), "deleted": deleted}
            audit.record(connection, actor, "outbox prune", "holdfast_outbox", details)
        return deleted


def _passed_by_all(places: list[Place]) -> dict[str, object] | None:
    """Return what every processor that is not retired has passed, in both orders; None when one has not begun."""
    waiting = [place for place in places if place.role is not Role.RETIRED]
    if any(place.checkpoint is None for place in waiting):
        return None
    by_transaction = [
        place.checkpoint for place in waiting if place.checkpoint and place.reading_order == "transaction"
    ]
    by_position = [
        place.checkpoint.position for place in waiting if place.checkpoint and place.reading_order != "transaction"
    ]
    passed = min(by_transaction, default=Checkpoint(2**62, 2**62))
    return {
        "transaction": str(passed.transaction_id),
        "position": passed.position,
        "below": min(by_position, default=2**62),
    }
