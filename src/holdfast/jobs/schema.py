"""The migrations of the queue's tables."""

from __future__ import annotations

from sqlalchemy import inspect
from sqlalchemy.engine import Connection

from ..core.migrations import Migration
from ..core.named_sql import family
from .statements import schema_statements


def _create_job_tables(connection: Connection) -> None:
    _execute(connection, "schema")


def _order_by_readiness(connection: Connection) -> None:
    """Add the column that jobs are ordered by, unless a process died behind that, then what may be repeated."""
    is_there = any(column["name"] == "ready_at" for column in inspect(connection).get_columns("holdfast_jobs"))
    if not is_there:
        _execute(connection, "add_ready_at")
    _execute(connection, "order_of_readiness")


def _execute(connection: Connection, name: str) -> None:
    for sql in schema_statements(family(connection.dialect.name), name):
        connection.exec_driver_sql(sql)


def _add_suspects(connection: Connection) -> None:
    """Add what is missing. The columns have defaults, and older workers name the columns they write.

    ``begun_attempt`` is the attempt that has begun, or minus the attempt that was claimed by a worker that says when it
    begins. Anything else was claimed by an older release, which does not say.
    """
    there = {column["name"] for column in inspect(connection).get_columns("holdfast_jobs")}
    for name in ("suspicions", "begun_attempt"):
        if name not in there:
            connection.exec_driver_sql(f"ALTER TABLE holdfast_jobs ADD COLUMN {name} INTEGER NOT NULL DEFAULT 0")
    _execute(connection, "schema_suspects")


MIGRATIONS = (
    Migration(3, "jobs", _create_job_tables),
    Migration(7, "jobs: order of readiness", _order_by_readiness),
    Migration(8, "jobs: suspects", _add_suspects),
)
