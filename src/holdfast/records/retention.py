"""Retention: history is forgotten after 90 days, dead letters 90 days after they were settled; Pending ones never are.

The audit is kept until somebody prunes it: sealed rows go, their seals stay, and the audit tells who pruned them.

Rows go in small batches, a transaction each, so that nobody waits for a long one. Several processes may prune at once,
and one that dies has pruned what it has pruned.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime

from sqlalchemy import and_, delete, func, or_, select, tuple_, update
from sqlalchemy.engine import Engine

from ..core.errors import ConfigurationError
from . import audit
from .database import changing, reading
from .dead_letters import LetterStatus
from .schema import audit_seals_table, audit_table, dead_letters_table, history_table
from .seals import PRUNED
from .times import database_now, days_before

RETENTION_DAYS = 90.0
SHORTEST_RETENTION_DAYS = 7.0
_BATCH = 1000
_letters = dead_letters_table.c


@dataclass(frozen=True, slots=True)
class Pruned:
    """How many rows were forgotten."""

    history: int
    dead_letters: int


def prune(
    engine: Engine,
    *,
    history_days: float = RETENTION_DAYS,
    dead_letter_days: float = RETENTION_DAYS,
    batch_size: int = _BATCH,
) -> Pruned:
    """Forget older history and letters settled longer ago, by the database's time; return how many.

    Raises:
        ConfigurationError: a number makes no sense, or the tables are missing.
        DbConnectionError: the database does not answer; what was forgotten before stays forgotten.
    """
    for days in (history_days, dead_letter_days):  # both before anything is forgotten
        check_days(days, batch_size)
    return Pruned(prune_history(engine, history_days, batch_size), prune_letters(engine, dead_letter_days, batch_size))


def prune_history(engine: Engine, days: float = RETENTION_DAYS, batch_size: int = _BATCH) -> int:
    """Forget history alone."""
    check_days(days, batch_size)
    return sum(_history_batches(engine, _days_ago(engine, days), batch_size))


def prune_letters(engine: Engine, days: float = RETENTION_DAYS, batch_size: int = _BATCH) -> int:
    """Forget settled letters alone."""
    check_days(days, batch_size)
    return sum(_letter_batches(engine, _days_ago(engine, days), batch_size))


def prune_audit(engine: Engine, days: float, actor: str) -> int:
    """Forget the rows of the oldest seals, as far as all of them are older; return how many.

    The seals stay as an anchor, and a row of the audit, sealed with the next, tells what went and by whom.
    """
    check_days(days)
    before, rows, seals = _days_ago(engine, days), audit_table.c, audit_seals_table.c
    with changing(engine) as connection:
        young = select(func.min(rows.seal)).where(rows.seal.is_not(None), rows.at >= before).scalar_subquery()
        is_old = seals.number < func.coalesce(young, seals.number + 1)
        last = connection.execute(select(func.max(seals.number)).where(is_old)).scalar()
        forgotten = 0 if last is None else connection.execute(delete(audit_table).where(rows.seal <= last)).rowcount
        if forgotten:
            connection.execute(update(audit_seals_table).where(seals.number <= last).values(row_digests=None))
            details = {"older_than_days": days, "rows": forgotten, "last_seal": last}
            audit.record(connection, actor, PRUNED, f"seals up to {last}", details)
    return forgotten


def check_days(days: float, batch_size: int = _BATCH) -> None:
    """Check what is asked for.

    Raises:
        ConfigurationError: a number makes no sense.
    """
    if days < 0 or batch_size < 1:
        raise ConfigurationError(
            f"Cannot prune after {days:g} days in batches of {batch_size}: days must be 0 or more, a batch 1 or more."
        )


def check_configured_days(days: float) -> None:
    """Check a retention that is to be configured: what was settled by mistake must stay long enough to be noticed.

    Raises:
        ConfigurationError: it is below the floor.
    """
    if days < SHORTEST_RETENTION_DAYS:
        raise ConfigurationError(
            f"retentionDays is {days:g}, and records are kept for at least {SHORTEST_RETENTION_DAYS:g} days, so that a "
            f"mistake can be noticed. Give {SHORTEST_RETENTION_DAYS:g} or more."
        )


def effective_days(configured: float) -> float:
    """Return how long records are kept: never less than the floor, whoever wrote the configuration, and when."""
    return max(configured, SHORTEST_RETENTION_DAYS)


def _days_ago(engine: Engine, days: float) -> datetime:
    with reading(engine) as connection:
        return days_before(database_now(connection), days)


def _history_batches(engine: Engine, before: datetime, batch_size: int) -> Iterator[int]:
    """Walk from the oldest id until a batch has nothing old: ids grow with time, so no scan of what is to stay."""
    columns, last_id = history_table.c, 0
    while True:
        oldest = select(columns.id, columns.created_at).where(columns.id > last_id).order_by(columns.id)
        with changing(engine) as connection:
            rows = connection.execute(oldest.limit(batch_size)).all()
            old = [row.id for row in rows if row.created_at < before]
            if not old:
                return
            forgotten = connection.execute(delete(history_table).where(columns.id.in_(old))).rowcount
        last_id = rows[-1].id
        yield forgotten


def _letter_batches(engine: Engine, before: datetime, batch_size: int) -> Iterator[int]:
    resolved = and_(_letters.status == LetterStatus.RESOLVED.value, _letters.resolved_at < before)
    settled_at = func.coalesce(_letters.resolved_at, _letters.last_failure_at)  # another program may not tell it
    expired = and_(_letters.status == LetterStatus.EXPIRED.value, settled_at < before)
    is_settled = or_(resolved, expired)
    key = tuple_(_letters.engine, _letters.row_key)
    while True:
        with changing(engine) as connection:
            found = connection.execute(
                select(_letters.engine, _letters.row_key).where(is_settled).limit(batch_size)
            ).all()
            keys = [(row.engine, row.row_key) for row in found]
            if not keys:
                return
            forgotten = connection.execute(delete(dead_letters_table).where(key.in_(keys), is_settled)).rowcount
        yield forgotten
