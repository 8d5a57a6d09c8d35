"""The queue in SQLite: one writer at a time, so a change has the write lock from its start and needs no other.

Times are text that sorts. The file is in WAL mode, in which readers and the writer do not wait for each other, and what
idle workers ask again and again is asked without the write lock first.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import datetime
from typing import ClassVar

from sqlalchemy.engine import Connection, Engine

from ...database.pools import use_wal
from ..model import JobId, NewJob
from ..statements import script, statement
from .answers import translated
from .base import Batch, Row, in_utc
from .portable import PortableJobStore


class SqliteJobStore(PortableJobStore):
    """The queue in SQLite."""

    dialect: ClassVar[str] = "sqlite"

    def __init__(
        self, engine: Engine, *, ahead_seconds: Callable[[], float] = lambda: 0.0, application: str | None = None
    ) -> None:
        super().__init__(engine, ahead_seconds=ahead_seconds, application=application)
        use_wal(engine)

    def _change(self, name: str, batch: Batch, **values: object) -> Sequence[Row]:
        if not batch and not self._has_work(name, **values):
            return []
        return super()._change(name, batch, **values)

    def _has_work(self, name: str, **values: object) -> bool:
        """Look, without the write lock, whether a round of promoting, reaping or pruning would find anything."""
        find = script(self.dialect, name)[0]
        with translated(self.engine), self.engine.connect() as connection:
            return self._execute(connection, find, (), {**values, "limit": 1}).first() is not None

    def _insert_one(self, connection: Connection, job: NewJob) -> JobId | None:
        with translated(self.engine):
            added = self._execute(connection, statement(self.dialect, "enqueue"), (), self._columns(job))
            return JobId(added.lastrowid) if added.rowcount == 1 else None

    def _moment(self, moment: datetime | None) -> object:
        return None if moment is None else in_utc(moment).replace(tzinfo=None).isoformat(" ", "microseconds")
