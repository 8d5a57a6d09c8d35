"""An Azure Storage account as the place of engines' queues and tables."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..core.clock import Clock
from ..core.errors import ConfigurationError, MissingDependencyError
from .queues.storage import StorageQueue
from .registry_shape import EngineTablesConfig

try:
    from azure.core.exceptions import AzureError, ResourceExistsError
    from azure.data.tables import TableServiceClient
    from azure.storage.queue import QueueServiceClient
except ImportError as error:
    raise MissingDependencyError(
        "Engines in Azure Storage need the Azure SDK: run \"pip install 'holdfast[azure]'\"."
    ) from error

if TYPE_CHECKING:
    from .tables.azure import AzureTables

POISON_SUFFIX = "-poison"


class AzureStorage:
    """A storage account. Pass it to ``Holdfast`` as ``engine_queues``, as ``engine_tables``, or as both.

    Args:
        queues: the account's queues, with whatever credential you use.
        tables: the account's tables.
        timeout_seconds: how long to wait for a connection, and for each part of an answer.
        base64_encoded: how messages are written, as Azure Functions does by default; both forms are read.
    """

    def __init__(
        self,
        queues: QueueServiceClient,
        tables: TableServiceClient,
        *,
        timeout_seconds: float = 10.0,
        base64_encoded: bool = True,
        clock: Clock | None = None,
    ) -> None:
        self._queues = queues
        self._tables = tables
        self._timeout_seconds = timeout_seconds
        self._is_base64 = base64_encoded
        self._clock = clock

    @classmethod
    def from_connection_string(cls, connection_string: str, *, timeout_seconds: float = 10.0) -> AzureStorage:
        """Return an account. Nothing connects.

        Raises:
            ConfigurationError: the connection string is none.
        """
        try:
            queues = QueueServiceClient.from_connection_string(connection_string)
            tables = TableServiceClient.from_connection_string(connection_string)
        except (ValueError, AttributeError, TypeError):  # its text may hold a part of the string
            raise ConfigurationError(
                "The connection string of the storage account cannot be read. Copy it from the account's access keys."
            ) from None
        return cls(queues, tables, timeout_seconds=timeout_seconds)

    def queue(self, name: str, visibility_seconds: float) -> StorageQueue:
        """Return a queue. Nothing connects."""
        client = self._queues.get_queue_client(name)
        return StorageQueue(client, base64_encoded=self._is_base64, timeout_seconds=self._timeout_seconds)

    def poison(self, name: str) -> StorageQueue:
        """Return where the Functions host puts messages that failed ``maxDequeueCount`` times."""
        return self.queue(f"{name}{POISON_SUFFIX}", 0.0)

    def make(self, name: str) -> None:
        """Create a queue, and the one for its poison, if they are missing.

        Raises:
            ConfigurationError: the account refuses.
        """
        for wanted in (name, f"{name}{POISON_SUFFIX}"):
            try:
                self._queues.create_queue(wanted)
            except ResourceExistsError:
                continue
            except AzureError as error:
                raise ConfigurationError(
                    f"Queue '{wanted}' cannot be created: {type(error).__name__}. Check the account and its credential."
                ) from error

    def check(self, name: str) -> None:
        """Look whether a queue is there and lets us read."""
        self.queue(name, 0.0).check()

    def tables(self, config: EngineTablesConfig) -> AzureTables:
        """Return the dead letters and the history under the registry's names.

        Raises:
            ConfigurationError: the registry names another account.
        """
        from .tables.azure import AzureTables

        account = self._tables.account_name
        if config.storage_account_name and account and config.storage_account_name != account:
            raise ConfigurationError(
                f"The registry keeps the engines' tables in account '{config.storage_account_name}', and this "
                f"connection is to '{account}'. Correct one of them."
            )
        return AzureTables(self._tables, config.tables, timeout_seconds=self._timeout_seconds, clock=self._clock)

    def close(self) -> None:
        """Close the connections."""
        self._queues.close()
        self._tables.close()
