"""Azurite: Azure's blob, queue and table storage on loopback.

It keeps everything in memory, so it shows how conditions and errors behave and proves nothing about
durability. A restart empties it.
"""

import uuid
from collections.abc import Sequence
from typing import ClassVar

from azure.data.tables import TableServiceClient
from azure.storage.blob import BlobServiceClient

from tests.components.node import AZURITE, answers_http, node_command
from tests.components.ports import HOST
from tests.components.server import Server

ACCOUNT = "devstoreaccount1"
# The published key of the development account, the same on every machine.
KEY = "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw=="


class AzuriteServer(Server):
    """One storage account; the connection string serves the blob, queue and table clients alike."""

    name: ClassVar[str] = "azurite"
    port_count: ClassVar[int] = 3

    @property
    def blob_port(self) -> int:
        return self.ports[0]

    @property
    def queue_port(self) -> int:
        return self.ports[1]

    @property
    def table_port(self) -> int:
        return self.ports[2]

    @property
    def connection_string(self) -> str:
        endpoints = "".join(
            f"{kind}Endpoint=http://{HOST}:{port}/{ACCOUNT};"
            for kind, port in zip(("Blob", "Queue", "Table"), self.ports, strict=True)
        )
        return f"DefaultEndpointsProtocol=http;AccountName={ACCOUNT};AccountKey={KEY};{endpoints}"

    def create_container(self) -> str:
        """Create an empty blob container and return its name."""
        name = f"c{uuid.uuid4().hex}"
        with BlobServiceClient.from_connection_string(self.connection_string) as service:
            service.create_container(name)
        return name

    def create_table(self) -> str:
        """Create an empty table and return its name."""
        name = f"t{uuid.uuid4().hex}"
        with TableServiceClient.from_connection_string(self.connection_string) as service:
            service.create_table(name)
        return name

    def _command(self) -> Sequence[str]:
        hosts = [f"--{kind}Host={HOST}" for kind in ("blob", "queue", "table")]
        kinds = zip(("blob", "queue", "table"), self.ports, strict=True)
        ports = [f"--{kind}Port={port}" for kind, port in kinds]
        options = ("--silent", "--inMemoryPersistence", "--skipApiVersionCheck", "--disableTelemetry")
        return node_command(AZURITE, *options, *hosts, *ports)

    def _answers(self) -> bool:
        return all(answers_http(port) for port in self.ports)
