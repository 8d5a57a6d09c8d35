"""The unified dead letters and history in Azure Table Storage (``engineDlq``, ``engineHistory``).

The partition is the engine, the row key the standard's. Pages come in the order of the keys: there is no other.
"""

from __future__ import annotations

from ...core.clock import Clock
from ...core.extras import needed
from ...records.protocol import HistoryTable, LetterTable
from .azure_history import AzureHistoryTable
from .azure_letters import AzureLetterTable
from .azure_table import AzureTable
from .config import EngineTables

with needed("Engine tables in Azure need azure-data-tables", "azure"):
    from azure.data.tables import TableServiceClient

__all__ = ["AzureHistoryTable", "AzureLetterTable", "AzureTables"]


class AzureTables:
    """Both tables of one storage account.

    Args:
        service: the account, with whatever credential you use.
        tables: the tables' names.
        timeout_seconds: how long to wait for a connection, and for each part of an answer.
    """

    def __init__(
        self,
        service: TableServiceClient,
        tables: EngineTables | None = None,
        *,
        timeout_seconds: float = 10.0,
        clock: Clock | None = None,
    ) -> None:
        self.tables = tables or EngineTables()
        self._tables = [
            AzureTable(service.get_table_client(name), timeout_seconds=timeout_seconds, clock=clock)
            for name in (self.tables.dlq_table_name, self.tables.history_table_name)
        ]
        self.letters: LetterTable = AzureLetterTable(self._tables[0])
        self.history: HistoryTable = AzureHistoryTable(self._tables[1])

    def make(self) -> None:
        """Create the tables that are missing."""
        for table in self._tables:
            table.make()
