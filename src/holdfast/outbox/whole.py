"""Whether a transaction is still the one it began as.

The checkpoint is its first statement. Whatever ends it in between and lets a new one begin would part the effects from
the checkpoint: they would commit without it, and come again. Databases do that: a deadlock undoes all of it on MariaDB,
a conflict may on SQLite, a failed statement spoils it on PostgreSQL, and DDL commits it on MariaDB.
"""

from __future__ import annotations

import re
from typing import Any

from sqlalchemy import event
from sqlalchemy.engine import Connection, ExceptionContext

from ..core.errors import CommitError

_UNDONE = "holdfast_transaction_was_undone"
_UNDOING = (1205, 1213)  # a lock was waited for too long, which may undo everything; a deadlock, which does
_ENDS_IT = re.compile(
    r"\s*(?:(?:COMMIT|END|ABORT|BEGIN)\b|START\s+TRANSACTION|ROLLBACK\b(?!\s+(?:WORK\s+)?TO\b)|PREPARE\s+TRANSACTION)",
    re.I,
)
_COMMITS_ON_MYSQL = re.compile(
    r"\s*(?:ALTER|CREATE(?!\s+TEMPORARY)|DROP(?!\s+TEMPORARY)|RENAME|TRUNCATE|LOCK\s+TABLES?|UNLOCK|GRANT|REVOKE|"
    r"ANALYZE|OPTIMIZE|REPAIR|FLUSH|RESET|LOAD\s+INDEX|INSTALL|UNINSTALL|SET\s+(?:SESSION\s+)?AUTOCOMMIT)\b",
    re.I,
)


def watch_for_undoing(connection: Connection) -> None:
    """Note when an error has undone the transaction that is about to begin on a connection."""
    connection.info.pop(_UNDONE, None)
    if connection.dialect.name in ("mysql", "mariadb") and not event.contains(connection.engine, "handle_error", _note):
        event.listen(connection.engine, "handle_error", _note)


def has_ended(connection: Connection) -> bool:
    """Return whether the transaction was undone, or can only be undone: what is said now is no part of it."""
    driver: Any = connection.connection.driver_connection
    match connection.dialect.name:
        case "postgresql":
            status = getattr(getattr(driver, "info", None), "transaction_status", None)
            return getattr(status, "name", "INTRANS") != "INTRANS"
        case "sqlite":
            return not driver.in_transaction
        case "mysql" | "mariadb":
            return bool(connection.info.get(_UNDONE))
    return False


def refuse_to_end(connection: Connection, statement: str) -> None:
    """Refuse statements that would end the transaction.

    Raises:
        CommitError: it is one.
    """
    is_mysql = connection.dialect.name in ("mysql", "mariadb")
    if _ENDS_IT.match(statement) or (is_mysql and _COMMITS_ON_MYSQL.match(statement)):
        raise CommitError(
            f"'{statement.strip()[:40]}' would end context.transaction and part the handler's writes from the "
            "checkpoint. Leave that to Holdfast: return to commit, raise to roll back; change tables elsewhere."
        )


def _note(context: ExceptionContext) -> None:
    code = next(iter(getattr(context.original_exception, "args", ())), None)
    if code in _UNDOING and context.connection is not None:
        context.connection.info[_UNDONE] = True
