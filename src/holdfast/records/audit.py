"""The audit: which operator changed what, and when. A row is written in the transaction of the change itself."""

from __future__ import annotations

import getpass
import json
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from sqlalchemy import insert, select
from sqlalchemy.engine import Connection, Engine

from ..core.key_text import is_plain
from .database import reading
from .paging import DEFAULT_LIMIT, Page, checked_limit, position_in, token_of
from .schema import ID_LENGTH, audit_table
from .storable_text import plain
from .times import database_time

_KIND = "audit"
_ACTION_LENGTH = 100
_TARGET_LENGTH = 500
_columns = audit_table.c


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditRow:
    """One change of an operator; ``seal`` is the number of the seal that covers it, None until housekeeping made it."""

    id: int
    at: datetime
    actor: str
    action: str
    target: str
    details: dict[str, Any] | None
    seal: int | None = None


def record(
    connection: Connection, actor: str, action: str, target: str, details: Mapping[str, object] | None = None
) -> None:
    """Write down a change in the transaction that makes it.

    No change fails for its audit: long names are cut, and characters that no table takes are replaced.
    """
    values = {
        "at": database_time(connection.dialect),
        "actor": plain(actor)[:ID_LENGTH],
        "action": plain(action)[:_ACTION_LENGTH],
        "target": plain(target)[:_TARGET_LENGTH],
        "details": None if details is None else json.dumps(dict(details), ensure_ascii=False),
    }
    connection.execute(insert(audit_table).values(values))


def page(
    engine: Engine,
    *,
    action: str | None = None,
    target: str | None = None,
    limit: int = DEFAULT_LIMIT,
    after: str | None = None,
) -> Page[AuditRow]:
    """Return the newest changes by operators, or those behind the page that ended with the token ``after``.

    Raises:
        ConfigurationError: the limit or the token is wrong, or the tables are missing.
    """
    if not is_plain(f"{action or ''}{target or ''}"):
        return Page([], None)  # no row can hold that
    query = select(audit_table).order_by(_columns.id.desc())
    if action is not None:
        query = query.where(_columns.action == action)
    if target is not None:
        query = query.where(_columns.target == target)
    if after is not None:
        query = query.where(_columns.id < position_in(_KIND, after, [int])[0])
    with reading(engine) as connection:
        rows = connection.execute(query.limit(checked_limit(limit) + 1)).mappings().all()
    items = [AuditRow(**{**row, "details": _details(row["details"])}) for row in rows[:limit]]
    return Page(items, token_of(_KIND, items[-1].id) if len(rows) > limit else None)


def present_user() -> str:
    """Return who runs this process."""
    try:
        return getpass.getuser()
    except (OSError, KeyError):
        return "unknown"


def _details(text: str | None) -> dict[str, Any] | None:
    try:
        return None if text is None else dict(json.loads(text))
    except (TypeError, ValueError):  # somebody else wrote it: the rest of the page is shown all the same
        return {"unreadable": text}
