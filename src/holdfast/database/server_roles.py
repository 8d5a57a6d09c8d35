"""What a server is among others: a standby, a node of a cluster, one that takes writes.

Whether it takes writes is asked only at the start, by who is about to begin what could not be recorded. A process that
works already goes on trying when its database stops taking writes: a fail-over passes by itself, and the pool leads to
the new primary (``ended_sessions``).
"""

from __future__ import annotations

from sqlalchemy import Table, false, text, update
from sqlalchemy.engine import Connection, Engine
from sqlalchemy.exc import DBAPIError

from ..core.config import safe_url
from ..core.errors import WriteError
from .errors import Kind, connection_error, is_connection_failure, kind_of, reason

_SERVERS = ("postgresql", "mysql", "mariadb")
_LET_IT_BE_RESTARTED = "Nothing was begun; a supervisor that restarts the process gets it to work once that has changed"

# Whether this is a node of Galera; MySQL has no such variable. Expected rows: 0 or 1.
_GALERA = text("SHOW GLOBAL VARIABLES LIKE 'wsrep_on'")

# Where the session got it from that it takes no writes by itself. Expected rows: 1.
_WHO_SAID_READ_ONLY = text("SELECT source FROM pg_settings WHERE name = 'default_transaction_read_only'")


def is_standby(connection: Connection) -> bool:
    """Return whether a server of PostgreSQL only follows another one."""
    if connection.dialect.name != "postgresql":
        return False
    return bool(connection.exec_driver_sql("SELECT pg_is_in_recovery()").scalar_one())


def is_galera_node(connection: Connection) -> bool:
    """Return whether a server of MariaDB or MySQL is one of several that all take writes."""
    if connection.dialect.name not in ("mysql", "mariadb"):
        return False
    found = connection.execute(_GALERA).one_or_none()
    return found is not None and found[1] == "ON"


def require_writable(engine: Engine, table: Table) -> None:
    """Check on PostgreSQL and MariaDB that this role's sessions may write, by an update of no row of ``table``.

    The server refuses that before it looks at rights or rows, whatever makes it read-only, and lets it pass for roles
    that may write all the same. What else it says of the table is not looked at here.

    Raises:
        WriteError: it takes no writes; the message says why, and what to do.
        DbConnectionError: the database does not answer.
    """
    if engine.dialect.name not in _SERVERS:
        return
    column = next(iter(table.c))
    try:
        with engine.connect() as connection:
            connection.execute(update(table).where(false()).values({column: column}))
    except DBAPIError as error:
        if kind_of(error) is Kind.READ_ONLY:
            sentence = _sentence(engine, error)
            engine.dispose()  # whoever asks again asks on a session that is made then
            raise WriteError(sentence) from error
        if is_connection_failure(error):
            raise connection_error(engine.url, error) from error


def _sentence(engine: Engine, error: DBAPIError) -> str:
    where = safe_url(engine.url)
    if engine.dialect.name != "postgresql":
        return (
            f"The database {where} takes no writes: {reason(error)}. {_LET_IT_BE_RESTARTED}: name the primary, or let "
            "it be written to."
        )
    with engine.connect() as connection:
        if is_standby(connection):
            return (
                f"The database {where} is a standby and takes no writes. {_LET_IT_BE_RESTARTED}: name the primary, or "
                "all servers with target_session_attrs=read-write, or promote it."
            )
        source = connection.execute(_WHO_SAID_READ_ONLY).scalar_one()
    return (
        f"The database {where} takes no writes from this role: its sessions begin with default_transaction_read_only = "
        f"on (set by: {source}). {_LET_IT_BE_RESTARTED}: turn it off there, or name the primary."
    )
