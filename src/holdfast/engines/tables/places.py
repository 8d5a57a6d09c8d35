"""Where an application's dead letters and history are: all in its database, or those of engines in an account."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from sqlalchemy.engine import Engine

from ...records.audited import AuditedLetters
from ...records.protocol import HistoryTable, LetterTable
from ...records.routed import RoutedHistory, RoutedLetters
from ...records.tables import SqlHistoryTable, SqlLetterTable
from ..registry import Registry
from ..registry_shape import EngineTablesConfig


class AccountTables(Protocol):
    """Engines' tables in an account."""

    @property
    def letters(self) -> LetterTable:
        """Return the dead letters."""
        ...

    @property
    def history(self) -> HistoryTable:
        """Return the history."""
        ...

    def make(self) -> None:
        """Create the tables that are missing."""
        ...


class TableAccount(Protocol):
    """An account that can keep engines' tables, such as ``AzureStorage``."""

    def tables(self, config: EngineTablesConfig) -> AccountTables:
        """Return the tables that a registry names."""
        ...


@dataclass(frozen=True, slots=True)
class TablePair:
    """Dead letters and history."""

    letters: LetterTable
    history: HistoryTable


class TablePlaces:
    """Finds the tables. Nothing connects until they are asked for.

    Args:
        account: where engines' tables are; None for the database.
        database: the database of everything else, and of the audit.
        registry: tells the names of the tables in the account.
    """

    def __init__(
        self, account: TableAccount | None, database: Callable[[], Engine], registry: Callable[[], Registry]
    ) -> None:
        self._account = account
        self._database = database
        self._registry = registry
        self._found: AccountTables | None = None

    @property
    def are_in_database(self) -> bool:
        """Return whether engines' tables are in the database, too."""
        return self._account is None

    def config(self) -> EngineTablesConfig:
        """Return what the registry says about the tables; the standard's values when it says nothing."""
        view = self._registry().read()
        return EngineTablesConfig() if view is None else view.tables

    def of_engines(self) -> TablePair:
        """Return the tables of engines."""
        database = self._database()
        found = self._in_account()
        if found is None:
            return TablePair(SqlLetterTable(database), SqlHistoryTable(database))
        return TablePair(AuditedLetters(found.letters, database), found.history)

    def of_all(self) -> TablePair:
        """Return the tables of every engine and workload as one."""
        database = self._database()
        workloads = TablePair(SqlLetterTable(database), SqlHistoryTable(database))
        if self._account is None:
            return workloads
        engines = self.of_engines()
        return TablePair(
            RoutedLetters(engines.letters, workloads.letters), RoutedHistory(engines.history, workloads.history)
        )

    def make(self) -> None:
        """Create what is missing in the account."""
        found = self._in_account()
        if found is not None:
            found.make()

    def _in_account(self) -> AccountTables | None:
        if self._account is not None and self._found is None:
            self._found = self._account.tables(self.config())
        return self._found
