"""Row level security of PostgreSQL: where it hides rows from a role nothing fails, the rows are just not there."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from sqlalchemy import TextClause, text
from sqlalchemy.engine import Connection

Rights = Mapping[str, Sequence[str]]
"""By table, which of SELECT, INSERT, UPDATE and DELETE."""

# Which of the asked rights row level security narrows: those of tables where it is active for the role (never for the
# owner, unless it is forced, nor for BYPASSRLS), unless a permissive policy lets the role have every row and no
# restrictive one takes some away. Polcmd '*' is for all commands. It looks at the catalog alone. Rows: 0.
_NARROWED = text(
    """
    WITH asked AS (
        SELECT name, asked_right, to_regclass(name) AS relation,
               CASE asked_right WHEN 'SELECT' THEN 'r' WHEN 'INSERT' THEN 'a' WHEN 'UPDATE' THEN 'w' ELSE 'd' END AS cmd
        FROM unnest(CAST(:tables AS text[]), CAST(:rights AS text[])) AS asked (name, asked_right)
    )
    SELECT name, asked_right FROM asked
    WHERE row_security_active(relation) AND NOT coalesce((
        SELECT bool_or(polpermissive AND is_open) AND bool_and(polpermissive OR is_open)
        FROM (
            SELECT polpermissive, coalesce(
                       CASE cmd WHEN 'a' THEN pg_get_expr(polwithcheck, polrelid) END, pg_get_expr(polqual, polrelid)
                   ) = 'true' AS is_open
            FROM pg_policy
            WHERE polrelid = relation AND CAST(polcmd AS text) IN ('*', cmd)
              AND EXISTS (SELECT FROM unnest(polroles) AS member WHERE member = 0 OR pg_has_role(member, 'USAGE'))
        ) AS policies
    ), false)
    """
)


def narrowed(connection: Connection, asked: Rights) -> Rights:
    """Return what of the asked rights, by table as SQL names it, holds for some rows only."""
    return answered(connection, _NARROWED, asked)


def answered(connection: Connection, question: TextClause, asked: Rights) -> Rights:
    """Return for which of the asked rights a statement over tables and rights has a row."""
    pairs = [(table, right) for table, rights in asked.items() for right in rights]
    tables, rights = ([pair[place] for pair in pairs] for place in (0, 1))
    found: dict[str, list[str]] = {}
    for name, right in connection.execute(question, {"tables": tables, "rights": rights}):
        found.setdefault(name, []).append(right)
    return found


def role_of(connection: Connection) -> str:
    """Return the session's role as statements of PostgreSQL take it."""
    return str(connection.exec_driver_sql("SELECT quote_ident(current_user)").scalar_one())


def opening(connection: Connection, table: str, command: str = "ALL") -> str:
    """Return the statement that lets the session's role have every row of a table."""
    policy = connection.exec_driver_sql("SELECT quote_ident('holdfast_' || current_user)").scalar_one()
    return f"CREATE POLICY {policy} ON {table} FOR {command} TO {role_of(connection)} USING (true)"
