"""Releases before and after this one: the code as it was before a migration was added, and what a next one adds."""

from __future__ import annotations

import functools
import subprocess
import tarfile
from collections.abc import Sequence
from io import BytesIO
from pathlib import Path

from sqlalchemy import inspect
from sqlalchemy.engine import Connection

from holdfast.database.migrations import Migration
from holdfast.schema import MIGRATIONS
from tests.components.processes import REPOSITORY
from tests.components.workspace import private_directory

_CHANGED = ("holdfast_jobs", "holdfast_history", "holdfast_outbox", "holdfast_processor_checkpoints", "holdfast_state")


def next_release(number: int) -> tuple[Migration, ...]:
    """Return what a later release would do to the tables: a column with a default and an index in each, a new table."""
    return (Migration(number, f"next release {number}", functools.partial(_add, number)),)


def _add(number: int, connection: Connection) -> None:
    for table in _CHANGED:
        if all(column["name"] != f"added_{number}" for column in inspect(connection).get_columns(table)):
            connection.exec_driver_sql(f"ALTER TABLE {table} ADD COLUMN added_{number} varchar(20) DEFAULT 'later'")
            connection.exec_driver_sql(f"CREATE INDEX {table}_added_{number} ON {table} (added_{number})")
    if not inspect(connection).has_table(f"holdfast_added_{number}"):
        connection.exec_driver_sql(f"CREATE TABLE holdfast_added_{number} (id INTEGER PRIMARY KEY)")


def newest() -> int:
    """Return the number of the newest migration of this release."""
    return max(step.number for step in MIGRATIONS)


@functools.cache
def commit_before(migration: int) -> str | None:
    """Return the commit before a migration was added; None where the history of the code is not here."""
    added = _git("log", "--reverse", "--format=%H", f"-SMigration({migration},", "--", "src/holdfast")
    first = (added or "").split("\n", 1)[0]
    return (_git("rev-parse", "--verify", "--quiet", f"{first}^") or "").strip() or None if first else None


@functools.cache
def release_before(migration: int) -> Path:
    """Return where the code of that commit lies, to be put on Python's path."""
    commit, folder = commit_before(migration), private_directory("release-before")
    archive = subprocess.run(
        ["git", "-C", str(REPOSITORY), "archive", str(commit), "src"], capture_output=True, check=True
    )
    with tarfile.open(fileobj=BytesIO(archive.stdout)) as packed:
        packed.extractall(folder, filter="data")
    return folder / "src"


def _git(*arguments: str) -> str | None:
    command: Sequence[str] = ["git", "-C", str(REPOSITORY), *arguments]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    except FileNotFoundError:
        return None
    return done.stdout if done.returncode == 0 else None
