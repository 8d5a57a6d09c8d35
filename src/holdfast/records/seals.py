"""Seals over the audit: what was changed, removed or inserted behind one can be found and named.

A seal covers the rows that had committed and were under no seal. Its number is written on them in the transaction that
makes it, so a row with a small id that commits late goes under the next seal. Each digest covers the one before it; the
last, the head, belongs somewhere else too (the log has it): whoever can write to the database can make a chain anew.
"""

from __future__ import annotations

import hashlib
import json
import logging
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from sqlalchemy import Row, RowMapping, exists, func, insert, select, update
from sqlalchemy.engine import Connection, Engine
from sqlalchemy.exc import IntegrityError

from ..core.errors import ConfigurationError
from .database import changing, reading
from .schema import audit_seals_table, audit_table
from .times import database_now

SEAL_SECONDS = 60.0
PRUNED = "audit prune"
"""What the audit calls it when rows are pruned; only what such a row tells of may be missing."""

_BATCH = 500
_NOTHING = ""
_log = logging.getLogger("holdfast.records")
_rows, _seals = audit_table.c, audit_seals_table.c
_CONTENT = (_rows.id, _rows.at, _rows.actor, _rows.action, _rows.target, _rows.details)


@dataclass(frozen=True, slots=True)
class Head:
    """The last seal of a chain, written ``number:digest``."""

    number: int
    digest: str

    def __str__(self) -> str:
        return f"{self.number}:{self.digest}"

    @classmethod
    def parsed(cls, text: str) -> Head:
        """Return the head that a log or an export shows.

        Raises:
            ConfigurationError: it is none.
        """
        number, _, digest = text.strip().partition(":")
        if not number.isdecimal() or len(digest) != hashlib.sha256().digest_size * 2:
            raise ConfigurationError(f"'{text[:80]}' is no head of the audit. Give NUMBER:DIGEST, as the log shows it.")
        return cls(int(number), digest)


@dataclass(frozen=True, slots=True)
class Verified:
    """What a look at the whole audit found; ``findings`` is empty when everything is as it was sealed."""

    head: Head | None
    seals: int
    rows: int
    pruned_seals: int
    unsealed_rows: int
    findings: list[str]


class _Overtaken(Exception):  # noqa: N818 - it says what happened
    """Another process made the seal of this number."""


def seal(engine: Engine, batch_size: int = _BATCH) -> Head | None:
    """Seal the committed rows that are under no seal; return the new head, None when there was nothing to do.

    Of several processes one makes each seal. If this one dies, its seal is not there, and the next call makes it.
    """
    head = None
    while (made := _next_seal(engine, batch_size)) is not None:
        head = made
        _log.info("The audit is sealed up to %s", head, extra={"seal": head.number, "digest": head.digest})
    return head


def verify(engine: Engine, known_head: Head | None = None) -> Verified:
    """Compare the audit with its seals, all as of one moment, and with a head that was kept elsewhere.

    Raises:
        DbConnectionError: the database does not answer.
    """
    with reading(engine) as connection:
        if engine.dialect.name != "sqlite":  # there every transaction sees one moment
            connection.execution_options(isolation_level="REPEATABLE READ")
        return _verified(connection, known_head)


def row_digest(values: RowMapping) -> str:
    """Return the digest of a row's canonical form, which is the same in every database."""
    at = values["at"].astimezone(UTC).isoformat(timespec="microseconds")
    return _digest([values["id"], at, values["actor"], values["action"], values["target"], values["details"]])


def _next_seal(engine: Engine, batch_size: int) -> Head | None:
    try:
        with changing(engine) as connection:
            unsealed = select(_rows.id).where(_rows.seal.is_(None)).order_by(_rows.id).limit(batch_size)
            ids = connection.execute(unsealed).scalars().all()
            return _sealed(connection, ids) if ids else None
    except _Overtaken:
        return None  # the next round takes what is left


def _sealed(connection: Connection, ids: Sequence[int]) -> Head:
    """Make a seal. Its number comes first: of several processes all but one fail there, before they touch a row."""
    last = connection.execute(select(audit_seals_table).order_by(_seals.number.desc()).limit(1)).one_or_none()
    number, sealed_at = (1 if last is None else last.number + 1), database_now(connection)
    values = {"number": number, "sealed_at": sealed_at, "row_count": 0, "rows_digest": "", "digest": ""}
    try:
        connection.execute(insert(audit_seals_table).values(values))
    except IntegrityError as error:
        raise _Overtaken from error
    connection.execute(update(audit_table).where(_rows.id.in_(ids), _rows.seal.is_(None)).values(seal=number))
    rows = _digests(connection, number)
    if not rows:  # another process sealed them between our look and our number
        raise _Overtaken
    rows_digest = _digest(list(rows.items()))
    digest = _seal_digest(number, sealed_at, len(rows), rows_digest, _NOTHING if last is None else last.digest)
    made = {"row_count": len(rows), "rows_digest": rows_digest, "digest": digest, "row_digests": json.dumps(rows)}
    connection.execute(update(audit_seals_table).where(_seals.number == number).values(made))
    return Head(number, digest)


def _verified(connection: Connection, known_head: Head | None) -> Verified:
    pruned = _pruned_up_to(connection)
    findings = [f"row {row} is under seal {seal}, which is not there" for row, seal in _without_seal(connection)]
    previous, expected, rows, gone, head = _NOTHING, 1, 0, 0, None
    known_digest = None
    for made in connection.execute(select(audit_seals_table).order_by(_seals.number)).all():
        if made.number != expected:
            findings.append(f"seal {expected} was removed")
        findings += _of_seal(made, previous)
        found = _digests(connection, made.number)
        findings += _of_rows(made, found, is_pruned=made.number <= pruned)
        rows, gone = rows + len(found), gone + (made.number <= pruned)
        previous, expected, head = made.digest, made.number + 1, Head(made.number, made.digest)
        if known_head is not None and made.number == known_head.number:
            known_digest = made.digest
    if known_head is not None and known_digest != known_head.digest:
        findings.append(f"seal {known_head.number} is not the one that the head {known_head} tells of")
    unsealed = connection.execute(select(func.count()).where(_rows.seal.is_(None))).scalar_one()
    return Verified(head, expected - 1, rows, gone, int(unsealed), findings)


def _of_seal(made: Row[Any], previous: str) -> Iterator[str]:
    digest = _seal_digest(made.number, made.sealed_at, made.row_count, made.rows_digest, previous)
    if digest != made.digest:
        yield f"seal {made.number} was changed, or one before it"
    if made.row_digests is not None and _digest(list(_kept(made).items())) != made.rows_digest:
        yield f"what seal {made.number} tells of its rows was changed"


def _of_rows(made: Row[Any], found: Mapping[str, str], *, is_pruned: bool) -> Iterator[str]:
    kept = _kept(made)
    if made.row_digests is None and not is_pruned:
        yield f"the {made.row_count} rows of seal {made.number} were removed, and no '{PRUNED}' tells of it"
    for row, digest in found.items():
        if row not in kept:
            yield f"row {row} was inserted under seal {made.number}"
        elif kept[row] != digest:
            yield f"row {row} was changed after seal {made.number}"
    yield from (f"row {row} was removed after seal {made.number}" for row in kept if row not in found)


def _kept(made: Row[Any]) -> dict[str, str]:
    try:
        return dict(json.loads(made.row_digests or "{}"))
    except (TypeError, ValueError):  # not what we wrote, which the digest over it shows
        return {}


def _without_seal(connection: Connection) -> list[Row[Any, Any]]:
    is_there = exists().where(_seals.number == _rows.seal)
    found = select(_rows.id, _rows.seal).where(_rows.seal.is_not(None), ~is_there).order_by(_rows.id)
    return list(connection.execute(found).all())


def _pruned_up_to(connection: Connection) -> int:
    """Return the last seal whose rows retention has pruned, as the audit itself tells it."""
    pruned = connection.execute(select(_rows.details).where(_rows.action == PRUNED)).scalars()
    return max(map(_last_seal, pruned), default=0)


def _last_seal(details: str | None) -> int:
    """Return the seal that a row about pruning names, 0 where it does not tell as we do: then it excuses nothing."""
    try:
        return int(json.loads(details or "{}")["last_seal"])
    except (KeyError, TypeError, ValueError):
        return 0


def _digests(connection: Connection, number: int) -> dict[str, str]:
    rows = connection.execute(select(*_CONTENT).where(_rows.seal == number).order_by(_rows.id))
    return {str(row.id): row_digest(row._mapping) for row in rows}


def _seal_digest(number: int, sealed_at: datetime, row_count: int, rows_digest: str, previous: str) -> str:
    at = sealed_at.astimezone(UTC).isoformat(timespec="microseconds")
    return _digest([number, at, row_count, rows_digest, previous])


def _digest(values: Sequence[object]) -> str:
    """Return the SHA-256 of values as JSON in ASCII without spaces."""
    return hashlib.sha256(json.dumps(values, separators=(",", ":")).encode("ascii")).hexdigest()
