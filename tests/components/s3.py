"""S3 as moto's server speaks it: conditional writes, listings and errors over real HTTP."""

import sys
import uuid
from collections.abc import Sequence
from pathlib import Path
from typing import Any, ClassVar

import boto3

from tests.components.node import answers_http
from tests.components.ports import HOST
from tests.components.server import Server

_PROGRAM = Path(__file__).with_name("s3_one_by_one.py")
REGION = "us-east-1"
CREDENTIALS = {"aws_access_key_id": "test", "aws_secret_access_key": "test", "region_name": REGION}


class S3Server(Server):
    """One S3 endpoint, empty after a restart. Any credentials do."""

    name: ClassVar[str] = "s3"

    @property
    def endpoint_url(self) -> str:
        return f"http://{HOST}:{self.port}"

    def client(self, endpoint_url: str | None = None) -> Any:
        """Return a boto3 client, for another endpoint when given (a proxy's, say)."""
        return boto3.client("s3", endpoint_url=endpoint_url or self.endpoint_url, **CREDENTIALS)

    def create_bucket(self) -> str:
        """Create an empty bucket and return its name."""
        name = f"b{uuid.uuid4().hex}"
        client = self.client()
        client.create_bucket(Bucket=name)
        client.close()
        return name

    def _command(self) -> Sequence[str]:
        return [sys.executable, str(_PROGRAM), "-H", HOST, "-p", str(self.port)]

    def _answers(self) -> bool:
        return answers_http(self.port)
