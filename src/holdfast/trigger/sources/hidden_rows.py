"""Whether row level security hides a source's rows from its role: such rows are never delivered, and nothing fails."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sqlalchemy import Select, Table
from sqlalchemy.engine import Connection, Engine
from sqlalchemy.exc import SQLAlchemyError

from ...database.deadlines import limited
from ...database.errors import Kind, kind_of, reason
from ...database.row_security import narrowed, opening, role_of

_NEVER = "and those that it hides when they are passed are never delivered"


def hidden_rows(
    engine: Engine, name: str, table: Table | None, probe: Select[Any], parameters: Mapping[str, object]
) -> str | None:
    """Return in a sentence that row level security may hide rows, and what to do; None where it does not.

    Of a table the catalog tells it. A query or view may read any number of them: PostgreSQL refuses to run it with
    row_security off where a policy would apply.
    """
    if engine.dialect.name != "postgresql":
        return None
    with limited(engine.connect()) as connection:
        return _of_table(connection, table) if table is not None else _of_query(connection, name, probe, parameters)


def _of_table(connection: Connection, table: Table) -> str | None:
    quoted = connection.dialect.identifier_preparer.format_table(table)
    if not narrowed(connection, {quoted: ("SELECT",)}):
        return None
    role = role_of(connection)
    return (
        f"row level security of table {quoted} shows the role {role} some rows only, {_NEVER}. For all of them run: "
        f"{opening(connection, quoted, 'SELECT')}; or: ALTER ROLE {role} BYPASSRLS;"
    )


def _of_query(connection: Connection, name: str, probe: Select[Any], parameters: Mapping[str, object]) -> str | None:
    why = _refusal(connection, "off", probe, parameters)
    if why is None or _refusal(connection, "on", probe, parameters) is not None:  # it may not read them at all
        return None
    role = role_of(connection)
    return (
        f"row level security may not show the role {role} all rows that '{name}' reads ({why}), {_NEVER}. For all of "
        f"them run: ALTER ROLE {role} BYPASSRLS;"
    )


def _refusal(
    connection: Connection, row_security: str, probe: Select[Any], parameters: Mapping[str, object]
) -> str | None:
    """Return why the role may not run the query so; what else is wrong with it comes out elsewhere, in better words."""
    connection.exec_driver_sql(f"SET LOCAL row_security = {row_security}")
    try:
        connection.execute(probe, dict(parameters))
    except SQLAlchemyError as error:
        return reason(error) if kind_of(error) is Kind.DENIED else None
    finally:
        connection.rollback()
    return None
