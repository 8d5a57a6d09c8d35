"""The horizon protocol."""

from __future__ import annotations

from typing import Protocol

from sqlalchemy.engine import Connection

from ....core.errors import SourceConfigurationError
from ....database.barrier import Reading
from .local_times import LocalTimes

UNBOUNDED = object()


class NoSoundHorizonError(SourceConfigurationError):
    """Nothing the database says makes reading this column, here, safe from late commits."""


class Horizon(Protocol):
    """Finds the bound below which nothing can appear any more."""

    @property
    def name(self) -> str:
        """Return the name under which users choose it."""
        ...

    @property
    def writers(self) -> LocalTimes | None:
        """Return in which local times the column may be written; None where the zone of a session does not matter."""
        ...

    def prepare(self, connection: Connection) -> None:
        """Check what soundness needs (grants, server role, settings); raise naming what is missing."""
        ...

    def advance(self, connection: Connection) -> Reading:
        """Return the newest sound bound. The connection is in autocommit mode."""
        ...


class Unbounded:
    """Everything visible may be read: chosen by the user, or sound because ids commit in order."""

    writers = None

    def __init__(self, name: str = "none") -> None:
        self.name = name

    def prepare(self, connection: Connection) -> None:
        """Nothing to check."""

    def advance(self, connection: Connection) -> Reading:
        """Return no bound."""
        return Reading(UNBOUNDED)
