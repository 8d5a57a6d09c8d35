"""The unified dead letters and history in Azure Table Storage (``engineDlq``, ``engineHistory``).

The partition is the engine, the row key the standard's. Pages come in the order of the keys: there is no other.
"""

from __future__ import annotations

from ...core.clock import Clock
from ...core.errors import ConfigurationError, MissingDependencyError
from ...records.retention import Pruned
from .azure_history import AzureHistoryTable
from .azure_letters import AzureLetterTable
from .azure_table import AzureTable
from .config import EngineTables

try:
    from azure.data.tables import TableServiceClient
except ImportError as error:
    raise MissingDependencyError(
        "Engine tables in Azure need azure-data-tables: run \"pip install 'holdfast[azure]'\"."
    ) from error

__all__ = ["AzureHistoryTable", "AzureLetterTable", "AzureTables"]


class AzureTables:
    """Both tables of one storage account.

    Args:
        service: the account, with whatever credential you use.
        tables: the tables' names, and how long what is settled stays.
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
        self._service = service
        self.tables = tables or EngineTables()
        self._tables = [
            AzureTable(service.get_table_client(name), timeout_seconds=timeout_seconds, clock=clock)
            for name in (self.tables.dlq_table_name, self.tables.history_table_name)
        ]
        self.letters = AzureLetterTable(self._tables[0])
        self.history = AzureHistoryTable(self._tables[1])

    @classmethod
    def from_connection_string(
        cls, connection_string: str, tables: EngineTables | None = None, *, timeout_seconds: float = 10.0
    ) -> AzureTables:
        """Return the tables of an account, made when they are missing.

        Raises:
            ConfigurationError: the connection string is none, or the account refuses it.
            Unavailable: the account does not answer.
        """
        try:
            service = TableServiceClient.from_connection_string(connection_string)
        except ValueError:  # its text may hold a part of the string
            raise ConfigurationError(
                "The connection string of the engine tables cannot be read. Copy it from the storage account."
            ) from None
        opened = cls(service, tables, timeout_seconds=timeout_seconds)
        try:
            opened.make()
        except BaseException:
            opened.close()
            raise
        return opened

    def make(self) -> None:
        """Create the tables that are missing."""
        for table in self._tables:
            table.make()

    def prune(self) -> Pruned:
        """Forget what is older than the tables' retention; return how much."""
        days = self.tables.retention_days
        return Pruned(self.history.prune(days), self.letters.prune(days))

    def close(self) -> None:
        """Close the connections; the tables cannot be used after that."""
        self._service.close()
