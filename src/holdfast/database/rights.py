"""Whether the role may do what a worker does to Holdfast's tables: asked before it begins what it could not record."""

from __future__ import annotations

from sqlalchemy import text
from sqlalchemy.engine import Connection, Engine
from sqlalchemy.exc import DBAPIError

from ..core.config import safe_url
from ..core.errors import ConfigurationError
from .deadlines import limited
from .errors import Kind, connection_error, kind_of
from .row_security import Rights, answered, narrowed, opening, role_of

FOR_LEASES: Rights = {"holdfast_state": ("SELECT", "INSERT", "UPDATE")}
FOR_LEASES_THAT_GO: Rights = {"holdfast_state": ("SELECT", "INSERT", "UPDATE", "DELETE")}
"""Of leases that leave no document behind."""
FOR_RECORDS: Rights = {
    "holdfast_history": ("SELECT", "INSERT"),
    "holdfast_dead_letters": ("SELECT", "INSERT", "UPDATE"),
}
FOR_JOBS: Rights = {"holdfast_jobs": ("SELECT", "INSERT", "UPDATE", "DELETE"), **FOR_RECORDS}
FOR_PROCESSORS: Rights = {
    "holdfast_processor_checkpoints": ("SELECT", "INSERT", "UPDATE"),
    "holdfast_processor_parked": ("SELECT", "INSERT", "UPDATE", "DELETE"),
    "holdfast_processor_redeliveries": ("SELECT", "DELETE"),
    "holdfast_outbox": ("SELECT",),
    **FOR_RECORDS,
}

# What is missing of the wanted rights, and of those on the sequences behind the tables' ids: an identity column, which
# depends on its table internally ('i'), needs none. It looks at the catalog alone: no lock is waited for. Rows: 0.
_MISSING_IN_POSTGRES = text(
    """
    WITH wanted AS (
        SELECT name, wanted_right, to_regclass(name) AS oid
        FROM unnest(CAST(:tables AS text[]), CAST(:rights AS text[])) AS asked (name, wanted_right)
    )
    SELECT name, wanted_right FROM wanted WHERE NOT has_table_privilege(oid, wanted_right)
    UNION ALL
    SELECT DISTINCT 'SEQUENCE ' || relname, 'USAGE'
    FROM wanted JOIN pg_depend ON refobjid = wanted.oid AND deptype = 'a' AND classid = 'pg_class'::regclass
    JOIN pg_class ON pg_class.oid = objid
    WHERE wanted_right = 'INSERT'
      AND CASE WHEN relkind = 'S' THEN NOT has_sequence_privilege(pg_class.oid, 'USAGE') ELSE false END
    """
)
# EXPLAIN asks for the same rights as the statement, and changes nothing.
_ASKED_OF_MARIADB = {
    "SELECT": "SELECT * FROM {table}",
    "INSERT": "INSERT INTO {table} () VALUES ()",
    "UPDATE": "UPDATE {table} SET {column} = {column} WHERE FALSE",
    "DELETE": "DELETE FROM {table} WHERE FALSE",
}
_A_COLUMN = {
    "holdfast_state": "name",
    "holdfast_dead_letters": "row_key",
    "holdfast_processor_checkpoints": "processor_id",
}


def require_rights(engine: Engine, wanted: Rights) -> None:
    """Check on PostgreSQL and MariaDB that the role may use Holdfast's tables and sequences as a worker does.

    Raises:
        ConfigurationError: a right is missing; the message names it, and what grants it.
        DbConnectionError: the database does not answer.
    """
    ask = {"postgresql": _missing_in_postgres, "mysql": _missing_in_mariadb, "mariadb": _missing_in_mariadb}
    if not wanted or engine.dialect.name not in ask:
        return
    try:
        with limited(engine.connect()) as connection:
            if missing := ask[engine.dialect.name](connection, wanted):
                raise _refusal(connection, missing)
            require_all_rows(connection, wanted)
    except DBAPIError as error:
        raise connection_error(engine.url, error) from error


def require_all_rows(connection: Connection, wanted: Rights) -> None:
    """Refuse on PostgreSQL tables of ours of which row level security shows the role some rows only.

    Raises:
        ConfigurationError: the message names them, and what shows all.
    """
    if connection.dialect.name != "postgresql" or not (found := narrowed(connection, wanted)):
        return
    statements = "; ".join(opening(connection, table) for table in found)
    raise ConfigurationError(
        f"Row level security of {', '.join(found)} in {safe_url(connection.engine.url)} shows the role "
        f"{role_of(connection)} some rows only, so work would wait unseen. Nothing was begun; run: {statements}; or "
        "let it see all with BYPASSRLS."
    )


def _missing_in_postgres(connection: Connection, wanted: Rights) -> Rights:
    return answered(connection, _MISSING_IN_POSTGRES, wanted)


def _missing_in_mariadb(connection: Connection, wanted: Rights) -> Rights:
    missing = {
        table: [right for right in rights if _is_denied_in_mariadb(connection, table, right)]
        for table, rights in wanted.items()
    }
    return {table: rights for table, rights in missing.items() if rights}


def _is_denied_in_mariadb(connection: Connection, table: str, right: str) -> bool:
    column = _A_COLUMN.get(table, "id")
    try:
        connection.exec_driver_sql(f"EXPLAIN {_ASKED_OF_MARIADB[right].format(table=table, column=column)}").all()
    except DBAPIError as error:
        if kind_of(error) is Kind.DENIED:
            return True
        if kind_of(error) is not Kind.READ_ONLY:
            raise
    return False


def _refusal(connection: Connection, missing: Rights) -> ConfigurationError:
    """Return the sentence for what is missing, with statements that grant it."""
    role = _role(connection)
    lacks = ", ".join(f"{right} on {name.removeprefix('SEQUENCE ')}" for name in missing for right in missing[name])
    grants = "; ".join(f"GRANT {', '.join(rights)} ON {name} TO {role}" for name, rights in missing.items())
    return ConfigurationError(
        f"The role {role} could not record in {safe_url(connection.engine.url)} what a worker does: it lacks {lacks}. "
        f"Nothing was begun; run: {grants};"
    )


def _role(connection: Connection) -> str:
    """Return the session's role as GRANT takes it."""
    if connection.dialect.name == "postgresql":
        return role_of(connection)
    user, _, host = str(connection.exec_driver_sql("SELECT CURRENT_USER()").scalar_one()).rpartition("@")
    return f"'{user}'@'{host}'"
