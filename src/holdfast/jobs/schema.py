"""The migrations of the queue's tables."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from sqlalchemy import inspect
from sqlalchemy.engine import Connection

from ..database.migrations import Migration
from ..database.statements import family
from .statements import schema_statements


def _create_job_tables(connection: Connection) -> None:
    _execute(connection, "schema")


def _order_by_readiness(connection: Connection) -> None:
    """Add the column that jobs are ordered by, unless a process died behind that, then what may be repeated."""
    if not _has_column(connection, "holdfast_jobs", "ready_at"):
        _execute(connection, "add_ready_at")
    _execute(connection, "order_of_readiness")


def _has_column(connection: Connection, table: str, name: str) -> bool:
    return any(column["name"] == name for column in inspect(connection).get_columns(table))


def _execute(connection: Connection, name: str) -> None:
    for sql in schema_statements(family(connection.dialect.name), name):
        connection.exec_driver_sql(sql)


def _add_suspects(connection: Connection) -> None:
    """Add what is missing. The columns have defaults, and older workers name the columns they write.

    ``begun_attempt`` is the attempt that has begun, or minus the attempt that was claimed by a worker that says when it
    begins. Anything else was claimed by an older release, which does not say.
    """
    _add_counters(connection, ("suspicions", "begun_attempt"))
    _execute(connection, "schema_suspects")


def _add_places(connection: Connection) -> None:
    """Add for which suspects a place is kept, and how many places a worker has lost to handlers it has abandoned."""
    if not _has_column(connection, "holdfast_jobs", "reserved_at"):
        _execute(connection, "add_reserved_at")
    _add_counters(connection, ("lost_places",), table="holdfast_workers")


def _add_counters(connection: Connection, names: Sequence[str], table: str = "holdfast_jobs") -> None:
    for name in names:
        if not _has_column(connection, table, name):
            connection.exec_driver_sql(f"ALTER TABLE {table} ADD COLUMN {name} INTEGER NOT NULL DEFAULT 0")


def _add_receipt_key(connection: Connection) -> None:
    _execute(connection, "schema_keys")


_OF_APPLICATIONS = (
    ("holdfast_periodic", "application"),
    ("holdfast_topics", "limited_by"),
    ("holdfast_workers", "application"),
)


def _add_applications(connection: Connection) -> None:
    """Add whose things are: nobody's from before, which the first application that declares them makes its own."""
    for table, name in _OF_APPLICATIONS:
        if not _has_column(connection, table, name):
            connection.exec_driver_sql(f"ALTER TABLE {table} ADD COLUMN {name} VARCHAR(200)")


MIGRATIONS = (
    Migration(3, "jobs", _create_job_tables),
    Migration(7, "jobs: order of readiness", _order_by_readiness),
    Migration(8, "jobs: suspects", _add_suspects),
    Migration(9, "jobs: key of receipts", _add_receipt_key),
    Migration(15, "jobs: misfits", partial(_add_counters, names=("misfits",))),
    Migration(16, "jobs: applications", _add_applications),
    Migration(19, "jobs: places", _add_places),
    Migration(20, "jobs: undone", partial(_add_counters, names=("undone",))),
)
