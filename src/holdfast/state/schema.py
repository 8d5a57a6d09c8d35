"""The migrations of the state table."""

from __future__ import annotations

from sqlalchemy.engine import Connection

from ..core.migrations import Migration
from .stores.sql import metadata


def _create_state_table(connection: Connection) -> None:
    metadata.create_all(connection)


MIGRATIONS = (Migration(1, "state documents", _create_state_table),)
