"""Where an application's dead letters and history are: all in its database, or those of engines in an account."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from sqlalchemy.engine import Engine

from ...core.clock import Clock
from ...core.errors import Unavailable
from ...records.audited import AuditedLetters
from ...records.combined_tables import CombinedHistory, CombinedLetters
from ...records.protocol import HistoryTable, LetterTable
from ...records.tables import SqlHistoryTable, SqlLetterTable
from ..registry import Registry
from ..registry_shape import EngineTablesConfig

if TYPE_CHECKING:
    from ..azure import AzureStorage
    from .azure import AzureTables

_log = logging.getLogger("holdfast.engines")
_LOOK_SECONDS = 5.0  # names hardly ever change, and a registry in a blob is a request away


@dataclass(frozen=True, slots=True)
class TablePair:
    """Dead letters and history."""

    letters: LetterTable
    history: HistoryTable


class TableLocations:
    """Finds the tables. Nothing connects until they are asked for. Names that change are followed within seconds.

    Args:
        account: where engines' tables are; None for the database.
        database: the database of everything else, and of the audit.
        registry: tells the names of the tables in the account.
    """

    def __init__(
        self,
        account: AzureStorage | None,
        database: Callable[[], Engine],
        registry: Callable[[], Registry],
        clock: Clock,
    ) -> None:
        self._account = account
        self._database = database
        self._registry = registry
        self._clock = clock
        self._found: tuple[EngineTablesConfig, AzureTables] | None = None
        self._looked_at = -math.inf

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
        return TablePair(AuditedLetters(found.letters, database, found.letters.now), found.history)

    def of_all(self) -> TablePair:
        """Return the tables of every engine and workload as one."""
        database = self._database()
        workloads = TablePair(SqlLetterTable(database), SqlHistoryTable(database))
        if self._account is None:
            return workloads
        engines = self.of_engines()
        return TablePair(
            CombinedLetters(engines.letters, workloads.letters), CombinedHistory(engines.history, workloads.history)
        )

    def make(self) -> None:
        """Create what is missing in the account."""
        found = self._in_account()
        if found is not None:
            found.make()

    def _in_account(self) -> AzureTables | None:
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

    def _config_after(self, found: tuple[EngineTablesConfig, AzureTables] | None) -> EngineTablesConfig:
        """Return what the registry says. While it cannot be read, names that are known stand: work must be recorded."""
        try:
            return self.config()
        except Unavailable as error:
            if found is None:
                raise
            _log.warning("The registry cannot be read, so engines go on with the tables it named before: %s", error)
            return found[0]
