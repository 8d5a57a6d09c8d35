"""An Azure Storage account as the place of engines' queues and tables."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from ..core.clock import Clock
from ..core.errors import ConfigurationError
from ..core.extras import needed
from .queues.storage import PoisonQueue, StorageQueue
from .registry_shape import EngineTablesConfig

with needed("Engines in Azure Storage need the Azure SDK", "azure"):
    from azure.core.credentials import AzureNamedKeyCredential, SupportsTokenInfo, TokenCredential
    from azure.core.exceptions import AzureError, ResourceExistsError
    from azure.data.tables import TableServiceClient
    from azure.storage.queue import QueueServiceClient

if TYPE_CHECKING:
    from .tables.azure import AzureTables

POISON_SUFFIX = "-poison"
_ACCOUNT = re.compile(r"[a-z0-9]{3,24}", re.ASCII)


class AzureStorage:
    """A storage account. Pass it to ``Holdfast`` as ``engine_queues``, as ``engine_tables``, or as both.

    Args:
        queues: the account's queues, with whatever credential you use.
        tables: the account's tables.
        timeout_seconds: how long to wait for a connection, and for each part of an answer.
        base64_encoded: how messages are written, as Azure Functions does by default; both forms are read.
        max_dequeue_count: that of the host's ``host.json``, where Azure Functions delivers the messages: how often each
            one was delivered that the host moved to ``<queue>-poison``.
    """

    def __init__(
        self,
        queues: QueueServiceClient,
        tables: TableServiceClient,
        *,
        timeout_seconds: float = 10.0,
        base64_encoded: bool = True,
        max_dequeue_count: int | None = None,
        clock: Clock | None = None,
    ) -> None:
        self._queues = queues
        self._tables = tables
        self._timeout_seconds = timeout_seconds
        self._is_base64 = base64_encoded
        self._max_dequeue_count = _checked_count(max_dequeue_count)
        self._clock = clock

    @classmethod
    def from_account(
        cls, name: str, *, credential: TokenCredential | AzureNamedKeyCredential, **options: Any
    ) -> AzureStorage:
        """Return an account of the public cloud by its name; for another cloud make the clients yourself.

        ``credential`` is a managed identity, ``DefaultAzureCredential()``, or whatever else the Azure SDK takes for
        both queues and tables; no key is needed. Nothing connects. ``options`` are those of the class.

        Raises:
            ConfigurationError: the name cannot be one of an account, or the credential is none.
        """
        if _ACCOUNT.fullmatch(str(name)) is None:
            raise ConfigurationError(
                f"{name!r:.80} cannot be the name of a storage account: write 3 to 24 of a-z and 0-9, as in 'shopdata'."
            )
        if not isinstance(credential, (SupportsTokenInfo, TokenCredential, AzureNamedKeyCredential)):
            raise ConfigurationError(
                f"Storage account '{name}' needs a credential such as DefaultAzureCredential() of azure-identity; for "
                "a key use from_connection_string."
            )
        hosts = {service: f"https://{name}.{service}.core.windows.net" for service in ("queue", "table")}
        queues = QueueServiceClient(hosts["queue"], credential=credential)
        tables = TableServiceClient(endpoint=hosts["table"], credential=credential)
        return cls(queues, tables, **options)

    @classmethod
    def from_connection_string(cls, connection_string: str, **options: Any) -> AzureStorage:
        """Return an account. Nothing connects. ``options`` are those of the class.

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
        return cls(queues, tables, **options)

    def queue(self, name: str, visibility_seconds: float) -> StorageQueue:
        """Return a queue. Nothing connects."""
        client = self._queues.get_queue_client(name)
        return StorageQueue(client, base64_encoded=self._is_base64, timeout_seconds=self._timeout_seconds)

    def poison(self, name: str) -> PoisonQueue:
        """Return where the Functions host puts messages that failed ``maxDequeueCount`` times."""
        return PoisonQueue(
            self._queues.get_queue_client(f"{name}{POISON_SUFFIX}"),
            max_dequeue_count=self._max_dequeue_count,
            base64_encoded=self._is_base64,
            timeout_seconds=self._timeout_seconds,
        )

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
        return AzureTables(self._tables, config, timeout_seconds=self._timeout_seconds, clock=self._clock)

    def close(self) -> None:
        """Close the connections."""
        self._queues.close()
        self._tables.close()


def _checked_count(given: int | None) -> int | None:
    if given is not None and (type(given) is not int or given < 1):
        raise ConfigurationError(
            f"max_dequeue_count={given!r} must be a whole number above 0, as maxDequeueCount in host.json."
        )
    return given
