"""An operator's change and its row in the audit: in one transaction where that can be, else the row first."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from sqlalchemy.engine import Connection, Engine

from ..core.errors import Ambiguous, DbError
from . import audit
from .database import changing
from .storable_text import legible

NOT_DONE = "(not done)"
BEGUN = "(begun)"


@contextmanager
def audited_change(
    database: Engine,
    actor: str,
    action: str,
    target: str,
    details: Mapping[str, object],
    *,
    is_in_database: bool,
) -> Iterator[Connection | None]:
    """Yield the transaction that the change is to be made in; None when it is made elsewhere.

    If the process dies here, a change in the database has a row or was not made; elsewhere it may have a row although
    it was not made.
    """
    target, details = legible(target), {name: _legible(value) for name, value in details.items()}
    with changing(database) as connection:
        audit.record(connection, actor, action, target, details)
        if is_in_database:
            yield connection
            return
    try:
        yield None
    except Ambiguous:
        raise
    except DbError:
        with changing(database) as connection:
            audit.record(connection, actor, f"{action} {NOT_DONE}", target, details)
        raise


def _legible(value: object) -> object:
    return legible(value) if isinstance(value, str) else value
