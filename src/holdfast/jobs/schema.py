"""The migrations of the queue's tables."""

from __future__ import annotations

from sqlalchemy.engine import Connection

from ..core.migrations import Migration
from .statements import schema_statements


def _create_job_tables(connection: Connection) -> None:
    dialect = "mysql" if connection.dialect.name == "mariadb" else connection.dialect.name
    for sql in schema_statements(dialect):
        connection.exec_driver_sql(sql)


MIGRATIONS = (Migration(3, "jobs", _create_job_tables),)
