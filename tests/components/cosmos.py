"""Azure Cosmos DB as @vercel/cosmosdb-server imitates it.

Good for single items with etags only: its batches, change feed and queries by partition key are broken.
"""

import uuid
from collections.abc import Sequence
from typing import ClassVar

from azure.cosmos import CosmosClient, PartitionKey

from tests.components.node import COSMOS, answers_http, node_command
from tests.components.ports import HOST
from tests.components.server import Server

# The published key of Microsoft's emulator, the same on every machine.
KEY = "C2y6yDjf5/R+ob0N8A7Cgv30VRDJIWEHLM+4QDU5DE2nQ9nDuVTqobD4b8mGGyPMbIZnqyMsEcaGQy67XIw/Jw=="


class CosmosServer(Server):
    """One Cosmos account, empty after a restart."""

    name: ClassVar[str] = "cosmos"

    @property
    def endpoint(self) -> str:
        return f"http://{HOST}:{self.port}/"

    @property
    def key(self) -> str:
        return KEY

    def client(self, endpoint: str | None = None) -> CosmosClient:
        """Return a client, for another endpoint when given (a proxy's, say)."""
        return CosmosClient(endpoint or self.endpoint, KEY, enable_endpoint_discovery=False)

    def create_container(self, partition_key: str = "/id") -> tuple[str, str]:
        """Create a database with an empty container and return both names."""
        database, container = f"d{uuid.uuid4().hex}", f"c{uuid.uuid4().hex}"
        with self.client() as client:
            client.create_database(database).create_container(container, PartitionKey(partition_key))
        return database, container

    def _command(self) -> Sequence[str]:
        return node_command(COSMOS, "-p", str(self.port), "--host", HOST, "--no-ssl")

    def _answers(self) -> bool:
        return answers_http(self.port)
