"""The migrations of the state table."""

from __future__ import annotations

from sqlalchemy.engine import Connection

from ..database.key_collation import compare_by_bytes
from ..database.migrations import Migration, migrations_table
from .stores.sql import metadata, state_table


def _create_state_table(connection: Connection) -> None:
    metadata.create_all(connection)


def _compare_by_bytes(connection: Connection) -> None:
    compare_by_bytes(connection, (migrations_table.name, state_table.name))


MIGRATIONS = (
    Migration(1, "state documents", _create_state_table),
    Migration(13, "names of state documents by their bytes", _compare_by_bytes),
)
