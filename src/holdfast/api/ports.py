"""What the API needs of an application, and what it works with: nothing here imports the application itself."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from sqlalchemy.engine import Engine

from ..core.clock import Clock
from ..records.dead_letters import DeadLetter, DeadLetters, LetterFilter
from ..records.history import History, HistoryEntry, HistoryFilter
from ..records.paging import Page
from .continuation import Signer
from .giving_up import expire_letter


class PutsBack(Protocol):
    """Puts what dead letters are about back where it came from."""

    def retry(self, letter: DeadLetter, actor: str) -> object:
        """Put back what one dead letter is about, audited, and settle the letter."""
        ...


class Application(Protocol):
    """An application, such as ``Holdfast``."""

    @property
    def engine(self) -> Engine:
        """Return the engine of the database with the records."""
        ...

    @property
    def putting_back(self) -> PutsBack:
        """Return what puts dead letters back."""
        ...


class Letters(Protocol):
    """Dead letters, wherever they are kept."""

    def get(self, engine: str, row_key: str, /) -> DeadLetter | None:
        """Return one letter."""
        ...

    def page(self, wanted: LetterFilter, limit: int, after: str | None, /) -> Page[DeadLetter]:
        """Return letters that are wanted."""
        ...

    def resolve(self, engine: str, row_key: str, notes: str, actor: str, /) -> DeadLetter:
        """Mark a Pending letter as dealt with, audited."""
        ...

    def expire(self, older_than_days: float, engine: str | None, /, *, actor: str) -> int:
        """Give up on old Pending letters, audited; return how many."""
        ...


class Entries(Protocol):
    """History, wherever it is kept."""

    def get(self, engine: str, row_key: str, /) -> HistoryEntry | None:
        """Return one entry."""
        ...

    def page(self, wanted: HistoryFilter, limit: int, after: str | None, /) -> Page[HistoryEntry]:
        """Return entries that are wanted."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Desk:
    """What the endpoints work with."""

    application: Application
    clock: Clock
    signer: Signer
    letters: Letters
    entries: Entries

    @classmethod
    def of(cls, application: Application, clock: Clock, signer: Signer) -> Desk:
        """Return the desk of an application whose records are in its database. Nothing connects."""
        engine = application.engine
        return cls(
            application=application,
            clock=clock,
            signer=signer,
            letters=DeadLetters(engine),
            entries=History(engine),
        )

    def expire_letter(self, letter: DeadLetter, notes: str, actor: str) -> DeadLetter:
        """Give up on one Pending letter, audited.

        Raises:
            NotFoundError: it is gone.
            Conflict: it is no longer Pending, or a retry of it was begun; nothing was changed.
        """
        return expire_letter(self.application.engine, letter, notes, actor)

    def retry(self, letter: DeadLetter, actor: str) -> None:
        """Put back what a letter is about, audited.

        Raises:
            ConfigurationError: nothing tells any more what it was, or there is nowhere to put it.
            Conflict: it is no longer Pending, or what it is about is at work; nothing was changed.
            JobError: another job has taken the unique key; nothing was changed.
        """
        self.application.putting_back.retry(letter, actor)
