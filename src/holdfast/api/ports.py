"""What the API needs of an application, and what it works with: nothing here imports the application itself."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from sqlalchemy.engine import Engine

from ..core.clock import Clock
from ..engines.engines import Engines
from ..engines.registry import Registry
from ..records.dead_letters import DeadLetter
from ..records.protocol import HistoryTable, LetterTable
from ..records.redrive import Redrives
from .continuation import Signer


class Application(Protocol):
    """An application, such as ``Holdfast``. Changes by hand are audited."""

    @property
    def database(self) -> Engine:
        """Return the database, which has the audit."""
        ...

    @property
    def engines(self) -> Engines:
        """Return the declared engines, and what sends them messages."""
        ...

    @property
    def registry(self) -> Registry:
        """Return what the engines share, and the lock under which it may be changed."""
        ...

    @property
    def dead_letters(self) -> LetterTable:
        """Return the dead letters of every engine and workload."""
        ...

    @property
    def history(self) -> HistoryTable:
        """Return the history of every engine and workload."""
        ...

    @property
    def redrive(self) -> Redrives:
        """Return what puts dead letters back."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Services:
    """What the endpoints work with. The tables are asked for when they are needed, so that nothing connects before."""

    application: Application
    clock: Clock
    signer: Signer

    @property
    def letters(self) -> LetterTable:
        """Return the dead letters."""
        return self.application.dead_letters

    @property
    def entries(self) -> HistoryTable:
        """Return the history."""
        return self.application.history

    @property
    def database(self) -> Engine:
        """Return the database, which has the audit."""
        return self.application.database

    @property
    def engines(self) -> Engines:
        """Return the declared engines."""
        return self.application.engines

    @property
    def registry(self) -> Registry:
        """Return what the engines share."""
        return self.application.registry

    def retry(self, letter: DeadLetter, actor: str) -> str:
        """Put back what a letter is about, audited; return the id that it was put back under.

        Raises:
            ConfigurationError: nothing tells any more what it was, or there is nowhere to put it; nothing was changed.
            Conflict: it is no longer Pending, or what it is about is at work; nothing was changed.
            JobError: another job has taken the unique key; nothing was changed.
            MessageError: it is too large to be put back; nothing was changed.
            UnfinishedRetry: it was begun, and something does not answer: the next retry or a worker finishes it.
        """
        return self.application.redrive.retry(letter, actor)
