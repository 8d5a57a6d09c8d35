"""Function apps under test: their settings, their databases, and the hosts that run them."""

import json
import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from pathlib import Path

import psycopg
import pytest

from tests.components import availability
from tests.components.azurite import AzuriteServer
from tests.components.processes import REPOSITORY
from tests.functions.hosts import BuiltHost, Host, RuntimeHost

EXAMPLES = REPOSITORY / "examples" / "functions"
UNREACHABLE = "127.0.0.1:1"

StartHost = Callable[[Path, Mapping[str, str]], Host]


def sample_settings(app: Path) -> dict[str, str]:
    """Return the settings of the app's own sample: what is missing there is missing in the tests too."""
    values: dict[str, str] = json.loads((app / "local.settings.sample.json").read_text())["Values"]
    return values


@pytest.fixture(params=["runtime", "built"])
def start_host(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[StartHost]:
    """Start an instance of an app with the given settings: in the real worker library, or as built functions."""
    with ExitStack() as hosts:
        if request.param == "runtime":
            availability.need("functions")

        def start(app: Path, settings: Mapping[str, str]) -> Host:
            if request.param == "runtime":
                return hosts.enter_context(RuntimeHost(app, settings))
            for name, value in settings.items():
                monkeypatch.setenv(name, value)
            return hosts.enter_context(BuiltHost(app))

        yield start


class Shop:
    """A database and a storage account, and one site name: what an app of its own has in Azure."""

    def __init__(self, url: str, azurite: AzuriteServer) -> None:
        self.url = url
        self.azurite = azurite
        self.site = f"site-{uuid.uuid4().hex[:12]}"
        self.connection = psycopg.connect(url.replace("+psycopg", ""), autocommit=True)

    def settings(self, app: Path) -> dict[str, str]:
        ours = {"DB_URL": self.url, "AzureWebJobsStorage": self.azurite.connection_string}
        return sample_settings(app) | ours | {"WEBSITE_SITE_NAME": self.site}

    def create_tables(self, app: Path) -> None:
        self.connection.execute((app / "schema.sql").read_bytes())

    def rows(self, query: str) -> list[tuple[object, ...]]:
        return self.connection.execute(query.encode()).fetchall()

    def execute(self, statement: str, *values: object) -> None:
        self.connection.execute(statement.encode(), values or None)


@pytest.fixture
def shop(postgres_url: str, azurite: AzuriteServer) -> Iterator[Shop]:
    made = Shop(postgres_url, azurite)
    with made.connection:
        yield made
