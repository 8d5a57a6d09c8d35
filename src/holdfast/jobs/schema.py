"""The migrations of the queue's tables."""

from __future__ import annotations

from sqlalchemy import inspect
from sqlalchemy.engine import Connection

from ..core.migrations import Migration
from ..core.named_sql import family
from .statements import schema_statements, script

_SUSPECT_COLUMNS = ("suspicions", "begun_attempt")


def _create_job_tables(connection: Connection) -> None:
    for sql in schema_statements(family(connection.dialect.name)):
        connection.exec_driver_sql(sql)


def _add_suspects(connection: Connection) -> None:
    """Add what is missing. The columns have defaults, and older workers name the columns they write.

    ``begun_attempt`` is the attempt that has begun, or minus the attempt that was claimed by a worker that says when it
    begins. Anything else was claimed by an older release, which does not say.
    """
    there = {column["name"] for column in inspect(connection).get_columns("holdfast_jobs")}
    for name in _SUSPECT_COLUMNS:
        if name not in there:
            connection.exec_driver_sql(f"ALTER TABLE holdfast_jobs ADD COLUMN {name} INTEGER NOT NULL DEFAULT 0")
    for sql in script(family(connection.dialect.name), "schema_suspects"):
        connection.exec_driver_sql(sql)


MIGRATIONS = (Migration(3, "jobs", _create_job_tables), Migration(8, "jobs: suspects", _add_suspects))
