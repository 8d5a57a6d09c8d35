"""Where an application's dead letters and history are: all in its database, or those of engines in an account."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar

from sqlalchemy.engine import Engine

from ..core.clock import Clock
from ..core.errors import Unavailable
from .audited import AuditedLetters
from .combined_tables import CombinedHistory, CombinedLetters
from .protocol import HistoryTable, LetterTable
from .tables import SqlHistoryTable, SqlLetterTable

_log = logging.getLogger("holdfast.engines")
_Names = TypeVar("_Names", contravariant=True)
_Config = TypeVar("_Config")
_LOOK_SECONDS = 5.0  # names hardly ever change, and a registry in a blob is a request away


@dataclass(frozen=True, slots=True)
class TablePair:
    """Dead letters and history."""

    letters: LetterTable
    history: HistoryTable


class AccountTables(Protocol):
    """Both tables of an account under the names that were asked for."""

    letters: LetterTable
    history: HistoryTable

    def make(self) -> None:
        """Create the tables that are missing."""
        ...


class Account(Protocol[_Names]):
    """Where engines' tables can be, outside of the database."""

    def tables(self, config: _Names, /) -> AccountTables:
        """Return the tables that a configuration names."""
        ...


class TableLocations(Generic[_Config]):
    """Finds the tables. Nothing connects until they are asked for. Names that change are followed within seconds.

    Args:
        account: where engines' tables are; None for the database.
        database: the database of everything else, and of the audit.
        config: returns what names the tables in the account now.
    """

    def __init__(
        self,
        account: Account[_Config] | None,
        database: Callable[[], Engine],
        config: Callable[[], _Config],
        clock: Clock,
    ) -> None:
        self.config = config
        self._account = account
        self._database = database
        self._clock = clock
        self._found: tuple[_Config, AccountTables] | None = None
        self._looked_at = -math.inf

    @property
    def are_in_database(self) -> bool:
        """Return whether engines' tables are in the database, too."""
        return self._account is None

    def of_engines(self) -> TablePair:
        """Return the tables of engines."""
        database, found = self._database(), self._in_account()
        if found is None:
            return _in_database(database)
        return TablePair(AuditedLetters(found.letters, database), found.history)

    def of_all(self) -> TablePair:
        """Return the tables of every engine and workload as one."""
        engines = self.of_engines()
        if self._account is None:
            return engines
        others = _in_database(self._database())
        letters = CombinedLetters(engines.letters, others.letters)
        return TablePair(letters, CombinedHistory(engines.history, others.history))

    def make(self) -> None:
        """Create what is missing in the account."""
        found = self._in_account()
        if found is not None:
            found.make()

    def _in_account(self) -> AccountTables | None:
        """Return the tables that the registry names now, the same while it names the same."""
        if self._account is None:
            return None
        found, now = self._found, self._clock.monotonic()
        if found is None or now - self._looked_at >= _LOOK_SECONDS:
            config = self._config_after(found)
            if found is None or found[0] != config:
                found = self._found = (config, self._account.tables(config))
            self._looked_at = now
        return found[1]

    def _config_after(self, found: tuple[_Config, AccountTables] | None) -> _Config:
        """Return what the registry says. While it cannot be read, names that are known stand: work must be recorded."""
        try:
            return self.config()
        except Unavailable as error:
            if found is None:
                raise
            _log.warning("The registry cannot be read, so engines go on with the tables it named before: %s", error)
            return found[0]


def _in_database(database: Engine) -> TablePair:
    return TablePair(SqlLetterTable(database), SqlHistoryTable(database))
